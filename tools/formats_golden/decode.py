"""Every checkpoint format back to float32, from the formats' definitions: shares no code with the C++ or a producer."""

import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(packed):
    """[out, n] bytes → [out, 2n], low nibble first."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()


def decode(parts):
    """The float32 weight of one linear layer from its tensors, named without the layer's prefix."""
    data = parts.get("weight_packed", parts.get("weight"))
    scale = parts.get("weight_scale", parts.get("weight_scale_inv"))
    if scale is None:
        return data.float()
    if data.dtype == torch.int32:
        values = nibbles(data.contiguous().view(torch.uint8)).float() - 8
        return values * scale.float().repeat_interleave(32, 1)
    if data.dtype == torch.uint8 and scale.dtype == torch.uint8:
        return E2M1[nibbles(data)] * torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    if data.dtype == torch.uint8:
        whole = parts["weight_scale_2"] if "weight_scale_2" in parts else 1 / parts["weight_global_scale"]
        return E2M1[nibbles(data)] * (scale.float() * whole.reshape(())).repeat_interleave(16, 1)
    if "weight_scale_inv" in parts:
        out, width = data.shape
        return data.float() * scale.repeat_interleave(128, 0)[:out].repeat_interleave(128, 1)[:, :width]
    return data.float() * scale.float().reshape(-1, 1)


def load(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        found.update(load_file(str(path)))
    return found


def layers(tensors):
    """module → its tensors by the name's last part; everything that is no linear layer under its own name."""
    grouped, others = {}, {}
    for name, tensor in tensors.items():
        module, part = name.rsplit(".", 1)
        if part.startswith(("weight", "input_")):
            grouped.setdefault(module, {})[part] = tensor
        else:
            others[name] = tensor
    return grouped, others


def weights(folder):
    """name of the BF16 checkpoint → float32."""
    grouped, others = layers(load(folder))
    found = {module + ".weight": decode(parts) for module, parts in grouped.items()}
    return {**found, **others}


def write_dequantized(folder, out):
    """A float32 checkpoint of the same numbers."""
    out = pathlib.Path(out)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tensors = {name: tensor.contiguous() for name, tensor in weights(folder).items()
               if ".vision_tower." not in name and ".mm_projector." not in name}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    for path in pathlib.Path(folder).iterdir():
        if path.suffix in (".model", ".jinja") or path.name == "tokenizer_config.json":
            shutil.copy(path, out)
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    for level in (config, config.get("text_config", {})):
        level.pop("quantization_config", None)
    (out / "config.json").write_text(json.dumps(config, indent=2))
    return out


def write_text_view(folder, out):
    """The target's language model under the names and the architecture of DeepSeek-V3: transformers makes up the vision
    tower the bundled model lacks, and would quantize it."""
    out = pathlib.Path(out)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    strip = lambda name: name.removeprefix("language_model.")
    save_file({strip(name): tensor for name, tensor in load(folder).items()}, str(out / "model.safetensors"),
              metadata={"format": "pt"})
    source = json.loads((pathlib.Path(folder) / "config.json").read_text())
    config = {**source["text_config"], "model_type": "deepseek_v3"}
    if "quantization_config" in source:
        config["quantization_config"] = source["quantization_config"]
    (out / "config.json").write_text(json.dumps(config, indent=2))
    return out
