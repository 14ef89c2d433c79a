"""Scales of activations: ModelOpt's calibration against `eyrie quantize --calibration`.

    python tools/formats_golden/compare_calibration.py [--eyrie build/release/eyrie] [--rows N] [--tokens N]

The same token ids (rows of data/prompts/nano-mix.jsonl) go through transformers' BF16 model under ModelOpt's NVFP4
calibration and through eyrie. Everything but router and head is quantized. Prints, by kind of layer, the largest
relative difference between the input scales both would write. ModelOpt has one quantizer for all experts of a layer,
as transformers has one module for them; eyrie gives every expert of a layer that scale. Exit 1: a layer is further
apart than LIMIT, or one of ModelOpt's has no scale from eyrie. producers.py says which versions.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import compare_producers
import producers
import torch

ROOT, TARGET = compare_producers.ROOT, compare_producers.TARGET
LIMIT = 0.02  # activations are BF16 there and float32 here: 2^-8 a rounding, and several on the way


def token_ids(rows, tokens):
    sys.path.insert(0, str(ROOT / "tools/nano"))
    import tokenizer

    encoding = tokenizer.load(str(TARGET))
    lines = (ROOT / "data/prompts/nano-mix.jsonl").read_text().splitlines()[:rows]
    return [encoding.encode(json.loads(line)["prompt"], allowed_special="all")[:tokens] for line in lines]


def modelopt_scales(rows):
    """{"1.self_attn.o_proj": input scale} as its export writes them; experts without their number."""
    import copy

    import modelopt.torch.quantization as mtq
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    model = producers.load_target(TARGET).eval()
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    for pattern in producers.HEADS:
        config["quant_cfg"] = producers.add_exclusion(config["quant_cfg"], pattern)

    def calibrate(model):
        with torch.no_grad():
            for ids in rows:
                model(input_ids=torch.tensor([ids]))

    model = mtq.quantize(model, config, calibrate)
    scales = {}
    for name, quantizer in model.named_modules():
        match = re.search(r"layers\.(\d+)\.(.*?)[._]input_quantizer$", name)
        if match is None or not quantizer.is_enabled or quantizer.amax is None:
            continue
        scale = float(NVFP4QTensor.get_activation_scaling_factor(quantizer))
        layer, module = match.groups()
        for part in ("gate_proj", "up_proj") if module.endswith("gate_up_proj") else (None,):
            key = module if part is None else module.removesuffix("gate_up_proj") + part
            scales[f"{layer}.{key}"] = scale
    return scales


def eyrie_scales(eyrie, rows, work):
    """The same keys; a set of values each, so that experts that differ would show."""
    prompts = work / "ids.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": ids}) + "\n" for ids in rows))
    longest = max(len(ids) for ids in rows)
    exclude = compare_producers.used_patterns(TARGET, producers.HEADS)
    subprocess.run([str(eyrie), "quantize", str(TARGET), str(work / "out"), "--scheme", "nvfp4", "--producer", "modelopt",
                    "--exclude", *exclude, "--calibration", str(prompts), "--calibration-tokens", str(longest)], check=True)
    scales = collections.defaultdict(set)
    for name, tensor in compare_producers.tensors(work / "out").items():
        if name.endswith(".input_scale"):
            key = name.split(".layers.")[1].removesuffix(".input_scale")
            scales[re.sub(r"experts\.\d+\.", "experts.", key)].add(float(tensor))
    return scales


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eyrie", default=ROOT / "build/release/eyrie", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="a row is cut to")
    args = parser.parse_args()
    rows = token_ids(args.rows, args.tokens)
    with tempfile.TemporaryDirectory() as work:
        ours = eyrie_scales(args.eyrie.resolve(), rows, pathlib.Path(work))
    theirs = modelopt_scales(rows)
    kinds, failed = collections.defaultdict(list), False
    for key, scale in theirs.items():
        if key not in ours:
            print(f"{key}: {scale:.4g}, no scale from eyrie")
            failed = True
            continue
        apart = max(abs(value / scale - 1) for value in ours[key])
        kinds[key.split(".", 1)[1]].append(apart)
        if apart > LIMIT:
            print(f"{key}: ModelOpt {scale:.6g}, eyrie {sorted(ours[key])}")
            failed = True
    print(f"{len(rows)} rows, {sum(map(len, rows))} tokens; {len(theirs)} input scales of ModelOpt "
          f"{producers.version('nvidia-modelopt')}, {sum(map(len, kinds.values()))} compared")
    for kind, values in sorted(kinds.items()):
        print(f"  {kind:34} {len(values):3} layers, at most {100 * max(values):.2f} % apart")
    return 1 if failed or not theirs else 0


if __name__ == "__main__":
    sys.exit(main())
