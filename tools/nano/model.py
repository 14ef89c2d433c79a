"""The nano target in plain PyTorch: MLA with a query latent, sigmoid router, shared expert, YaRN.

One module serves training (whole rows, causal) and decoding (a key/value cache per layer). The
routed experts are kept as one wide MLP: expert e owns columns [e*I, (e+1)*I), and an expert that is
not chosen has weight zero, which is exact and, at this size, faster than gathering tokens.
Checkpoint folders use the released layout: per-expert tensors under `language_model.`.
"""
import json
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

DEFAULT = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2",
    "hidden_size": 256, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 64, "attention_bias": False, "attention_dropout": 0.0,
    "intermediate_size": 768, "moe_intermediate_size": 96, "n_routed_experts": 16,
    "n_shared_experts": 1, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": 4096,
    "max_position_embeddings": 4096, "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
                     "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    "num_nextn_predict_layers": 0, "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1,
    "pretraining_tp": 1, "initializer_range": 0.02, "use_cache": True,
    "bos_token_id": 3840, "eos_token_id": 3841, "pad_token_id": 4095, "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def top_config(text):
    return {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "dtype": "bfloat16", "bos_token_id": text["bos_token_id"], "eos_token_id": text["eos_token_id"],
        "pad_token_id": text["pad_token_id"], "ignore_index": -100,
        "media_placeholder_token_id": text["vocab_size"] - 256 + 21, "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>", "tie_word_embeddings": False,
        "text_config": text,
    }


def yarn(c):
    """(inverse frequencies [rope/2], softmax scale) of the text config."""
    d, base, y = c["qk_rope_head_dim"], c["rope_theta"], c["rope_scaling"]
    s, length = y["factor"], y["original_max_position_embeddings"]

    def dim(turns):
        return d * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(math.floor(dim(y["beta_fast"])), 0), min(math.ceil(dim(y["beta_slow"])), d - 1)
    if low == high:
        high += 0.001
    i = torch.arange(d // 2, dtype=torch.float64)
    f = base ** (-2 * i / d)
    ramp = ((i - low) / (high - low)).clamp(0, 1)
    inv = f * (1 - ramp) + f / s * ramp

    def g(m):
        return 1.0 if s <= 1 else 0.1 * m * math.log(s) + 1.0

    scale = (c["qk_nope_head_dim"] + d) ** -0.5 * g(y["mscale_all_dim"]) ** 2
    return inv.float(), scale


def rms(x, w, eps):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * w.to(x.dtype)


def rotate_pairs(x, cos, sin):
    """Interleaved RoPE: dims 2i and 2i+1 turn together. cos, sin: [..., rope/2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return rms(x, self.weight, self.eps)


def linear(n_in, n_out, gain=1.0):
    m = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(m.weight, std=gain * n_in ** -0.5)
    return m


class Attention(nn.Module):
    def __init__(self, c, scale, depth_gain):
        super().__init__()
        h, heads, eps = c["hidden_size"], c["num_attention_heads"], c["rms_norm_eps"]
        self.heads, self.nope, self.rope = heads, c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        self.v, self.kv_rank, self.scale = c["v_head_dim"], c["kv_lora_rank"], scale
        self.q_a_proj = linear(h, c["q_lora_rank"])
        self.q_a_layernorm = Norm(c["q_lora_rank"], eps)
        self.q_b_proj = linear(c["q_lora_rank"], heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(h, self.kv_rank + self.rope)
        self.kv_a_layernorm = Norm(self.kv_rank, eps)
        self.kv_b_proj = linear(self.kv_rank, heads * (self.nope + self.v))
        self.o_proj = linear(heads * self.v, h, depth_gain)

    def forward(self, x, cos, sin, cache=None, positions=None):
        b, t, _ = x.shape
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, t, self.heads, -1)
        a = self.kv_a_proj_with_mqa(x)
        kv = self.kv_b_proj(self.kv_a_layernorm(a[..., :self.kv_rank])).view(b, t, self.heads, -1)
        k_pe = rotate_pairs(a[..., self.kv_rank:], cos, sin)[:, :, None].expand(-1, -1, self.heads, -1)
        q = torch.cat((q[..., :self.nope],
                       rotate_pairs(q[..., self.nope:], cos[:, :, None], sin[:, :, None])), -1)
        k = torch.cat((kv[..., :self.nope], k_pe.to(kv.dtype)), -1)
        v = F.pad(kv[..., self.nope:], (0, self.nope + self.rope - self.v))  # one width for the kernel
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is None:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        else:
            o = cache.attend(q, k, v, positions, self.scale)
        return self.o_proj(o.transpose(1, 2)[..., :self.v].reshape(b, t, -1))


class Cache:
    """Keys and values [batch, heads, capacity, width] of one layer; rows grow independently."""

    def __init__(self, batch, heads, capacity, width, device, dtype):
        self.k = torch.zeros(batch, heads, capacity, width, device=device, dtype=dtype)
        self.v = torch.zeros_like(self.k)

    def attend(self, q, k, v, positions, scale):
        """positions [batch, t]: where the new entries go; row i sees entries 0..position."""
        rows = torch.arange(k.shape[0], device=k.device)[:, None].expand_as(positions)
        self.k[rows, :, positions] = k.transpose(1, 2).to(self.k.dtype)
        self.v[rows, :, positions] = v.transpose(1, 2).to(self.v.dtype)
        n = int(positions.max()) + 1
        mask = torch.arange(n, device=k.device)[None, None] <= positions[:, :, None]
        return F.scaled_dot_product_attention(q, self.k[:, :, :n].to(q.dtype), self.v[:, :, :n].to(q.dtype),
                                              attn_mask=mask[:, None], scale=scale)


class Mlp(nn.Module):
    def __init__(self, h, i, depth_gain):
        super().__init__()
        self.gate_proj, self.up_proj = linear(h, i), linear(h, i)
        self.down_proj = linear(i, h, depth_gain)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self, c, depth_gain):
        super().__init__()
        h, i, self.e = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
        self.k, self.scaling = c["num_experts_per_tok"], c["routed_scaling_factor"]
        self.gate = nn.Parameter(torch.randn(self.e, h) * 0.02)
        self.register_buffer("bias", torch.zeros(self.e))
        self.gate_proj, self.up_proj = linear(h, self.e * i), linear(h, self.e * i)
        # An expert's own fan-in is i, not e*i: k of them add up.
        self.down_proj = linear(self.e * i, h, depth_gain * self.e ** 0.5 / self.k)
        self.shared = Mlp(h, i * c["n_shared_experts"], depth_gain)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.float() @ self.gate.float().t())
            choice = torch.topk(scores.detach() + self.bias, self.k, -1).indices
            chosen = torch.zeros_like(scores).scatter(-1, choice, 1.0)
            w = scores * chosen
            w = w / (w.sum(-1, keepdim=True) + 1e-20) * self.scaling
        a = F.silu(self.gate_proj(x)) * self.up_proj(x)
        a = a.unflatten(-1, (self.e, -1)) * w.to(a.dtype)[..., None]
        return self.down_proj(a.flatten(-2)) + self.shared(x), chosen.flatten(0, -2).sum(0)


class Layer(nn.Module):
    def __init__(self, c, index, scale):
        super().__init__()
        gain = (2 * c["num_hidden_layers"]) ** -0.5
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = Norm(h, eps), Norm(h, eps)
        self.self_attn = Attention(c, scale, gain)
        self.dense = index < c["first_k_dense_replace"]
        self.mlp = Mlp(h, c["intermediate_size"], gain) if self.dense else Moe(c, gain)

    def forward(self, x, cos, sin, cache=None, positions=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache, positions)
        y = self.mlp(self.post_attention_layernorm(x))
        if self.dense:
            return x + y, None
        return x + y[0], y[1]


class Target(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        inv, scale = yarn(c)
        self.register_buffer("inv_freq", inv, persistent=False)
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(c, i, scale) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = linear(c["hidden_size"], c["vocab_size"])

    def forward(self, ids, positions=None, caches=None, capture=()):
        """(final-norm hidden [b,t,h], expert loads [moe layers, experts], states after `capture`)."""
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        angle = positions[..., None].float() * self.inv_freq
        cos, sin = angle.cos(), angle.sin()
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        loads, states = [], []
        for i, layer in enumerate(self.layers):
            x, load = layer(x, cos, sin, caches[i] if caches else None, positions)
            if load is not None:
                loads.append(load)
            if i in capture:
                states.append(x)
        return self.norm(x), torch.stack(loads), states

    def new_caches(self, batch, capacity):
        c, p = self.c, self.lm_head.weight
        width = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        return [Cache(batch, c["num_attention_heads"], capacity, width, p.device, p.dtype)
                for _ in self.layers]


# ---- checkpoint folders --------------------------------------------------------------------------
def released_tensors(model):
    """name -> tensor in the released layout (BF16; the correction bias in F32)."""
    c, out = model.c, {}
    for name, t in model.state_dict().items():
        t = t.detach().cpu()
        if ".mlp." in name and not name.startswith("layers.0."):
            base = "language_model.model." + name.split(".mlp.")[0] + ".mlp."
            rest = name.split(".mlp.")[1]
            if rest == "gate":
                out[base + "gate.weight"] = t
            elif rest == "bias":
                out[base + "gate.e_score_correction_bias"] = t
            elif rest.startswith("shared."):
                out[base + "shared_experts." + rest[len("shared."):]] = t
            else:
                axis = 1 if rest.startswith("down") else 0
                for e, part in enumerate(t.chunk(c["n_routed_experts"], axis)):
                    out[f"{base}experts.{e}.{rest}"] = part
        elif name.startswith("lm_head"):
            out["language_model." + name] = t
        else:
            out["language_model.model." + name] = t
    return {n: t.float().contiguous() if n.endswith("bias") else t.bfloat16().contiguous()
            for n, t in out.items()}


def load_released(folder, device="cpu"):
    """A Target from a checkpoint folder, weights as stored (BF16 values held in F32)."""
    from safetensors.torch import load_file
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)["text_config"]
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    model = Target(c)
    state = {}
    for name in model.state_dict():
        if ".mlp." in name and not name.startswith("layers.0."):
            base = "language_model.model." + name.split(".mlp.")[0] + ".mlp."
            rest = name.split(".mlp.")[1]
            if rest == "gate":
                state[name] = tensors[base + "gate.weight"]
            elif rest == "bias":
                state[name] = tensors[base + "gate.e_score_correction_bias"]
            elif rest.startswith("shared."):
                state[name] = tensors[base + "shared_experts." + rest[len("shared."):]]
            else:
                parts = [tensors[f"{base}experts.{e}.{rest}"] for e in range(c["n_routed_experts"])]
                state[name] = torch.cat(parts, 1 if rest.startswith("down") else 0)
        else:
            prefix = "language_model." if name.startswith("lm_head") else "language_model.model."
            state[name] = tensors[prefix + name]
    model.load_state_dict({k: v.float() for k, v in state.items()})
    return model.to(device).eval()


def save_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def save_released(model, folder):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    save_file(released_tensors(model), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    c = model.c
    save_json(os.path.join(folder, "config.json"), top_config(c))
    save_json(os.path.join(folder, "generation_config.json"),
              {"bos_token_id": c["bos_token_id"], "eos_token_id": c["vocab_size"] - 254,
               "pad_token_id": c["pad_token_id"], "max_length": c["max_position_embeddings"]})


if __name__ == "__main__":
    m = Target(DEFAULT)
    print(sum(p.numel() for p in m.parameters()) + sum(b.numel() for n, b in m.named_buffers() if n.endswith("bias")))
