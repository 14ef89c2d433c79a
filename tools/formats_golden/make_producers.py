"""Golden bytes of the producers' own quantizers (src/formats/testdata/producers.txt).

Runs amd-quark, nvidia-modelopt, compressed-tensors and transformers on the CPU over small BF16
matrices and writes what they store, so that formats/recipe.h can be held to it byte for byte.

    pip install torch==2.11.0 transformers==5.17.0 amd-quark==0.13 nvidia-modelopt==0.47.0 compressed-tensors==0.20.0
    python tools/formats_golden/make_producers.py
"""

import pathlib
import types

import torch

OUT = pathlib.Path(__file__).resolve().parents[2] / "src/formats/testdata/producers.txt"


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def matrices():
    generator = torch.Generator().manual_seed(20)
    noise = lambda *shape: torch.randn(*shape, generator=generator)
    yield "plain", noise(5, 64) * 0.02
    edges = noise(6, 64) * 0.05
    edges[0, :32] = 0  # a block of zeros beside one that is not
    edges[1] = 0
    edges[2] *= 2.0 ** -20
    edges[3, 7] = 3.0  # an outlier
    edges[4, 16:32] = -edges[4, :16].abs()
    yield "edges", edges
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    yield "ties", torch.cat([ties, -ties, ties / 2, -ties / 4, ties * 0.01, -ties * 0.01, -ties, ties]).repeat(2, 1) / 64
    yield "large", noise(3, 64) * 40
    yield "zero", torch.zeros(2, 64)
    # Largest magnitudes for which 2688 / amax and 1 / amax * 2688 are two numbers in bfloat16.
    for amax in (0.1484375, 0.259765625, 0.271484375):
        matrix = noise(2, 64).clamp(-3, 3) * amax / 8
        matrix[1, 5] = -amax
        yield f"amax-{amax}", matrix


def ramp(rows, columns, factor):
    """The same numbers in C++: too many to list."""
    i = torch.arange(rows * columns, dtype=torch.int64)
    bits = (i * 2654435761 % 2**32) // 2**16
    values = (bits - 2**15).double() / 2**15 * 2.0 ** -(i // 97 % 7).double()
    return (values * factor).float().reshape(rows, columns).bfloat16()


def fnv1a(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def quark(weight):
    import quark.torch.quantization.file2file_quantization as f2f
    from quark.torch.quantization.config.template import LLMTemplate

    for ours, scheme in (("mxfp4", "mxfp4"), ("fp8", "ptpc_fp8"), ("nvfp4", "nvfp4")):
        config = LLMTemplate.get("kimi_k25").get_config(scheme=scheme).global_quant_config.weight
        out = {}
        common = dict(tensor=weight.clone(), tensor_name="w", layer_name="l", quantized_tensors=out,
                      safetensor_filename="f")
        if isinstance(config, list):
            f2f._scale_quantize_weight(weight_config_stages=config, device="cpu", **common)
        else:
            f2f._single_stage_quantize_weight(weight_config=config, **common)
        yield ours, "quark", out["w"], out["w_scale"], out.get("w_scale_2")


def modelopt(weight):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    if not weight.any():  # divides by its own zero: NaN scales, arbitrary codes
        return
    packed, scale, scale_2 = NVFP4QTensor.quantize(weight.clone(), 16)
    yield "nvfp4", "modelopt", packed._quantized_data, scale, scale_2


def compressed_tensors(weight):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam

    schemes = {
        "int4-g32": ("pack-quantized", 32, dict(num_bits=4, type="int", strategy="group", group_size=32)),
        "mxfp4": ("mxfp4-pack-quantized", 32,
                  dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)),
        "nvfp4": ("nvfp4-pack-quantized", 16,
                  dict(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                       scale_dtype=torch.float8_e4m3fn)),
        "fp8": ("float-quantized", weight.shape[1], dict(num_bits=8, type="float", strategy="channel")),
    }
    for ours, (name, block, fields) in schemes.items():
        args = QuantizationArgs(symmetric=True, **fields)
        blocks = weight.view(weight.shape[0], -1, block)
        state = {"weight": weight}
        global_scale = None
        if ours == "nvfp4":
            global_scale = state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
        state["weight_scale"], _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale=global_scale)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        out = BaseCompressor.get_value_from_registry(name).compress(state, scheme)
        data = out["weight_packed"] if "weight_packed" in out else out["weight"]
        yield ours, "compressed-tensors", data, out["weight_scale"], global_scale


def transformers_blocks(weight):
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    config = types.SimpleNamespace(weight_block_size=[128, 128], scale_fmt=None)
    out = Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert({"w.weight": weight})
    return out["w.weight"], out["w.weight_scale_inv"]


if __name__ == "__main__":
    lines = ["# matrix scheme producer rows columns weights(bfloat16) data scales global, bytes in hex; - is none",
             "# the last lines: scheme producer rows columns factor FNV-1a-64(data) scales of the ramp"]
    for name, matrix in matrices():
        weight = matrix.bfloat16()
        for produce in (quark, modelopt, compressed_tensors):
            for scheme, producer, data, scales, global_scale in produce(weight):
                lines.append(" ".join([
                    name, scheme, producer, *map(str, weight.shape), raw(weight).hex(), raw(data).hex(),
                    raw(scales).hex(), "-" if global_scale is None else raw(global_scale.float()).hex()]))
    for factor in (1.0, 0.013671875, 0.7109375):
        data, scales = transformers_blocks(ramp(256, 384, factor))
        lines.append(f"ramp fp8-block transformers 256 384 {factor} {fnv1a(raw(data))} {raw(scales).hex()}")
    OUT.write_text("\n".join(lines) + "\n")
