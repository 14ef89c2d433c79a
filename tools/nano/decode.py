"""Batched decoding with the PyTorch pair: plain and speculative, every sequence at its own length.

Greedy speculative decoding follows the engine's rules (chain of K, catch-up over the K+1 verified
rows, prefix match), so its acceptance length is the served one, not a teacher-forced estimate.
"""
import torch
import torch.nn.functional as F

from draft import aux_layers


def pad_prompts(prompts, capacity, device):
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    tokens = torch.zeros(len(prompts), capacity, dtype=torch.long, device=device)
    for i, p in enumerate(prompts):
        tokens[i, :len(p)] = torch.tensor(p, device=device)
    return tokens, lengths


def put(tokens, at, values):
    """tokens[i, at[i]] = values[i]"""
    tokens.scatter_(1, at[:, None], values[:, None])


def ends(token, stop):
    hit = torch.zeros_like(token, dtype=torch.bool)
    for s in stop:
        hit |= token == s
    return hit


@torch.no_grad()
def generate(model, prompts, max_new, stop, temperature=0.0, seed=0):
    """List of generated ids, the stop token included."""
    device = model.lm_head.weight.device
    capacity = max(map(len, prompts)) + max_new
    tokens, n = pad_prompts(prompts, capacity, device)
    caches = model.new_caches(len(prompts), capacity)
    rng = torch.Generator(device=device).manual_seed(seed)
    longest = int(n.max())
    pos = torch.arange(longest, device=device)[None].expand(len(prompts), -1)
    hidden, _, _ = model(tokens[:, :longest], pos, caches)
    last = hidden.gather(1, (n - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))
    start, done = n.clone(), torch.zeros_like(n, dtype=torch.bool)
    for step in range(max_new):
        logits = model.lm_head(last)[:, 0].float()
        if temperature > 0:
            token = torch.multinomial((logits / temperature).softmax(-1), 1, generator=rng)[:, 0]
        else:
            token = logits.argmax(-1)
        put(tokens, n, torch.where(done, tokens.gather(1, n.clamp(max=capacity - 1)[:, None])[:, 0], token))
        n = n + (~done).long()
        done |= ends(token, stop)
        if bool(done.all()) or step == max_new - 1:
            break
        at = (n - 1)[:, None]
        last, _, _ = model(tokens.gather(1, at), at, caches)
    out = []
    for i in range(len(prompts)):
        out.append(tokens[i, int(start[i]):int(n[i])].tolist())
    return out


@torch.no_grad()
def speculate(model, draft, prompts, max_new, stop, k):
    """Greedy speculative decoding: (generated ids, rounds per sequence, accepted per position [k])."""
    device = model.lm_head.weight.device
    b, capacity = len(prompts), max(map(len, prompts)) + max_new + k + 2
    tokens, n = pad_prompts(prompts, capacity, device)
    layers = aux_layers(draft.c)
    caches, dcache = model.new_caches(b, capacity), draft.new_cache(b, capacity)
    longest = int(n.max())
    pos = torch.arange(longest, device=device)[None].expand(b, -1)
    hidden, _, states = model(tokens[:, :longest], pos, caches, capture=layers)
    last = hidden.gather(1, (n - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))
    put(tokens, n, model.lm_head(last)[:, 0].argmax(-1))
    start = n.clone()
    n = n + 1
    features, first = torch.cat(states, -1), torch.zeros_like(n)   # features[:, j] is position first+j
    done = ends(tokens.gather(1, (n - 1)[:, None])[:, 0], stop)
    rounds, per_pos = torch.zeros_like(n), torch.zeros(k, dtype=torch.long, device=device)
    offsets = torch.arange(k + 1, device=device)[None]
    while True:
        # Catch-up: one entry for every position with fresh features; the last true one is n-2.
        at = first[:, None] + torch.arange(features.shape[1], device=device)[None]
        nxt = tokens.gather(1, (at + 1).clamp(max=capacity - 1))
        logits, y = draft.step(nxt, draft.fc(features), at, dcache)
        row = (n - 2 - first).clamp(min=0)[:, None, None]   # (a finished sequence has none)
        logits = logits.gather(1, row.expand(-1, 1, logits.shape[-1]))
        y = y.gather(1, row.expand(-1, 1, y.shape[-1]))
        chain = [logits[:, 0].argmax(-1)]
        for j in range(1, k):
            logits, y = draft.step(chain[-1][:, None], y, (n - 2 + j)[:, None], dcache)
            chain.append(logits[:, 0].argmax(-1))
        d = torch.stack(chain, 1)
        rows = torch.cat((tokens.gather(1, (n - 1)[:, None]), d), 1)
        at = (n - 1)[:, None] + offsets
        hidden, _, states = model(rows, at, caches, capture=layers)
        truth = model.lm_head(hidden).argmax(-1)                    # [b, k+1]
        match = (truth[:, :k] == d).long().cumprod(1)
        # Tokens of this round: accepted drafts, then the target's own; cut behind a stop token.
        accepted = match.sum(1)
        emit = torch.where(offsets < accepted[:, None], F.pad(d, (0, 1)), truth)
        count = accepted + 1
        stops = ends(emit, stop) & (offsets < count[:, None])
        count = torch.where(stops.any(1), stops.int().argmax(1) + 1, count)
        live = ~done
        rounds += live.long()
        per_pos += (match * live[:, None].long()).sum(0)
        for j in range(k + 1):
            old = tokens.gather(1, (n + j).clamp(max=capacity - 1)[:, None])[:, 0]
            put(tokens, (n + j).clamp(max=capacity - 1), torch.where(live & (j < count), emit[:, j], old))
        features, first = torch.cat(states, -1), n - 1
        grown = n + torch.where(live, count, torch.zeros_like(count))
        done = done | (live & stops.any(1)) | (grown - start >= max_new)
        n = grown
        # A finished sequence keeps its rows inside the buffers and is computed but not counted.
        if bool(done.all()):
            break
    out = [tokens[i, int(start[i]):int(n[i])].tolist()[:max_new] for i in range(b)]
    return out, rounds.tolist(), per_pos.tolist()
