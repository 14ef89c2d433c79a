"""Runs the producers' own quantizers on a whole checkpoint, each as its users run it on the CPU.

    pip install torch==2.11.0 transformers==5.17.0 amd-quark==0.13 nvidia-modelopt==0.47.0 compressed-tensors==0.20.0
    pip install --no-deps llmcompressor==0.14.0.1

A producer that is not installed is an ImportError, which the callers report as a skipped row.
"""

import importlib.metadata
import json
import pathlib
import shutil

VISION = ["*mm_projector*", "*vision_tower*"]
# Linear layers outside the quantized part: the same names for every producer, in its own spelling.
EXPERTS_ONLY = ["*self_attn*", "*mlp.gate", "*lm_head", "*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj",
                "*shared_experts*", *VISION]
# transformers leaves what 128 does not divide in BF16, and so is every expert of the nano model.
WHOLE_BLOCKS = ["*experts*", "*kv_a_proj_with_mqa", "*mlp.gate", "*lm_head", *VISION]
NO_ATTENTION = ["*self_attn*", "*mlp.gate", "*lm_head", *VISION]
NO_EXPERTS = ["*experts*", "*mlp.gate", "*lm_head", *VISION]
HEADS = ["*mlp.gate", "*lm_head", *VISION]  # attention is quantized too
DRAFT = ["fc", "lm_head"]


def version(package):
    return importlib.metadata.version(package)


def as_regex(pattern):
    return "re:.*" + pattern.strip("*").replace(".", r"\.") + (".*" if pattern.endswith("*") else "$")


def copy_companions(source, out):
    for path in pathlib.Path(source).iterdir():
        if path.suffix in (".json", ".model", ".jinja") and not (out / path.name).exists():
            shutil.copy(path, out / path.name)


def quark(source, out, scheme, exclude):
    from quark.torch import LLMTemplate, ModelQuantizer

    name = {"mxfp4": "mxfp4", "fp8": "ptpc_fp8", "nvfp4": "nvfp4"}[scheme]
    config = LLMTemplate.get("kimi_k25").get_config(scheme=name, exclude_layers=exclude)
    ModelQuantizer(config).direct_quantize_checkpoint(pretrained_model_path=str(source), save_path=str(out),
                                                      device="cpu")


def llmcompressor(source, out, scheme, exclude):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
    from llmcompressor import model_free_ptq

    if scheme == "int4-g32":
        weights = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
        chosen = QuantizationScheme(targets=["Linear"], weights=weights)
    else:
        chosen = preset_name_to_scheme({"mxfp4": "MXFP4", "fp8": "FP8_DYNAMIC", "nvfp4": "NVFP4A16"}[scheme], ["Linear"])
    if scheme == "nvfp4":  # its default searches scales for the least error; this is plain rounding
        chosen.weights.observer = "memoryless_minmax"
    model_free_ptq(str(source), str(out), scheme=chosen, device="cpu",
                   ignore=[as_regex(pattern) for pattern in exclude] + ["re:.*embed_tokens.*"])


def load_target(source):
    """transformers' model of a target, in the checkpoint's BF16."""
    import torch
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(str(source), dtype=torch.bfloat16)


def modelopt(source, out, scheme, exclude):
    """Needs a model, as ModelOpt does; calibrated on a few random prompts so that every layer has an input scale."""
    import copy

    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint

    assert scheme == "nvfp4"
    model = load_target(source).eval()
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, 3800, (8, 64), generator=generator)

    def calibrate(model):
        with torch.no_grad():
            model(input_ids=prompts)

    for pattern in exclude:  # beside the default config's own
        config["quant_cfg"] = add_exclusion(config["quant_cfg"], pattern)
    model = mtq.quantize(model, config, calibrate)
    export_hf_checkpoint(model, export_dir=str(out))


def add_exclusion(quant_cfg, pattern):
    if isinstance(quant_cfg, dict):
        return {**quant_cfg, pattern + "*": {"enable": False}}
    return [*quant_cfg, {"quantizer_name": pattern + "*", "enable": False}]


def transformers_blocks(source, out, scheme, exclude):
    """transformers' own FP8 block quantizer, tensor by tensor (its from_pretrained path wants a GPU)."""
    import fnmatch
    import types

    from safetensors.torch import load_file, save_file
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    assert scheme == "fp8-block"
    config = types.SimpleNamespace(weight_block_size=[128, 128], scale_fmt=None)
    convert = Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert
    out.mkdir(parents=True, exist_ok=True)
    result, kept = {}, []
    for name, tensor in load_file(str(source / "model.safetensors")).items():
        module = name.removesuffix(".weight")
        linear = name.endswith(".weight") and tensor.ndim == 2 and not module.endswith("norm") and "embed" not in module
        if linear and not any(fnmatch.fnmatch(module, p) or fnmatch.fnmatch(module, "*." + p) for p in exclude):
            result.update(convert({name: tensor}))
        else:
            result[name] = tensor
            kept += [module] if linear else []
    save_file(result, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [128, 128], "modules_to_not_convert": kept}
    (out / "config.json").write_text(json.dumps(config, indent=2))


# producer of `eyrie quantize`, scheme, what runs it, its package, what is left out.
TARGET_RUNS = [
    ("quark", "mxfp4", quark, "amd-quark", EXPERTS_ONLY),
    ("quark", "fp8", quark, "amd-quark", HEADS),
    ("quark", "nvfp4", quark, "amd-quark", EXPERTS_ONLY),
    ("modelopt", "nvfp4", modelopt, "nvidia-modelopt", EXPERTS_ONLY),
    ("compressed-tensors", "mxfp4", llmcompressor, "llmcompressor", EXPERTS_ONLY),
    ("compressed-tensors", "nvfp4", llmcompressor, "llmcompressor", EXPERTS_ONLY),
    ("compressed-tensors", "fp8", llmcompressor, "llmcompressor", HEADS),
    ("compressed-tensors", "int4-g32", llmcompressor, "llmcompressor", EXPERTS_ONLY),
    ("transformers", "fp8-block", transformers_blocks, "transformers", WHOLE_BLOCKS),
]
DRAFT_RUNS = [
    ("quark", "fp8", quark, "amd-quark", DRAFT),
    ("compressed-tensors", "fp8", llmcompressor, "llmcompressor", DRAFT),
]


def make(run, source, out):
    """The producer's checkpoint in `out`, made once."""
    _, scheme, function, _, exclude = run
    out = pathlib.Path(out)
    if not (out / "config.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        partial = out.with_name(out.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        function(pathlib.Path(source), partial, scheme, exclude)
        copy_companions(source, partial)
        partial.rename(out)
    return out
