"""Whole checkpoints, byte for byte: each producer's quantizer against `eyrie quantize --producer`.

    python tools/formats_golden/compare_producers.py [--eyrie build/release/eyrie] [--work DIR] [--only TEXT] [--golden]

Runs amd-quark, nvidia-modelopt, llm-compressor and transformers (producers.py says which versions) on the bundled
target and draft, quantizes the same layers with eyrie and compares every tensor: name, dtype, shape, bytes. Prints
one row a run and lists what differs. --golden also writes the checksums of what the tools made, which
src/quantize/nano_producers_test.cpp holds the quantizer to. A tool that is not installed is a row that says so. Exit 1: a difference.
"""

import argparse
import collections
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib

import producers
import torch
from safetensors import safe_open

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "src/quantize/testdata/nano_producers.txt"
TARGET, DRAFT = ROOT / "models/kimi-k2.5-nano", ROOT / "models/kimi-k2.5-nano-eagle3"


def tensors(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_shape(a, b):
    squeezed = [tuple(d for d in tensor.shape if d != 1) for tensor in (a, b)]
    return squeezed[0] == squeezed[1]  # [1] and [], [n] and [n, 1] are one thing to every reader


def checksums(tensors):
    """CRC-32 by kind of tensor (`weight`, `weight_scale` …), over names and bytes in order of names."""
    sums = collections.defaultdict(int)
    for name in sorted(tensors):
        kind = name.rsplit(".", 1)[-1]
        if not is_calibrated(name) and not is_made_up(name):
            sums[kind] = zlib.crc32(raw(tensors[name]).numpy().tobytes(), zlib.crc32(name.encode(), sums[kind]))
    return " ".join(f"{kind}:{value:08x}" for kind, value in sorted(sums.items()))


def is_calibrated(name):
    return name.endswith((".input_scale", ".input_global_scale"))


def is_made_up(name):
    return ".vision_tower." in name or ".mm_projector." in name  # by transformers: the bundled model has none


def compare(theirs, ours):
    """Counts, and a line for each thing that is not equal. Scales of activations, which come from what a calibration
    saw, are counted apart."""
    result = {"equal": 0, "bytes": 0, "different": 0, "calibrated": 0, "lines": []}
    for name in sorted(theirs.keys() ^ ours.keys()):
        if is_calibrated(name) or is_made_up(name):
            result["calibrated"] += is_calibrated(name)
            continue
        result["different"] += 1
        result["lines"].append(f"only {'theirs' if name in theirs else 'ours'}: {name}")
    for name in sorted(theirs.keys() & ours.keys()):
        a, b = theirs[name], ours[name]
        if a.dtype != b.dtype or not same_shape(a, b):
            line = f"{name}: {a.dtype} {tuple(a.shape)}, ours {b.dtype} {tuple(b.shape)}"
        else:
            unequal = int((raw(a) != raw(b)).sum())
            line = f"{name}: {unequal} of {raw(a).numel()} bytes" if unequal else None
        result["bytes"] += raw(b).numel()
        if line is None:
            result["equal"] += 1
        else:
            result["different"] += 1
            result["lines"].append(line)
    return result


def used_patterns(source, exclude):
    """eyrie refuses a pattern that matches nothing; the bundled models have no vision tower."""
    names = list(module_names(source))
    return [pattern for pattern in exclude if any(matches(pattern, name) for name in names)]


def global_scale(producer, scheme):
    """Quark's file-to-file tool scales every tensor on its own; llm-compressor's looks for pairs of gate and up under
    `mlp.` only, so experts get their own too."""
    return "own" if scheme == "nvfp4" and producer != "modelopt" else "shared"


def eyrie_quantize(eyrie, source, out, run):
    producer, scheme, _, _, exclude = run
    shutil.rmtree(out, ignore_errors=True)
    command = [str(eyrie), "quantize", str(source), str(out), "--scheme", scheme, "--producer", producer]
    if scheme == "nvfp4":
        command += ["--global-scale", global_scale(producer, scheme)]
    command += ["--exclude", *used_patterns(source, exclude)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def module_names(source):
    for path in pathlib.Path(source).glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                if name.endswith(".weight") and len(file.get_slice(name).get_shape()) == 2:
                    yield name.removesuffix(".weight")


def matches(pattern, name):
    import fnmatch

    return fnmatch.fnmatch(name, pattern) or name.endswith("." + pattern)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eyrie", default=ROOT / "build/release/eyrie")
    parser.add_argument("--work", help="keep the checkpoints here (default: a temporary folder)")
    parser.add_argument("--only", default="", help="rows that contain this text")
    parser.add_argument("--golden", action="store_true", help="write src/quantize/testdata/nano_producers.txt")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(args.work or temporary)
        failed, rows, lines, golden = False, [], [], []
        runs = [("target", TARGET, run) for run in producers.TARGET_RUNS]
        runs += [("draft", DRAFT, run) for run in producers.DRAFT_RUNS]
        for kind, source, run in runs:
            producer, scheme, _, package, _ = run
            label = f"{kind}-{scheme}-{producer}"
            if args.only not in label:
                continue
            try:
                theirs = producers.make(run, source, work / f"theirs-{label}")
            except ImportError as error:
                rows.append((kind, scheme, package, "not installed", "", "", str(error)))
                continue
            ours = eyrie_quantize(args.eyrie, source, work / f"ours-{label}", run)
            made = tensors(theirs)
            result = compare(made, tensors(ours))
            golden.append(f"{source.name} {scheme} {producer} {global_scale(producer, scheme)} "
                          f"{','.join(used_patterns(source, run[4]))} {checksums(made)}")
            failed = failed or result["different"] > 0
            lines += [f"{label}: {line}" for line in result["lines"]]
            rows.append((kind, scheme, f"{package} {producers.version(package)}", str(result["equal"]),
                         str(result["different"]), str(result["calibrated"]), f"{result['bytes']:,}"))
    table = [("of", "scheme", "tool", "tensors equal", "different", "input scales", "bytes"), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(7)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print("\n".join(lines))
    if args.golden:
        header = ["# What the producers' own tools make of the bundled models (tools/formats_golden/compare_producers.py):",
                  "# model, scheme, producer, global scale, exclude, CRC-32 of names and bytes by kind of tensor"]
        GOLDEN.write_text("\n".join(header + golden) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
