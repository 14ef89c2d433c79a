"""Trains the EAGLE-3 draft against the exported target (its BF16 weights, run in F32).

First the target writes answers to fresh prompts of every kind, greedily and at temperature 0.7;
then the draft learns on those and on fresh generator text, with the target's distribution as the
label of each of the training-time-test steps.
"""
import argparse
import json
import math
import os
import random
import time

import torch
import torch.nn.functional as F

import tokenizer
from data import GIVEN_WEIGHT, document, encode
from decode import generate
from draft import Draft, aux_layers, draft_config, save_draft
from model import load_released
from train_target import Feed

DECAY = 0.8


def prompts_of(rng, enc, n, longest):
    """Prompts that stop where the model has to write: before the last produced part of a document."""
    out = []
    while len(out) < n:
        parts = document(rng)
        cuts = [i for i, (_, produced) in enumerate(parts) if produced and i and not parts[i - 1][1]]
        if not cuts:                                  # prose: its first words
            ids, _ = encode(enc, parts)
            out.append(ids[:rng.randint(4, 24)])
            continue
        cut = rng.choice(cuts)
        ids, _ = encode(enc, parts[:cut])
        if len(ids) <= longest:
            out.append(ids)
    return out


def regenerate(model, enc, rng, waves, batch, length, stop, deadline):
    """Rows [n, length] of prompt + answer and their weights."""
    pad = enc.encode("[PAD]", allowed_special="all")[0]
    rows, weights = [], []
    for wave in range(waves):
        if time.time() > deadline:
            break
        prompts = sorted(prompts_of(rng, enc, batch, length - 100), key=len)
        for part in range(0, batch, batch // 4):
            some = prompts[part:part + batch // 4]
            room = min(200, length - max(map(len, some)))
            temperature = (0.0, 0.7)[wave % 2]
            for p, a in zip(some, generate(model, some, room, stop, temperature, seed=wave * 10 + part)):
                ids = p + a
                rows.append(ids + [pad] * (length - len(ids)))
                weights.append([GIVEN_WEIGHT] * len(p) + [1.0] * len(a) + [0.0] * (length - len(ids)))
    return torch.tensor(rows, dtype=torch.int16), torch.tensor(weights)


def loss_of(draft, head, features, hidden, ids, w, steps):
    """features, hidden: the target's at every position. Row i starts from features[i], token i+1."""
    tokens = ids[:, 1:]
    teacher_hidden = hidden[:, 1:]                    # row i predicts token i+2: teacher at i+1
    w = w[:, 2:]
    total, agree = 0.0, []
    t = tokens.shape[1]
    for s, z in enumerate(draft.rollout(features[:, :-1], tokens, steps)):
        m = t - 1 - s                                 # rows whose label exists
        student = draft.lm_head(z[:, :m]).float()
        with torch.no_grad():
            teacher = head(teacher_hidden[:, s:s + m]).float()
            weight = w[:, s:s + m]
        ce = -(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1)
        total = total + DECAY ** s * (ce * weight).sum() / weight.sum()
        full = (weight == 1).float()
        agree.append(((student.argmax(-1) == teacher.argmax(-1)).float() * full).sum() / full.sum())
    return total, torch.stack(agree)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--target", default=tokenizer.MODEL_DIR)
    ap.add_argument("--seconds", type=float, default=280)
    ap.add_argument("--waves", type=int, default=8)
    ap.add_argument("--wave-seconds", type=float, default=70)
    ap.add_argument("--wave-batch", type=int, default=2048)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--steps", type=int, default=7)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    ap.add_argument("--workers", type=int, default=6)
    ap.add_argument("--seed", type=int, default=77)
    ap.add_argument("--max-steps", type=int, default=10**9)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    feed = Feed(a.workers, a.seed, a.batch * a.length, a.length)
    torch.manual_seed(a.seed)
    enc = tokenizer.load(a.target)
    target = load_released(a.target, device).requires_grad_(False)
    special = enc._special_tokens
    stop = [special["<|im_end|>"], special["[EOS]"]]
    start = time.time()
    rows, weights = regenerate(target, enc, random.Random(a.seed), a.waves, a.wave_batch, a.length, stop, start + a.wave_seconds)
    rows, weights = rows.to(device), weights.to(device)
    print(f"{len(rows)} rows, {int((weights == 1).sum())} generated tokens in {time.time() - start:.0f} s", flush=True)

    torch.set_float32_matmul_precision("high")
    c = draft_config(target.c)
    draft = Draft(c, target.embed_tokens).to(device)
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.lm_head.weight)
        draft.norm.weight.copy_(target.norm.weight)
    opt = torch.optim.AdamW(draft.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=device == "cuda")
    run = torch.compile(loss_of, dynamic=False) if a.compile else loss_of
    layers = aux_layers(c)
    start, step, fresh, log = time.time(), 0, 0, []
    while step < a.max_steps:
        done = (time.time() - start) / a.seconds
        if done >= 1:
            break
        if step % 3 == 2:                             # every third batch: fresh generator text
            while True:
                ids, w = feed.batch(fresh, device)
                fresh += 1
                if ids.shape[1] == a.length:
                    break
        else:
            pick = torch.randint(0, len(rows), (a.batch,), device=device)
            ids, w = rows[pick].long(), weights[pick]
        for group in opt.param_groups:
            group["lr"] = a.lr * min(1.0, (step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        with torch.no_grad():
            hidden, _, states = target(ids, capture=layers)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss, agree = run(draft, target.lm_head, torch.cat(states, -1), hidden, ids, w, a.steps)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 200 == 0 or step in (1, 5):
            line = {"step": step, "s": round(time.time() - start, 1), "loss": round(loss.item(), 4),
                    "agree": [round(x, 3) for x in agree.tolist()]}
            print(json.dumps(line), flush=True)
            log.append(line)
    feed.stop()
    save_draft(draft, a.out)
    with open(os.path.join(a.out, "train_log.json"), "w") as f:
        json.dump({"args": vars(a), "steps": step, "generated_rows": len(rows), "seconds": time.time() - start, "log": log}, f, indent=1)
    print(f"trained {step} steps, {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
