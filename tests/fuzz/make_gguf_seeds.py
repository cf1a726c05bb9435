#!/usr/bin/env python3
"""Writes the seeds of fuzz_gguf: the least models of each kind, some KB each. Standard library only."""
import pathlib
import struct

U32, F32, BOOL, STR = 4, 6, 7, 8
WIDTH, VOCAB, Q4_0 = 32, 8, 2


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(kind, v):
    return text(v) if kind == STR else struct.pack({U32: "<I", F32: "<f", BOOL: "<?"}[kind], v)


def key(name, kind, v):
    if isinstance(v, list):
        body = struct.pack("<IIQ", 9, kind, len(v)) + b"".join(value(kind, x) for x in v)
    else:
        body = struct.pack("<I", kind) + value(kind, v)
    return text(name) + body


def tensors(arch):
    matrix, vector = (lambda rows: (Q4_0, [WIDTH, rows])), (0, [WIDTH])
    out = {"token_embd.weight": matrix(VOCAB), "output_norm.weight": vector}
    b = "blk.0."
    out[b + "attn_norm.weight"] = out[b + "ffn_norm.weight"] = vector
    if arch == "phi3":
        out |= {b + "attn_qkv.weight": matrix(96), b + "ffn_up.weight": matrix(64), "output.weight": matrix(VOCAB)}
    else:
        names = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
        out |= {f"{b}{name}.weight": matrix(32) for name in names}
    out |= {b + "attn_output.weight": matrix(32), b + "ffn_down.weight": matrix(32)}
    if arch in ("qwen3", "gemma3"):
        out |= {b + "attn_q_norm.weight": (0, [16]), b + "attn_k_norm.weight": (0, [16])}
    if arch.startswith("gemma"):
        out |= {b + "post_attention_norm.weight": vector, b + "post_ffw_norm.weight": vector}
    if arch == "qwen2":
        out |= {f"{b}attn_{x}.bias": vector for x in "qkv"}
    if arch == "llama":
        out["rope_freqs.weight"] = (0, [8])
    return out


def model(arch):
    keys = [key("general.architecture", STR, arch), key("general.name", STR, "seed"),
            key("tokenizer.ggml.model", STR, "gpt2"), key("tokenizer.ggml.tokens", STR, list("abcdefgh"))]
    numbers = {"block_count": 1, "context_length": 64, "embedding_length": WIDTH, "feed_forward_length": 32,
               "attention.head_count": 2, "vocab_size": VOCAB}
    keys += [key(f"{arch}.{k}", U32, v) for k, v in numbers.items()]
    keys.append(key(f"{arch}.attention.head_count_kv", U32, [2]))
    keys.append(key(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5))
    keys.append(key(f"{arch}.rope.freq_base", F32, 10000.0))
    if arch == "llama":
        keys += [key("llama.rope.scaling.type", STR, "yarn"), key("llama.rope.scaling.factor", F32, 4.0),
                 key("llama.rope.scaling.original_context_length", U32, 16), key("llama.expert_count", U32, 0)]
    if arch in ("gemma2", "gemma3", "phi3"):
        keys.append(key(f"{arch}.attention.sliding_window", U32, 16))
    if arch == "gemma3":
        keys.append(key("gemma3.attention.sliding_window_pattern", BOOL, [True]))
    infos, data = b"", b""
    table = tensors(arch)
    for name, (kind, dims) in table.items():
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        size = dims[0] * 4 if kind == 0 else dims[1] * 18
        data += (struct.pack("<f", 1.0) * (size // 4) if kind == 0 else bytes(size)) + bytes(-size % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(table), len(keys)) + b"".join(keys) + infos
    return head + bytes(-len(head) % 32) + data


def main():
    folder = pathlib.Path(__file__).resolve().parent / "corpus" / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    for arch in ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"):
        (folder / f"{arch}.gguf").write_bytes(model(arch))


if __name__ == "__main__":
    main()
