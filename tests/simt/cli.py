#!/usr/bin/env python3
"""The command line over the fake CUDA runtime: cli.py BINARY. --device cuda and auto compute there, and say what
is missing where the runtime has no device."""
import json
import os
import subprocess
import sys

BINARY = sys.argv[1]
SOURCE = os.environ["PIVOTKV_SOURCE"]
MODEL = os.path.join(SOURCE, "tests/golden/tiny/qwen3.gguf")
IDS = " ".join(str(i * 37 % 320) for i in range(12)).encode()


def run(*args, **variables):
    environment = dict(os.environ, PKV_SIMT_STREAMS="random", PKV_SIMT_SEED="3", **variables)
    return subprocess.run([BINARY, *args], input=IDS, capture_output=True, env=environment, timeout=250)


def record(device, *more):
    got = run("generate", "-m", MODEL, "--ids", "-", "-n", "6", "--temp", "0", "--device", device, "--json", *more)
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout), got.stderr.decode()


cpu, said = record("cpu")
cuda, said = record("cuda")
assert cuda["device"] == "cuda" and cpu["device"] == "cpu", (cuda["device"], cpu["device"])
assert cuda["ids"] == cpu["ids"], (cuda["ids"], cpu["ids"])
auto, said = record("auto")
assert auto["device"] == "cuda" and auto["ids"] == cpu["ids"]
assert "auto took" not in said, said
# The host reads no device memory: there it faults where the host touches it.
guarded = run("generate", "-m", MODEL, "--ids", "-", "-n", "2", "--temp", "0", "--device", "cuda", PKV_SIMT_GUARD="1")
assert guarded.returncode == 0, guarded.stderr
for error, words in ("35", "no NVIDIA driver"), ("100", "shows no GPU"):
    got = run("generate", "-m", MODEL, "--ids", "-", "--device", "cuda", PKV_SIMT_NO_DEVICE=error)
    lines = got.stderr.decode().splitlines()
    assert got.returncode == 1 and len(lines) == 1 and words in lines[0], got.stderr
    got = run("generate", "-m", MODEL, "--ids", "-", "-n", "2", PKV_SIMT_NO_DEVICE=error)
    assert got.returncode == 0 and words in got.stderr.decode() and b"auto took the cpu" in got.stderr, got.stderr
got = run("plan", "-m", MODEL, "--device", "cuda")
assert got.returncode == 0, got.stderr
print("2 devices, 2 ways to lack one: ok")
