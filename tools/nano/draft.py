"""The EAGLE-3 draft in plain PyTorch: one Llama-style layer over (token embedding, target features).

Entry i joins the target's features of position i with the embedding of token i+1, sits at rope
position i, and predicts token i+2. The embedding is the target's and is not stored.
"""
import json
import os

import torch
import torch.nn.functional as F
from torch import nn

from model import Cache, Mlp, Norm, linear, save_json


def draft_config(target):
    n = target["num_hidden_layers"]
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
        "hidden_size": target["hidden_size"], "intermediate_size": 768, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "attention_bias": False, "mlp_bias": False,
        "rope_theta": 10000.0, "rope_scaling": None,
        "max_position_embeddings": target["max_position_embeddings"],
        "vocab_size": target["vocab_size"], "draft_vocab_size": target["vocab_size"],
        "target_hidden_size": target["hidden_size"], "num_aux_hidden_states": 3,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, n // 2 - 1, n - 4],
                         "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
                         "use_last_layernorm": True, "use_mtp_layernorm": False},
        "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
        "bos_token_id": target["bos_token_id"], "eos_token_id": target["eos_token_id"],
        "pad_token_id": target["pad_token_id"], "tie_word_embeddings": False, "dtype": "bfloat16",
        "initializer_range": 0.02, "use_cache": True,
    }


def aux_layers(c):
    """Ids in the file are post-layer: the residual stream after these layers."""
    return tuple(c["eagle_config"]["eagle_aux_hidden_state_layer_ids"])


def rotate_half(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class DraftAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.heads, self.d = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
        w = self.heads * self.d
        self.q_proj, self.k_proj, self.v_proj = linear(2 * h, w), linear(2 * h, w), linear(2 * h, w)
        self.o_proj = linear(w, h, 0.5)
        inv = c["rope_theta"] ** (-torch.arange(0, self.d, 2).double() / self.d)
        self.register_buffer("inv_freq", inv.float(), persistent=False)

    def qkv(self, u, positions):
        """[b, heads, t, d] each, rotated for `positions` [b or 1, t]."""
        angle = positions[..., None].float() * self.inv_freq
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        q, k, v = (p(u).unflatten(-1, (self.heads, self.d)).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        return rotate_half(q, cos, sin), rotate_half(k, cos, sin), v

    def out(self, o):
        return self.o_proj(o.transpose(1, 2).flatten(-2))


class MidLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm = Norm(h, eps), Norm(h, eps)
        self.post_attention_layernorm = Norm(h, eps)
        self.self_attn = DraftAttention(c)
        self.mlp = Mlp(h, c["intermediate_size"], 0.5)

    def inputs(self, e, g):
        return torch.cat((self.input_layernorm(e), self.hidden_norm(g)), -1)

    def finish(self, g, o):
        r = g + self.self_attn.out(o)
        return r + self.mlp(self.post_attention_layernorm(r))


class Draft(nn.Module):
    def __init__(self, c, embed):
        super().__init__()
        self.c = c
        self.embed = [embed]        # in a list: the target owns it
        h = c["hidden_size"]
        self.fc = linear(3 * c["target_hidden_size"], h)
        self.midlayer = MidLayer(c)
        self.norm = Norm(h, c["rms_norm_eps"])
        self.lm_head = linear(h, c["vocab_size"])

    def step(self, tokens, g, positions, cache):
        """One cached pass over [b, t] entries: (logits, y). g is fc(features) or the last y."""
        u = self.midlayer.inputs(self.embed[0](tokens), g)
        q, k, v = self.midlayer.self_attn.qkv(u, positions)
        o = cache.attend(q, k, v, positions, self.c["head_dim"] ** -0.5)
        y = self.midlayer.finish(g, o)
        return self.lm_head(self.norm(y)), y

    def rollout(self, features, tokens, steps):
        """Training-time test. tokens[:, i] goes with features[:, i] (already shifted by one).

        Yields the final-norm output of every step; row i of step k reads token i+k at position i+k,
        sees the true entries up to i and its own entries of steps 1..k.
        """
        attn, scale = self.midlayer.self_attn, self.c["head_dim"] ** -0.5
        b, t = tokens.shape
        g = self.fc(features)
        at = torch.arange(t, device=tokens.device)[None]
        causal = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
        base_k = base_v = None
        own = []
        for s in range(steps):
            shifted = F.pad(tokens[:, s:], (0, s))
            u = self.midlayer.inputs(self.embed[0](shifted).to(g.dtype), g)
            q, k, v = attn.qkv(u, at + s)
            if s == 0:
                base_k, base_v = k, v
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
            else:
                own.append((k, v))
                score = (q @ base_k.transpose(-1, -2)).float() * scale
                score = score.masked_fill(causal, float("-inf"))
                side = torch.stack([(q * k2).sum(-1).float() * scale for k2, _ in own], -1)
                p = torch.cat((score, side), -1).softmax(-1).to(v.dtype)
                o = p[..., :t] @ base_v
                for j, (_, v2) in enumerate(own):
                    o = o + p[..., t + j, None] * v2
            g = self.midlayer.finish(g, o)
            yield self.norm(g)

    def new_cache(self, batch, capacity):
        p = self.lm_head.weight
        return Cache(batch, self.c["num_attention_heads"], capacity, self.c["head_dim"], p.device, p.dtype)


def save_draft(draft, folder):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    save_file({n: t.detach().cpu().bfloat16().contiguous() for n, t in draft.state_dict().items()},
              os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_json(os.path.join(folder, "config.json"), draft.c)


def load_draft(folder, embed, device="cpu"):
    from safetensors.torch import load_file
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    draft = Draft(c, embed)
    draft.load_state_dict({k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()})
    return draft.to(device).eval()
