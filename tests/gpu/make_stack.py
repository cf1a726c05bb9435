#!/usr/bin/env python3
"""Write a GGUF model of layers with the shapes of Llama-3-70B and weights from a seed.

It says nothing, but a step costs what a step of such layers costs: Q4_K matrices, 64 heads of 128 on 8 KV heads,
8192 channels, 28672 in the feed-forward. 481 MB a layer. Shapes: arXiv:2407.21783, table 3.
"""
import argparse
import os
import random
import struct

Q4_K, F32 = 12, 0
BLOCK_VALUES, BLOCK_BYTES = 256, 144
STRING, UINT32, FLOAT32 = 8, 4, 6
ALIGNMENT = 32


def half(value):
    return struct.pack("<e", value)


def q4_k(rng, rows, cols):
    """Blocks of {d f16, dmin f16, 12 bytes of scales and mins, 128 bytes of codes}: all random but d and dmin, which
    make weights of some 0.5 / sqrt(cols) around 0: a scale is 32 and a code 7.5 on average."""
    blocks = rows * cols // BLOCK_VALUES
    data = bytearray(rng.randbytes(blocks * BLOCK_BYTES))
    step = 0.5 / cols**0.5 / (32 * 4.6)
    for at, byte in enumerate(half(step) + half(step * 7.5)):
        data[at::BLOCK_BYTES] = bytes([byte]) * blocks
    return data


def key(name, kind, value):
    raw = name.encode()
    out = struct.pack("<Q", len(raw)) + raw + struct.pack("<I", kind)
    if kind == STRING:
        return out + struct.pack("<Q", len(value)) + value.encode()
    return out + struct.pack("<I" if kind == UINT32 else "<f", value)


def keys(options):
    head = options.width // options.heads
    return [
        key("general.architecture", STRING, "llama"),
        key("llama.context_length", UINT32, options.context),
        key("llama.embedding_length", UINT32, options.width),
        key("llama.block_count", UINT32, options.layers),
        key("llama.feed_forward_length", UINT32, options.feed_forward),
        key("llama.attention.head_count", UINT32, options.heads),
        key("llama.attention.head_count_kv", UINT32, options.kv_heads),
        key("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        key("llama.rope.freq_base", FLOAT32, 500000.0),
        key("llama.rope.dimension_count", UINT32, head),
        key("llama.vocab_size", UINT32, options.vocab),
        key("tokenizer.ggml.model", STRING, "no_vocab"),
    ]


def tensors(options):
    """(name, rows, cols): cols 0 is a vector."""
    kv = options.width // options.heads * options.kv_heads
    width, inner = options.width, options.feed_forward
    yield "token_embd.weight", options.vocab, width
    for layer in range(options.layers):
        for name, rows, cols in (("attn_norm", width, 0), ("attn_q", width, width), ("attn_k", kv, width),
                                 ("attn_v", kv, width), ("attn_output", width, width), ("ffn_norm", width, 0),
                                 ("ffn_gate", inner, width), ("ffn_up", inner, width), ("ffn_down", width, inner)):
            yield f"blk.{layer}.{name}.weight", rows, cols
    yield "output_norm.weight", width, 0


def write(options, out):
    table, offset, sizes = b"", 0, []
    for name, rows, cols in tensors(options):
        raw = name.encode()
        dims = [cols, rows] if cols else [rows]
        size = rows * cols // BLOCK_VALUES * BLOCK_BYTES if cols else rows * 4
        table += struct.pack("<Q", len(raw)) + raw + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        table += struct.pack("<IQ", Q4_K if cols else F32, offset)
        sizes.append(size)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    head = keys(options)
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(sizes), len(head)) + b"".join(head) + table)
    out.write(b"\0" * (-out.tell() % ALIGNMENT))
    rng, made = random.Random(options.seed), {}
    for (_, rows, cols), size in zip(tensors(options), sizes):
        if not cols:
            data = struct.pack("<f", 1.0) * rows
        else:  # equal shapes get equal weights: making them is slower than a disk
            if (rows, cols) not in made:
                made[(rows, cols)] = q4_k(rng, rows, cols)
            data = made[(rows, cols)]
        out.write(data)
        out.write(b"\0" * (-size % ALIGNMENT))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", help="file to write")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--feed-forward", type=int, default=28672)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--context", type=int, default=262144)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.width % BLOCK_VALUES or options.feed_forward % BLOCK_VALUES:
        parser.error("--width and --feed-forward: multiples of 256, the values of a Q4_K block")
    temporary = options.output + ".tmp"
    with open(temporary, "wb") as out:
        write(options, out)
    os.replace(temporary, options.output)


if __name__ == "__main__":
    main()
