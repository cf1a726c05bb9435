#!/usr/bin/env python3
"""Rows of `pivotkv bench` with what bounds them beside: bounds.py --speeds FILE ROWS.

Decoding reads all weights and all K and V once a token, from device memory, and K and V of streamed layers over the
link at the same time; a prompt multiplies every weight with every token, and every query with the keys before it.
The speeds are those that the same card showed (program speeds).
"""
import argparse
import json
import os
import struct
import sys

# bytes a block, values a block (GGUF): of what a stack or a real model holds
BLOCKS = {0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 10: (84, 256), 11: (110, 256),
          12: (144, 256), 13: (176, 256), 14: (210, 256), 30: (2, 1)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
KV_BYTES = {"f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32}


class Reader:
    def __init__(self, file):
        self.file = file

    def take(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize("<" + form)))[0]

    def string(self):
        return self.file.read(self.take("Q")).decode(errors="replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])


def shapes(path):
    """Keys of a GGUF file without their architecture, and its tensors: name -> (bytes, values, dimensions)."""
    with open(path, "rb") as file:
        reader = Reader(file)
        file.read(8)
        tensors, keys = reader.take("Q"), reader.take("Q")
        found, table = {}, {}
        for _ in range(keys):
            name = reader.string()
            found[name.split(".", 1)[-1]] = reader.value(reader.take("I"))
        for _ in range(tensors):
            name, dims = reader.string(), [reader.take("Q") for _ in range(reader.take("I"))]
            kind, values = reader.take("I"), 1
            reader.take("Q")
            for dim in dims:
                values *= dim
            size, block = BLOCKS[kind]
            table[name] = (values // block * size, values, len(dims))
    return found, table


class Model:
    def __init__(self, path):
        keys, table = shapes(path)
        if "output.weight" in table:  # of the embedding a row is read
            table.pop("token_embd.weight", None)
        self.weight_bytes = sum(size for size, _, _ in table.values())
        self.weights = sum(values for _, values, dims in table.values() if dims > 1)
        self.head_weights = sum(values for name, (_, values, _) in table.items() if name.startswith(("output.w", "token_embd")))
        self.layers = keys["block_count"]
        self.heads = keys["attention.head_count"]
        self.kv_heads = keys.get("attention.head_count_kv", self.heads)
        self.head = keys.get("attention.key_length", keys["embedding_length"] // self.heads)

    def kv_bytes(self, tokens, kv_type):
        return 2 * self.layers * self.kv_heads * self.head * KV_BYTES[kv_type] * tokens


def decode_bound(row, model, speeds):
    tokens = row["n_depth"] + row["n_gen"] / 2
    kv = model.kv_bytes(tokens, row["kv"]) * row["n_parallel"]
    link = kv * row["kv_tier"]["streamed_layers"] / model.layers
    times = {"device memory": (model.weight_bytes + kv) / speeds["device_read_gbps"] / 1e9,
             "host link": link / speeds["load_gbps"] / 1e9}
    which = max(times, key=times.get)
    return which, row["n_parallel"] / times[which], {"weight_bytes": model.weight_bytes, "kv_bytes": int(kv), "link_bytes": int(link)}


def prompt_bound(row, model, speeds):
    tokens, before = row["n_prompt"], row["n_depth"]
    pairs = tokens * before + tokens * (tokens + 1) / 2
    flops = 2 * (model.weights - model.head_weights) * tokens + 2 * model.head_weights + 4 * model.head * model.heads * model.layers * pairs
    times = {"device memory": model.weight_bytes / speeds["device_read_gbps"] / 1e9}
    if speeds["f16_tflops"]:
        times["arithmetic"] = flops / speeds["f16_tflops"] / 1e12
    which = max(times, key=times.get)
    return which, tokens / times[which], {"weight_bytes": model.weight_bytes, "flops": int(flops)}


def records(path):
    """Lines of a file that may not be there; one that was cut off is told and left."""
    if not os.path.exists(path):
        return
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError:
                print(f"bounds: {path}:{number} is no JSON, left out", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows")
    parser.add_argument("--speeds", required=True)
    options = parser.parse_args()
    speeds = [record for record in records(options.speeds) if record["schema"] == "pivotkv/gpu-speeds/1"]
    models = {}
    for row in records(options.rows):
        if not speeds:  # what was measured is kept
            print(json.dumps(row, separators=(",", ":")))
            continue
        model = models.setdefault(row["model"], None) or Model(row["model"])
        models[row["model"]] = model
        which, bound, counted = (decode_bound if row["n_gen"] else prompt_bound)(row, model, speeds[-1])
        row.update(counted, bound=which, bound_ts=round(bound, 3), share=round(row["median_ts"] / bound, 5))
        json.dump(row, sys.stdout, separators=(",", ":"))
        print()
    if not speeds:
        sys.exit(f"bounds: {options.speeds} has no line of the card's speeds: rows without a bound")


if __name__ == "__main__":
    main()
