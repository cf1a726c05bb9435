#!/usr/bin/env python3
"""Make tests/golden/calibration.json: what a calibration measures, of tiny models of four families.

Needs numpy; only to make the file, not to test. An independent forward pass in double precision of
llama, qwen2, qwen3 and gemma3 that keeps every residual, key and query; K and V that are attended to
are rounded to f16, as those of a session are. Its logits must first meet the references of
tiny/MODEL.json (kind f64-kv16).
"""
import json
import math
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ("llama", "qwen2", "qwen3", "gemma3")
TOKENS, DELTA_ROWS, KEY_ROWS = 700, 64, 4


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
    meta, infos, weights = {}, [], {}
    for _ in range(pairs):
        name = text()
        meta[name] = value(take("I"))
    for _ in range(tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    align = meta.get("general.alignment", 32)
    base = -(-at // align) * align
    for name, dims, kind, offset in infos:
        flat = np.frombuffer(data, {0: np.float32, 1: np.float16}[kind], int(np.prod(dims)), base + offset)
        weights[name] = flat.astype(np.float64).reshape(dims[::-1])
    return meta, weights


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, base, pairs, halves):
    """x: [tokens, heads, channels]"""
    angle = np.arange(len(x))[:, None] * base ** (-np.arange(pairs) / pairs)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first = slice(0, pairs) if halves else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if halves else slice(1, 2 * pairs, 2)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attend(q, k, v, scale, window):
    k, v = (np.float16(a).astype(np.float64) for a in (k, v))
    group, n = q.shape[1] // k.shape[1], len(q)
    score = np.einsum("ihd,jhd->hij", q, np.repeat(k, group, 1)) * scale
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    score[:, (distance < 0) | ((distance >= window) if window else False)] = -np.inf
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p, np.repeat(v, group, 1)).reshape(n, -1)


def forward(path, ids):
    """Logits of the last token; of every layer: residual before and after attention, q, k."""
    meta, w = read_gguf(path)
    arch = meta["general.architecture"]
    key = lambda name, *other: meta.get(arch + "." + name, *other)
    heads, kv_heads = key("attention.head_count"), key("attention.head_count_kv")
    width, eps = key("embedding_length"), key("attention.layer_norm_rms_epsilon")
    dim = key("attention.key_length", width // heads)
    pairs = key("rope.dimension_count", dim) // 2
    gemma, halves = arch == "gemma3", arch != "llama"
    x = w["token_embd.weight"][ids] * (math.sqrt(width) if gemma else 1.0)
    kept = []
    for l in range(key("block_count")):
        t = lambda name: w["blk.%d.%s" % (l, name)]
        bias = lambda name: w.get("blk.%d.%s.bias" % (l, name), 0.0)
        post = lambda y, name: norm(y, t(name + ".weight"), eps) if gemma else y
        local = gemma and l % 6 != 5
        base = 10000.0 if local else key("rope.freq_base", 10000.0)
        h = norm(x, t("attn_norm.weight"), eps)
        q, k, v = ((h @ t(name + ".weight").T + bias(name)).reshape(len(x), count, dim)
                   for name, count in (("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads)))
        if "blk.%d.attn_q_norm.weight" % l in w:
            q, k = norm(q, t("attn_q_norm.weight"), eps), norm(k, t("attn_k_norm.weight"), eps)
        raw, q, k = k, rotate(q, base, pairs, halves), rotate(k, base, pairs, halves)
        out = attend(q, k, v, 1 / math.sqrt(dim), key("attention.sliding_window") if local else 0)
        after = x + post(out @ t("attn_output.weight").T, "post_attention_norm")
        kept.append((x, after, q, raw, pairs, halves))
        h = norm(after, t("ffn_norm.weight"), eps)
        gate = h @ t("ffn_gate.weight").T
        gate = (0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3)))
                if gemma else gate / (1 + np.exp(-gate)))
        x = after + post((gate * (h @ t("ffn_up.weight").T)) @ t("ffn_down.weight").T, "post_ffw_norm")
    return norm(x[-1], w["output_norm.weight"], eps) @ w.get("output.weight", w["token_embd.weight"]).T, kept


def measure(kept):
    layers = []
    for l, (x, after, q, k, pairs, halves) in enumerate(kept):
        rows, group = slice(KEY_ROWS, None), q.shape[1] // k.shape[1]
        before, middle = (kept[l - 1][:2]) if l else (x, x)
        cosine = (x * after).sum(-1) / np.sqrt((x * x).sum(-1) * (after * after).sum(-1))
        power = (q[rows] ** 2).mean(0).reshape(k.shape[1], group, -1).mean(1)
        first = np.arange(k.shape[-1] // 2)  # of the channels of a pair
        first = np.where(halves & (first < pairs), first, 2 * first)
        second = np.where(halves & (np.arange(len(first)) < pairs), first + pairs, first + 1)
        spread = k[rows] - k[rows].mean(0)
        values = {"delta_ahead": (x - before)[DELTA_ROWS:].mean(0), "delta_mid": (x - middle)[DELTA_ROWS:].mean(0),
                  "key_mean": k[rows].mean(0), "key_sd": k[rows].std(0),
                  "key_pair": (spread[..., first] * spread[..., second]).mean(0), "query_power": power}
        layers.append({name: [float("%.7g" % v) for v in value.ravel()] for name, value in values.items()})
        layers[-1]["cosine"] = float("%.7g" % cosine[rows].mean())
    return layers


def main():
    made = {}
    for name in MODELS:
        tiny = json.load(open(os.path.join(HERE, "tiny", name + ".json")))
        ids = next(s["ids"] for s in tiny["sequences"] if s["n"] == TOKENS)
        want = next(r["values"] for r in tiny["logits"] if r["n"] == TOKENS and r["kv"] == "f64-kv16")
        logits, kept = forward(os.path.join(HERE, "tiny", name + ".gguf"), ids)
        off = np.abs(logits - want).max()
        assert off < 1e-4, (name, off)
        made[name] = {"ids": ids, "layers": measure(kept)}
        print("%s: off %.2g" % (name, off))
    with open(os.path.join(HERE, "calibration.json"), "w") as out:
        json.dump(made, out, separators=(",", ":"))
        out.write("\n")


main()
