"""Trains the nano target on freshly generated rows and writes the checkpoint folder.

The run is as long as --seconds says: the learning rate follows the share of that time that has
passed, so a faster machine simply sees more tokens. Workers make the batches in a fixed order.
"""
import argparse
import json
import math
import multiprocessing as mp
import os
import time

import torch
import torch.nn.functional as F

import tokenizer
from data import Packer
from model import DEFAULT, Target, save_released

LONG_EVERY = 6          # one batch in six holds rows of four times the length


def shape_of(step, tokens, length):
    n = length * 4 if step % LONG_EVERY == LONG_EVERY - 1 else length
    return tokens // n, n


def worker(index, count, seed, tokens, length, queue):
    """Batches index, index+count, ... of the endless run."""
    torch.set_num_threads(1)
    enc = tokenizer.load()
    packers = {n: Packer(enc, seed * 1000003 + index * 101 + n, n) for n in (length, length * 4)}
    step = index
    while True:
        rows, n = shape_of(step, tokens, length)
        queue.put(packers[n].rows(rows))
        step += count


class Feed:
    def __init__(self, workers, seed, tokens, length):
        ctx = mp.get_context("spawn")
        self.queues = [ctx.Queue(4) for _ in range(workers)]
        self.procs = [ctx.Process(target=worker, args=(i, workers, seed, tokens, length, q), daemon=True)
                      for i, q in enumerate(self.queues)]
        for p in self.procs:
            p.start()

    def batch(self, step, device):
        ids, w = self.queues[step % len(self.queues)].get(timeout=120)   # a dead worker ends the run
        return (torch.from_numpy(ids).to(device, non_blocking=True).long(),
                torch.from_numpy(w).to(device, non_blocking=True).float())

    def stop(self):
        for p in self.procs:
            p.terminate()


def loss_of(model, ids, w):
    """Weighted next-token loss, its unweighted value on produced text, and the expert loads."""
    hidden, loads, _ = model(ids[:, :-1])
    logits = model.lm_head(hidden).flatten(0, 1)
    ce = F.cross_entropy(logits.float(), ids[:, 1:].flatten(), reduction="none")
    w = w[:, 1:].flatten()
    full = (w == 1).float()
    return ((ce * w).sum() / w.sum(), (ce.detach() * full).sum() / full.sum(), loads)


def balance(model, loads, rate):
    """Aux-free balancing: an expert that got less than its share is chosen more easily next time."""
    for layer, load in zip((l for l in model.layers if not l.dense), loads):
        layer.mlp.bias += rate * torch.sign(load.mean() - load)
        layer.mlp.bias -= layer.mlp.bias.mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seconds", type=float, default=390)
    ap.add_argument("--tokens", type=int, default=65536, help="tokens a step")
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--seed", type=int, default=20)
    ap.add_argument("--max-steps", type=int, default=10**9)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    feed = Feed(a.workers, a.seed, a.tokens, a.length)
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    model = Target(DEFAULT).to(device)
    decay = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    plain = [p for n, p in model.named_parameters() if not (p.dim() > 1 and "embed" not in n)]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
                            lr=a.lr, betas=(0.9, 0.95), fused=device == "cuda")
    run = torch.compile(loss_of, dynamic=False) if a.compile else loss_of
    start, step, seen, mean, log = time.time(), 0, 0, None, []
    while step < a.max_steps:
        ids, w = feed.batch(step, device)
        t = time.time() - start
        done = t / a.seconds
        if done >= 1:
            break
        lr = a.lr * min(1.0, (step + 1) / 200) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in opt.param_groups:
            group["lr"] = lr
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            # Only the common shape is compiled: compiling the second one costs more than it gains.
            loss, full, loads = (run if ids.shape[1] == a.length else loss_of)(model, ids, w)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            if done < 0.9:
                balance(model, loads, 2e-3 if done < 0.6 else 5e-4)
        step += 1
        seen += ids.numel()
        if step % 20 == 0:
            full = full.item()
            mean = full if mean is None else 0.9 * mean + 0.1 * full
        if step % 200 == 0 or step in (1, 5, 20):
            worst = (loads.max(-1).values / loads.mean(-1)).max().item()
            line = {"step": step, "s": round(t, 1), "tokens": seen, "loss": mean and round(mean, 4),
                    "lr": round(lr, 6), "norm": round(norm.item(), 3), "worst_load": round(worst, 2)}
            print(json.dumps(line), flush=True)
            log.append(line)
    feed.stop()
    model = model.float()
    save_released(model, a.out)
    with open(os.path.join(a.out, "train_log.json"), "w") as f:
        json.dump({"args": vars(a), "steps": step, "tokens": seen, "seconds": time.time() - start,
                   "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "log": log}, f, indent=1)
    print(f"trained {step} steps, {seen} tokens, {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
