#!/usr/bin/env python3
"""Copies the small models into tests/golden/tiny, with the reference values that the tests use.

    make_tiny_vectors.py SOURCE

SOURCE is the folder of the small models (its README.md says how they were made: llama.cpp and an independent
float64 forward pass; nothing there comes from this project). Kept of each MODEL.json: the token sequences; the
logits of `f64`, `f64-kv16`, `f32` and `f16`; the greedy texts of `f32` and `f16`; dequantisation vectors. Standard
library only.
"""
import json
import pathlib
import shutil
import sys

LOGITS = ("f64", "f64-kv16", "f32", "f16")
GREEDY = ("f32", "f16")


def compact(model):
    if "sequences" not in model:    # the split file: names another's values
        return model
    kept = {key: model[key] for key in ("file", "arch", "shape", "types", "sequences")}
    kept["logits"] = [row for row in model["logits"] if row["kv"] in LOGITS]
    kept["greedy"] = [row for row in model["greedy"] if row["kv"] in GREEDY]
    if "dequant" in model:
        kept["dequant"] = model["dequant"]
    return kept


def main():
    source = pathlib.Path(sys.argv[1])
    target = pathlib.Path(__file__).resolve().parent / "tiny"
    target.mkdir(exist_ok=True)
    for path in sorted(source.glob("*.gguf")):
        shutil.copyfile(path, target / path.name)
    for path in sorted(source.glob("*.json")):
        text = json.dumps(compact(json.loads(path.read_text())), separators=(",", ":"))
        (target / path.name).write_text(text + "\n")
    shutil.copyfile(source / "README.md", target / "README.md")


if __name__ == "__main__":
    main()
