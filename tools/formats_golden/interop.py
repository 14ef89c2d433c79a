"""Checkpoints both ways: the producers' load in eyrie, and eyrie's load in transformers and the producers' decoders.

    python tools/formats_golden/interop.py [--eyrie build/release/eyrie] [--work DIR] [--only TEXT]

First table, theirs in eyrie: what `eyrie serve` answers from a producer's checkpoint (greedy, 8 prompts of 48 tokens)
against a float32 checkpoint of the same numbers, decoded by decode.py.
Second table, ours elsewhere: `weights`: of the quantized layers, how many the reader turns into exactly the BF16
numbers that decode.py gives; `tokens`: how many of eyrie's greedy tokens are the reader's choice too, each after the
same context, and the largest lead any other token had. Tools that are not installed are rows that say so.
producers.py says which versions. Exit 1: a row is not what it should be.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import compare_producers
import decode
import producers
import torch

ROOT = compare_producers.ROOT
sys.path.insert(0, str(ROOT / "tests/e2e"))
NUM_PROMPTS, NUM_TOKENS = 8, 48
LEAD = 0.25  # logits: a reader that rounds activations may prefer another token by this much


def prompts():
    lines = (ROOT / "data/prompts/nano-mix.jsonl").read_text().splitlines()[: NUM_PROMPTS * 7: 7]
    return [json.loads(line)["prompt"] for line in lines]


def answers(eyrie, folder, draft=None):
    """[(ids of the prompt, ids of the answer)] of a server on this checkpoint, accepted drafts, its warnings."""
    import harness

    harness.EYRIE = str(eyrie)
    found = []
    exact = ["--activation-quantization", "off"]  # float32, as the dequantized checkpoint and transformers have it
    with harness.Server(*exact, *(harness.spec(draft) if draft else []), model=folder) as server:
        for prompt in prompts():
            body = {"model": str(folder), "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0,
                    "ignore_eos": True, "return_token_ids": True}
            choice = server.post("/v1/completions", body)["choices"][0]
            found.append((choice["prompt_token_ids"], choice["token_ids"]))
        accepted = int(server.metric("vllm:spec_decode_num_accepted_tokens_total")) if draft else 0
        warnings = [line for line in server.log().splitlines() if "[checkpoint]" in line]
    return found, accepted, warnings


def theirs_in_eyrie(args, work):
    runs = [("target", compare_producers.TARGET, run) for run in producers.TARGET_RUNS]
    runs += [("draft", compare_producers.DRAFT, run) for run in producers.DRAFT_RUNS]
    for kind, source, run in runs:
        label = f"{kind}-{run[1]}-{run[0]}"
        if args.only not in label:
            continue
        try:
            theirs = producers.make(run, source, work / f"theirs-{label}")
        except ImportError as error:
            yield [kind, run[1], run[3], "not installed", str(error)], True
            continue
        plain = decode.write_dequantized(theirs, work / f"plain-{label}")
        served = [(theirs, None), (plain, None)] if kind == "target" else [
            (compare_producers.TARGET, theirs), (compare_producers.TARGET, plain)]
        (quantized, drafts, warnings), (dequantized, plain_drafts, _) = [answers(args.eyrie, *pair) for pair in served]
        equal = sum(a == b for (_, x), (_, y) in zip(quantized, dequantized) for a, b in zip(x, y))
        total = NUM_PROMPTS * NUM_TOKENS
        result = f"{equal} of {total} tokens" + (f", {drafts} and {plain_drafts} drafts accepted" if drafts else "")
        yield [kind, run[1], f"{run[3]} {producers.version(run[3])}", result, f"{len(warnings)} warnings"], (
            equal == total and drafts == plain_drafts)


# ---- ours elsewhere ---------------------------------------------------------------------------------------------------


def model_weights(model):
    """BF16 weights by the checkpoint's names, experts taken apart again."""
    found = {}
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".gate_up_proj").removesuffix(".down_proj")
        if name.endswith("experts.gate_up_proj"):
            for e, matrix in enumerate(tensor):
                half = matrix.shape[0] // 2
                found[f"{module}.{e}.gate_proj.weight"] = matrix[:half]
                found[f"{module}.{e}.up_proj.weight"] = matrix[half:]
        elif name.endswith("experts.down_proj"):
            found.update({f"{module}.{e}.down_proj.weight": matrix for e, matrix in enumerate(tensor)})
        else:
            found[name] = tensor
    for name, module in model.named_modules():
        if type(module).__name__ == "QParamsLinear":  # Quark's
            found[name + ".weight"] = module._get_qweight(module.weight)
    return found


def in_transformers(folder, scheme):
    """(weights, the model) as transformers' own quantizer reads the text view of a checkpoint."""
    from transformers import AutoModelForCausalLM

    options = {}
    if scheme == "fp8-block":
        from transformers import FineGrainedFP8Config

        options["quantization_config"] = FineGrainedFP8Config(dequantize=True)
    elif "compressed-tensors" in (folder / "config.json").read_text():
        from transformers import CompressedTensorsConfig

        options["quantization_config"] = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16, **options).eval()
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = model.config.rms_norm_eps  # the serving engines' choice
    return model


@torch.no_grad()
def agreement(model, found):
    """Of the answers' tokens, how many are the model's best, and the largest lead of another."""
    equal, lead = 0, 0.0
    for prompt, answer in found:
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1:-1].float()
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        best = logits.max(1).values
        equal += int((chosen == best).sum())
        lead = max(lead, float((best - chosen).max()))
    return equal, lead


def decoded_by_compressed_tensors(parts, scheme):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    name = {"nvfp4": "nvfp4-pack-quantized", "mxfp4": "mxfp4-pack-quantized"}[scheme]
    preset = preset_name_to_scheme({"nvfp4": "NVFP4A16", "mxfp4": "MXFP4A16"}[scheme], ["Linear"])
    assert isinstance(preset, QuantizationScheme)
    return BaseCompressor.get_value_from_registry(name).decompress(dict(parts), preset)["weight"]


def decoded_by_modelopt(parts, scheme):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    shape = torch.Size([parts["weight"].shape[0], parts["weight"].shape[1] * 2])
    tensor = NVFP4QTensor(shape, torch.float32, parts["weight"])
    return tensor.dequantize(dtype=torch.float32, scale=parts["weight_scale"], double_scale=parts["weight_scale_2"],
                             block_sizes={-1: 16})


# scheme, producer, reader's package, how it is read (None: as a model through transformers), what is left out.
# transformers 5.17 keeps experts as one tensor a layer, and reads them for INT4, FP8 and MXFP4 of compressed-tensors
# and for FP8 blocks. It drops NVFP4's global scales and does not know Quark's experts, so those are read by the
# producers' own decoders, or without experts. It has no reader of ModelOpt's files.
OURS = [
    ("int4-g32", "compressed-tensors", "transformers", None),
    ("fp8", "compressed-tensors", "transformers", None),
    ("mxfp4", "compressed-tensors", "transformers", None),
    ("fp8-block", "deepseek", "transformers", None),
    ("fp8-block", "transformers", "transformers", None),
    ("nvfp4", "compressed-tensors", "compressed-tensors", decoded_by_compressed_tensors),
    ("mxfp4", "compressed-tensors", "compressed-tensors", decoded_by_compressed_tensors),
    ("nvfp4", "modelopt", "nvidia-modelopt", decoded_by_modelopt),
    ("nvfp4", "quark", "nvidia-modelopt", decoded_by_modelopt),
    ("fp8", "quark", "transformers", None),
    ("mxfp4", "quark", "transformers", None),
]


def ours_elsewhere(args, work):
    for scheme, producer, package, function in OURS:
        label = f"{scheme}-{producer}-{package}"
        if args.only not in label:
            continue
        out = work / f"own-{scheme}-{producer}"
        quark = producer == "quark" and package == "transformers"
        exclude = producers.NO_EXPERTS if quark else producers.NO_ATTENTION
        compare_producers.eyrie_quantize(args.eyrie, compare_producers.TARGET, out,
                                         (producer, scheme, None, None, exclude))
        grouped, _ = decode.layers(decode.load(out))
        quantized = {module: parts for module, parts in grouped.items() if len(parts) > 1}
        tokens = ""
        good = True
        try:
            if function is None:
                model = in_transformers(decode.write_text_view(out, work / f"text-{scheme}-{producer}"), scheme)
                read = {"language_model." + name: tensor for name, tensor in model_weights(model).items()}
                found, _, _ = answers(args.eyrie, out)
                equal, lead = agreement(model, found)
                total = NUM_PROMPTS * NUM_TOKENS
                tokens = f"{equal} of {total} tokens, lead {lead:.2f}"
                good = lead <= LEAD or scheme == "mxfp4" and quark  # rounds activations to 4 bits
            else:
                read = {module + ".weight": function(parts, scheme) for module, parts in quantized.items()}
        except ImportError as error:
            yield [scheme, producer, package, "not installed", str(error)], True
            continue
        equal = sum(torch.equal(read[module + ".weight"].bfloat16(), decode.decode(parts).bfloat16())
                    for module, parts in quantized.items())
        yield [scheme, producer, f"{package} {producers.version(package)}", f"{equal} of {len(quantized)} layers",
               tokens], good and equal == len(quantized)


def print_table(head, rows):
    table, good = [head], True
    for row, row_is_good in rows:
        table.append(row + ["" if row_is_good else "DIFFERS"])
        good = good and row_is_good
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eyrie", default=ROOT / "build/release/eyrie")
    parser.add_argument("--work", help="keep the checkpoints here (default: a temporary folder)")
    parser.add_argument("--only", default="", help="rows that contain this text")
    args = parser.parse_args()
    args.eyrie = pathlib.Path(args.eyrie).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(args.work or temporary)
        good = print_table(["theirs", "scheme", "tool", "as dequantized", "", ""], theirs_in_eyrie(args, work))
        good = print_table(["ours", "producer", "read by", "weights", "tokens", ""], ours_elsewhere(args, work)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
