#!/usr/bin/env python3
"""Make tests/golden/prune.json: PyramidInfer on tests/golden/tiny/mistral.gguf in double precision.

Needs numpy; only to make the file, not to test. An independent forward pass of the llama architecture
that follows the public code's steps (arXiv:2405.12532; the file for transformers 4.31, its settings for
7B): hidden states, positions and all are gathered between layers; every row of a history of attention
is kept, and scores are taken from it. Not multiplied into the history: the ramp. Without pruning it
must meet the references of tiny/mistral.json, which is checked first.
"""
import json
import math
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT, STEPS = 500, 199
RECENT, LEAST, SINKS, RAMP, TOP, ZONE, STAY, LOW = 0.2, 64, 4, 1.2, 0.9, 16, 0.9, 0.1


def read_gguf(path):
    data = open(path, "rb").read()
    at = 8

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
        if kind == 8:
            return text()
        if kind == 9:
            of, count = take("I"), take("Q")
            return [value(of) for _ in range(count)]
        return take(forms[kind])

    tensors, pairs = take("Q"), take("Q")
    meta = {}
    for _ in range(pairs):
        name = text()
        meta[name] = value(take("I"))
    infos = []
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    base = -(-at // meta.get("general.alignment", 32)) * meta.get("general.alignment", 32)
    weights = {}
    for name, dims, kind, offset in infos:
        of = {0: np.float32, 1: np.float16}[kind]
        count = int(np.prod(dims))
        flat = np.frombuffer(data, of, count, base + offset)
        weights[name] = flat.astype(np.float64).reshape(dims[::-1])
    return meta, weights


class Model:
    def __init__(self, path):
        self.meta, self.w = read_gguf(path)
        arch = self.meta["general.architecture"]
        key = lambda name, *other: self.meta.get(arch + "." + name, *other)
        self.layers, self.heads = key("block_count"), key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv")
        self.dim = key("attention.key_length", key("embedding_length") // self.heads)
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.base = key("rope.freq_base", 10000.0)
        self.pairs = key("rope.dimension_count", self.dim) // 2

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rotate(self, x, positions):
        angle = positions[:, None] * self.base ** (-np.arange(self.pairs) / self.pairs)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        return out

    def layer(self, l, x, positions, past):
        """Of rows behind the entries `past`: new rows, entries, attention [heads, rows, entries]."""
        w = lambda name: self.w["blk.%d.%s.weight" % (l, name)]
        h = self.norm(x, w("attn_norm"))
        q = self.rotate((h @ w("attn_q").T).reshape(len(x), self.heads, self.dim), positions)
        k = self.rotate((h @ w("attn_k").T).reshape(len(x), self.kv_heads, self.dim), positions)
        v = (h @ w("attn_v").T).reshape(len(x), self.kv_heads, self.dim)
        if past is not None:
            k, v = np.concatenate([past[0], k]), np.concatenate([past[1], v])
        group = self.heads // self.kv_heads
        score = np.einsum("ihd,jhd->hij", q, np.repeat(k, group, 1)) / math.sqrt(self.dim)
        first = len(k) - len(x)
        score[:, np.arange(len(k))[None] > first + np.arange(len(x))[:, None]] = -np.inf
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", p, np.repeat(v, group, 1)).reshape(len(x), -1) @ w("attn_output").T
        h = self.norm(x, w("ffn_norm"))
        gate = h @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return x, (k, v), p

    def logits(self, x):
        out = self.w.get("output.weight", self.w["token_embd.weight"])
        return self.norm(x[-1:], self.w["output_norm.weight"])[0] @ out.T


def cosine(low, l, layers):
    return low + (1 - low) * (1 + math.cos(math.pi * l / layers)) / 2


def weigh(history, window):
    """Mean of the last rows of [rows, entries], weights rising from 1."""
    ramp = 1 + (RAMP - 1) * np.arange(window) / max(window - 1, 1)
    return (ramp[:, None] * history[-window:]).mean(0)


def best(score, count, margins):
    """Ascending numbers of the largest; how far the last of them is from the next, of the largest."""
    order = np.argsort(-score, kind="stable")
    if 0 < count < len(score):
        finite = score[np.isfinite(score)]
        margins.append(float((score[order[count - 1]] - score[order[count]]) / finite.max()))
    return np.sort(order[:count])


def prompt(model, ids, prune, margins):
    x, positions = model.w["token_embd.weight"][ids], np.arange(len(ids))
    recent = int(RECENT * len(ids))
    window, state = recent + 1, []
    least = min(LEAST, len(ids) - 1 - recent)
    for l in range(model.layers):
        x, kv, p = model.layer(l, x, positions, None)
        history = p.mean(0)
        state.append({"kv": kv, "at": positions, "base": len(x), "history": history[-window:]})
        context, share = len(x) - window, cosine(TOP, l, model.layers)
        stay = int(context * share)
        if prune and l + 1 < model.layers and context > least and share < 1 and stay > least:
            score = weigh(history, window)[:context]
            score[:SINKS] = np.inf
            keep = np.concatenate([best(score, stay, margins), np.arange(context, len(x))])
            x, positions = x[keep], positions[keep]
    return model.logits(x), state


def step(model, token, position, state, margins):
    x = model.w["token_embd.weight"][[token]]
    recent = int(RECENT * (len(state[0]["at"]) + 1))
    window = recent + 1
    for l, s in enumerate(state):
        x, s["kv"], p = model.layer(l, x, np.array([position]), s["kv"])
        s["at"] = np.append(s["at"], position)
        s["history"] = np.pad(s["history"], ((0, 0), (0, 1)))
        s["history"] = np.concatenate([s["history"], p.mean(0)])[-window:]
        length = len(s["at"])
        if length - recent - s["base"] >= ZONE:
            first = length - window - ZONE
            score = weigh(s["history"], window)[first:first + ZONE]
            stay = max(1, int(ZONE * STAY * cosine(LOW, l, model.layers)))
            keep = np.concatenate([np.arange(first), first + best(score, stay, margins),
                                   np.arange(first + ZONE, length)])
            s["kv"] = tuple(a[keep] for a in s["kv"])
            s["at"], s["history"] = s["at"][keep], s["history"][:, keep]
            s["base"] = len(keep) - recent
    return model.logits(x)


def main():
    model = Model(os.path.join(HERE, "tiny", "mistral.gguf"))
    tiny = json.load(open(os.path.join(HERE, "tiny", "mistral.json")))
    ids = next(s["ids"] for s in tiny["sequences"] if s["n"] == 700)
    want = next(r["values"] for r in tiny["logits"] if r["n"] == 700 and r["kv"] == "f64")
    off = np.abs(prompt(model, ids, False, [])[0] - want).max()
    assert off < 1e-4, off
    margins, rows = [], []
    logits, state = prompt(model, ids[:PROMPT], True, margins)
    note = lambda n: rows.append({"n": n, "values": [float("%.6g" % x) for x in logits],
                                  "entries": [len(s["at"]) for s in state]})
    note(PROMPT)
    for i in range(STEPS):
        logits = step(model, ids[PROMPT + i], PROMPT + i, state, margins)
        if i in (0, 141, 142, 143, 150, 162, STEPS - 1):
            note(PROMPT + i + 1)
    print("off %.2g, margins %.2g, entries %s" % (off, min(margins), [len(s["at"]) for s in state]))
    with open(os.path.join(HERE, "prune.json"), "w") as out:
        json.dump({"model": "tiny/mistral.gguf", "policy": "pyramidinfer", "prompt": PROMPT,
                   "ids": ids[:PROMPT + STEPS], "rows": rows}, out, separators=(",", ":"))
        out.write("\n")


main()
