"""Runs amd-quark file to file on a checkpoint and compares it with what `eyrie quantize` made.

    python tools/formats_golden/compare_with_quark.py models/kimi-k2.5-nano SCHEME EYRIE_OUTPUT

SCHEME is Quark's name: mxfp4, ptpc_fp8, nvfp4. Every tensor must have the same name, dtype, shape
and bytes; differences are counted by tensor and byte.
"""

import pathlib
import sys
import tempfile

import torch
from quark.torch import LLMTemplate, ModelQuantizer
from safetensors import safe_open


def tensors(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def main(model, scheme, ours):
    with tempfile.TemporaryDirectory() as theirs:
        config = LLMTemplate.get("kimi_k25").get_config(scheme=scheme)
        ModelQuantizer(config).direct_quantize_checkpoint(pretrained_model_path=model, save_path=theirs, device="cpu")
        a, b = tensors(theirs), tensors(ours)
    for name in sorted(a.keys() ^ b.keys()):
        print("only in", "quark's" if name in a else "ours", name)
    differing, total = 0, 0
    for name in sorted(a.keys() & b.keys()):
        if a[name].dtype != b[name].dtype or a[name].numel() != b[name].numel():
            print(name, a[name].dtype, tuple(a[name].shape), "but ours", b[name].dtype, tuple(b[name].shape))
            differing += 1
            continue
        if a[name].shape != b[name].shape:
            print("shapes", name, tuple(a[name].shape), tuple(b[name].shape))
        unequal = int((raw(a[name]) != raw(b[name])).sum())
        total += raw(a[name]).numel()
        if unequal:
            differing += 1
            print(f"{name}: {unequal} of {raw(a[name]).numel()} bytes differ")
    print(f"{len(a.keys() & b.keys())} tensors, {total} bytes compared, {differing} tensors differ")
    return 1 if differing or a.keys() ^ b.keys() else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
