"""Golden dumps of the bundled pair: the target through transformers, the draft from the formulas.

`python make_golden.py` (PyTorch, transformers 5.17, safetensors, tiktoken) writes
tests/golden/{target,draft}.safetensors and index.json; tests/golden/README.md has the layout.
It stops if our own PyTorch model differs from transformers by more than 1e-4, or if one of the
chosen greedy continuations is not the same in bfloat16: a golden token must not hang on a rounding.
"""
import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../nano"))

import tokenizer                                      # noqa: E402
from decode import generate                           # noqa: E402
from draft import load_draft                          # noqa: E402
from model import load_released                       # noqa: E402

ROOT = os.path.join(HERE, "../..")
TARGET = os.path.join(ROOT, "models/kimi-k2.5-nano")
DRAFT = os.path.join(ROOT, "models/kimi-k2.5-nano-eagle3")
OUT = os.path.join(ROOT, "tests/golden")
NUM_GREEDY, LENGTH, CHAIN = 20, 64, 6
CANDIDATES, LONGEST = 64, 320
MARGIN = 0.05            # least distance of the two best logits in a chosen continuation


def oracle(dtype):
    """transformers' DeepseekV3ForCausalLM with the nano's weights."""
    from transformers import DeepseekV3ForCausalLM
    from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25Config
    with open(os.path.join(TARGET, "config.json")) as f:
        raw = json.load(f)
    text = dict(raw["text_config"])
    for name in ("architectures", "dtype"):
        text.pop(name)
    config = Kimi_K25Config(text_config=text).text_config
    assert type(config).__name__ == "DeepseekV3Config" and config.rope_parameters["rope_type"] == "yarn"
    config._attn_implementation = "eager"
    model = DeepseekV3ForCausalLM(config)
    tensors = load_file(os.path.join(TARGET, "model.safetensors"))
    state = {}
    for name in model.state_dict():
        source = "language_model." + name
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            base = source.rsplit(".", 1)[0]
            rows = []
            for e in range(config.n_routed_experts):
                if name.endswith("down_proj"):
                    rows.append(tensors[f"{base}.{e}.down_proj.weight"])
                else:
                    rows.append(torch.cat([tensors[f"{base}.{e}.{p}_proj.weight"] for p in ("gate", "up")]))
            state[name] = torch.stack(rows)
        else:
            state[name] = tensors[source]
    model.load_state_dict({k: v.float() for k, v in state.items()})
    for name, module in model.named_modules():
        # The serving engines give the two latent norms the model's epsilon, not the class default.
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = config.rms_norm_eps
    model = model.eval()
    if dtype == torch.bfloat16:
        biases = {n: b.clone() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
        freqs = model.model.rotary_emb.inv_freq.clone()
        model = model.to(dtype)
        for n, b in model.named_buffers():
            if n in biases:
                b.data = biases[n]
        model.model.rotary_emb.inv_freq = torch.nn.Buffer(freqs, persistent=False)
    return model


@torch.no_grad()
def states_of(model, ids):
    """(residual stream after each layer, after the final norm, logits), [T, ...] each, in float32."""
    caught = []
    hooks = [layer.register_forward_hook(lambda m, i, o: caught.append(o[0] if isinstance(o, tuple) else o))
             for layer in model.model.layers]
    norms = []
    hooks.append(model.model.norm.register_forward_hook(lambda m, i, o: norms.append(o)))
    logits = model(torch.tensor([ids]), use_cache=False).logits
    for h in hooks:
        h.remove()
    return [c[0].float() for c in caught], norms[0][0].float(), logits[0].float()


@torch.no_grad()
def check_greedy(model, prompt, tokens):
    """(whether `tokens` is the greedy continuation, smallest distance of the two best logits).

    One pass over prompt and continuation: a sequence whose every token is the best one after what
    stands before it is what greedy decoding writes.
    """
    logits = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0, len(prompt) - 1:].float()
    two = logits.topk(2)
    return two.indices[:, 0].tolist() == tokens, (two.values[:, 0] - two.values[:, 1]).min().item()


class PlainDraft:
    """EAGLE-3 from its formulas, on the stored tensors, float32, no cache: entries are recomputed."""

    def __init__(self):
        with open(os.path.join(DRAFT, "config.json")) as f:
            self.c = json.load(f)
        self.w = {k: v.float() for k, v in load_file(os.path.join(DRAFT, "model.safetensors")).items()}
        self.embed = load_file(os.path.join(TARGET, "model.safetensors"))["language_model.model.embed_tokens.weight"].float()

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w[name + ".weight"]

    def mat(self, name, x):
        return x @ self.w[name + ".weight"].T

    def rope(self, x, positions):
        d = self.c["head_dim"]
        angle = positions[:, None] * self.c["rope_theta"] ** (-torch.arange(0, d, 2).float() / d)
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        turned = torch.cat((-x[..., d // 2:], x[..., :d // 2]), -1)
        return x * cos + turned * sin

    def layer(self, tokens, g):
        """y for entries 0..n-1: token i+1 with feature i, each seeing the entries before it."""
        n, heads, d = len(tokens), self.c["num_attention_heads"], self.c["head_dim"]
        u = torch.cat((self.norm(self.embed[tokens], "midlayer.input_layernorm"), self.norm(g, "midlayer.hidden_norm")), -1)
        positions = torch.arange(n).float()
        q, k, v = (self.mat(f"midlayer.self_attn.{p}_proj", u).view(n, heads, d).transpose(0, 1) for p in "qkv")
        scores = self.rope(q, positions) @ self.rope(k, positions).transpose(1, 2) / math.sqrt(d)
        scores = scores + torch.full((n, n), -math.inf).triu(1)
        o = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, heads * d)
        r = g + self.mat("midlayer.self_attn.o_proj", o)
        m = self.norm(r, "midlayer.post_attention_layernorm")
        return r + self.mat("midlayer.mlp.down_proj", F.silu(self.mat("midlayer.mlp.gate_proj", m)) * self.mat("midlayer.mlp.up_proj", m))

    def logits(self, y):
        return self.mat("lm_head", self.norm(y, "norm"))

    @torch.no_grad()
    def teacher_forced(self, tokens, features):
        """Logits of entries 0..T-2."""
        return self.logits(self.layer(torch.tensor(tokens[1:]), self.mat("fc", features[:-1])))

    @torch.no_grad()
    def chain(self, tokens, following, features, k):
        """k greedy drafts after `following`; a drafted entry is fed the y of the entry before it."""
        ids, g, out = [*tokens[1:], following], self.mat("fc", features), []
        for _ in range(k):
            y = self.layer(torch.tensor(ids), g)
            out.append(self.logits(y[-1]).argmax().item())
            ids.append(out[-1])
            g = torch.cat((g, y[-1:]))
        return out


def main():
    enc = tokenizer.load(TARGET)
    ids = lambda text: enc.encode(text, allowed_special="all")
    with open(os.path.join(ROOT, "data/prompts/golden-candidates.jsonl"), encoding="utf-8") as f:
        candidates = [json.loads(line)["prompt"] for line in f]
    own = load_released(TARGET)
    hf, hf16 = oracle(torch.float32), oracle(torch.bfloat16)
    assert torch.allclose(hf.model.rotary_emb.inv_freq, own.inv_freq, rtol=1e-6)

    # Our model writes the continuations; transformers confirms each, in float32 and in bfloat16.
    prompts = [p for p in map(ids, candidates) if len(p) <= LONGEST][:CANDIDATES]
    sure = []
    for p, tokens in zip(prompts, generate(own, prompts, LENGTH, [])):
        same, margin = check_greedy(hf, p, tokens)
        assert same or margin < MARGIN, "our model and transformers disagree"
        if same and margin >= MARGIN:
            sure.append((margin, p, tokens))
    print(f"{len(sure)} of {len(prompts)} continuations have a margin of {MARGIN}", flush=True)
    sure.sort(key=lambda s: -s[0])
    target, index, g = {}, {"greedy": [], "prompts": []}, 0
    for margin, p, tokens in sure:
        if not check_greedy(hf16, p, tokens)[0]:
            print(f"left out, differs in bfloat16: margin {margin:.4f}", flush=True)
            continue
        target[f"greedy{g}.prompt"], target[f"greedy{g}.tokens"] = torch.tensor(p), torch.tensor(tokens)
        index["greedy"].append({"prompt": enc.decode(p), "text": enc.decode(tokens), "least_margin": round(margin, 4)})
        g += 1
        if g == NUM_GREEDY:
            break
    assert g == NUM_GREEDY, f"only {g} continuations are sure enough"

    draft, plain = load_draft(DRAFT, own.embed_tokens), PlainDraft()
    layers = plain.c["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    golden_draft, worst = {}, 0.0
    chosen = [min((s[1] for s in sure), key=len)[:40], sure[0][1], max((s[1] for s in sure), key=len)]
    for i, p in enumerate(chosen):
        states, final, logits = states_of(hf, p)
        with torch.no_grad():
            mine, _, mine_states = own(torch.tensor([p]), capture=range(len(states)))
        for a, b in [(own.lm_head(mine)[0], logits), (mine[0], final), *((x[0], y) for x, y in zip(mine_states, states))]:
            worst = max(worst, ((a - b).norm(dim=-1) / b.norm(dim=-1)).max().item())
        at = sorted({0, 1, len(p) // 4, len(p) // 2, len(p) - 2, len(p) - 1})
        target[f"prompt{i}.tokens"], target[f"prompt{i}.positions"] = torch.tensor(p), torch.tensor(at)
        target[f"prompt{i}.logits"] = logits[at].contiguous()
        target[f"prompt{i}.logits_bf16"] = states_of(hf16, p)[2][at].contiguous()
        if i == 0:
            for n, s in enumerate(states):
                target[f"prompt0.layer{n}"] = s.contiguous()
            target["prompt0.final_norm"] = final.contiguous()
        features = torch.cat([states[n] for n in layers], -1)
        forced = plain.teacher_forced(p, features)
        with torch.no_grad():
            rolled = next(draft.rollout(features[None, :-1], torch.tensor([p[1:]]), 1))
            worst = max(worst, ((draft.lm_head(rolled)[0] - forced).norm(dim=-1) / forced.norm(dim=-1)).max().item())
        at = sorted({0, 1, len(p) // 4, len(p) // 2, len(p) - 3, len(p) - 2})
        golden_draft[f"prompt{i}.tokens"], golden_draft[f"prompt{i}.positions"] = torch.tensor(p), torch.tensor(at)
        golden_draft[f"prompt{i}.logits"] = forced[at].contiguous()
        index["prompts"].append({"text": enc.decode(p), "tokens": len(p)})
    assert worst < 1e-4, worst

    for c in range(12):
        # From inside the greedy continuations: what a served request asks of the draft.
        p = target[f"greedy{c}.prompt"].tolist() + target[f"greedy{c}.tokens"].tolist()[:c * 4]
        states, _, logits = states_of(hf, p)
        following = logits[-1].argmax().item()
        chain = plain.chain(p, following, torch.cat([states[n] for n in layers], -1), CHAIN)
        golden_draft[f"chain{c}.prompt"], golden_draft[f"chain{c}.next"] = torch.tensor(p), torch.tensor([following])
        golden_draft[f"chain{c}.tokens"] = torch.tensor(chain)

    import transformers
    index["made_with"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    index["worst_difference_to_our_pytorch"] = worst
    save_file(target, os.path.join(OUT, "target.safetensors"))
    save_file(golden_draft, os.path.join(OUT, "draft.safetensors"))
    with open(os.path.join(OUT, "index.json"), "w", encoding="utf-8") as f:
        json.dump(index, f, indent=1, ensure_ascii=False)
        f.write("\n")
    print(f"worst difference to our PyTorch {worst:.2e}")


if __name__ == "__main__":
    main()
