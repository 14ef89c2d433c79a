"""Decoding speed of the bundled model through transformers, in bfloat16, with the prompts our server is given.

    python tools/peers/transformers_peer.py [--device cuda] [--concurrency 1,4,8,16,32,64] [--output-len 128] [--json FILE]

One batch of the first C prompts of data/prompts/nano-mix.jsonl, greedy, answers of a fixed length: what `generate` needs
for output-len tokens less what it needs for one, so prefill is not counted. PyTorch and transformers 5.17.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/golden"), str(ROOT / "tools/nano")]


def load(device, attention):
    import torch

    from make_golden import oracle
    model = oracle(torch.bfloat16).to(device)
    try:
        model.set_attn_implementation(attention)
    except (AttributeError, ValueError) as error:
        print(f"attention stays {model.config._attn_implementation}: {error}", file=sys.stderr)
    return model


class Batch:
    """Prompts of one batch, padded on the left."""

    def __init__(self, prompts, pad, device):
        import torch
        longest = max(map(len, prompts))
        self.ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts], device=device)
        self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        self.pad = pad

    def generate(self, model, length, **options):
        """(seconds, new tokens [C, length])"""
        import torch
        on_gpu = self.ids.is_cuda
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            out = model.generate(input_ids=self.ids, attention_mask=self.mask, do_sample=False, min_new_tokens=length,
                                 max_new_tokens=length, pad_token_id=self.pad, **options)
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start, out[:, self.ids.shape[1]:].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--concurrency", default="1,4,8,16,32,64")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attention", default="sdpa", help="transformers' attention implementation")
    parser.add_argument("--cache", help="cache_implementation of generate, e.g. static (compiles: slow to start)")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()

    import torch
    import transformers

    import tokenizer
    encoding = tokenizer.load()
    most = max(map(int, args.concurrency.split(",")))
    prompts = []
    with open(ROOT / "data/prompts/nano-mix.jsonl", encoding="utf-8") as f:
        for line in f:
            prompts.append(encoding.encode(json.loads(line)["prompt"], allowed_special="all"))
            if len(prompts) == most:
                break
    start = time.perf_counter()
    model = load(args.device, args.attention)
    options = {"cache_implementation": args.cache} if args.cache else {}
    result = {"torch": torch.__version__, "transformers": transformers.__version__, "device": args.device,
              "attention": model.config._attn_implementation, "cache": args.cache, "output_len": args.output_len,
              "load_seconds": time.perf_counter() - start, "points": []}
    pad = json.loads((ROOT / "models/kimi-k2.5-nano/config.json").read_text())["pad_token_id"]
    print("| C | decode tok/s | ms a step | prefill ms |\n|--:|--:|--:|--:|")
    for count in map(int, args.concurrency.split(",")):
        batch = Batch(prompts[:count], pad, args.device)
        batch.generate(model, 8, **options)
        first, whole = [], []
        for _ in range(args.rounds):
            first.append(batch.generate(model, 1, **options)[0])
            seconds, tokens = batch.generate(model, args.output_len, **options)
            whole.append(seconds)
        decode = statistics.median(whole) - statistics.median(first)
        steps = args.output_len - 1
        point = {"concurrency": count, "decode_tok_s": count * steps / decode, "step_ms": 1e3 * decode / steps,
                 "prefill_ms": 1e3 * statistics.median(first), "text": encoding.decode(tokens[0])}
        result["points"].append(point)
        print(f"| {count} | {point['decode_tok_s']:.1f} | {point['step_ms']:.3f} | {point['prefill_ms']:.1f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
