#!/usr/bin/env python3
"""tests/gpu/run_all over the fake CUDA runtime: run_all.py PIVOTKV PROGRAM... Every stage with --small, one by one and
a few together; then the result files: which there are, their fields, a bound beside each figure, no number that is
none. Figures mean nothing here."""
import json
import math
import os
import subprocess
import sys
import tempfile
import time

SOURCE = os.environ["PIVOTKV_SOURCE"]
MODEL = os.path.join(SOURCE, "tests/golden/tiny/qwen3.gguf")
NVIDIA_SMI = """#!/bin/sh
case $1 in
-L) echo "GPU 0: SIMT on a CPU" ;;
*) echo "SIMT on a CPU, 1.0, 1024 MiB, 5, 16, 1000 MHz, 1000 MHz" ;;
esac
"""
FILES = {"machine.json", "log.txt", "tests.jsonl", "link.jsonl", "stack.jsonl"}


def place(folder, programs):
    """The programs by the names that they have for a card, and a driver."""
    for program in programs:
        name = os.path.basename(program)
        if name == "pivotkv_simt":
            name = "pivotkv"
        elif name.startswith("simt_gpu_"):
            name = name[len("simt_"):]
        else:
            name = "gpu_kernel_" + name[len("simt_"):-len("_plain")]
        os.symlink(program, os.path.join(folder, name))
    tool = os.path.join(folder, "nvidia-smi")
    with open(tool, "w") as file:
        file.write(NVIDIA_SMI)
    os.chmod(tool, 0o755)


def run(folder, out, *args, driver=True, **variables):
    path = folder + ":" + os.environ["PATH"] if driver else os.environ["PATH"]
    environment = dict(os.environ, PATH=path, PKV_SIMT_STREAMS="threads", PIVOTKV_TEST_SEEDS="2",
                       PKV_SIMT_VRAM=str(4 << 30), **variables)
    command = ["bash", os.path.join(SOURCE, "tests/gpu/run_all"), "--programs", folder, "--small", "--out", out, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)


def refuse(text):
    raise ValueError(f"{text} is no number of JSON")


def records(out, name):
    path = os.path.join(out, name)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        found = [json.loads(line, parse_constant=refuse) for line in file]
    for record in found:
        assert record["schema"].startswith("pivotkv/"), record
        for key, value in record.items():
            assert not isinstance(value, float) or math.isfinite(value), (key, record)
    return found


def is_above_zero(record, *keys):
    for key in keys:
        assert isinstance(record[key], (int, float)) and record[key] > 0, (key, record)


def check_gathers(gathers):
    cells = [g for g in gathers if g["what"] == "gather"]
    for cell in cells:
        is_above_zero(cell, "piece_bytes", "footprint_bytes", "ctas", "median_gbps", "bound_gbps", "share")
        assert cell["pages"] in ("4KiB", "2MiB") and cell["priority"] in ("high", "normal"), cell
        assert math.isclose(cell["share"], cell["median_gbps"] / cell["bound_gbps"], rel_tol=0.05, abs_tol=2e-4), cell
        if cell["beside"] == "gemv":
            is_above_zero(cell, "gemv_us", "gemv_alone_us")
            assert cell["covered"] in (True, False)
    kinds = {(c["piece_bytes"], c["ctas"], c["pages"], c["priority"], c["beside"]) for c in cells}
    assert len(cells) == len(kinds) == 2 * 3 * 2 * 2 * 2, len(cells)
    left = [g for g in gathers if g["what"] == "left out"]
    assert len(left) == 2 and {g["why"] for g in left} <= {"host memory", "time"}, left
    copies = [g for g in gathers if g["what"] == "copy"]
    assert [g["pages"] for g in copies] == ["2MiB", "4KiB"], copies
    assert copies[1]["huge_share"] in (0, None), copies
    assert copies[0]["huge_share"] is None or 0 <= copies[0]["huge_share"] <= 1, copies


def check_link(out):
    found = records(out, "link.jsonl")
    assert any(r["schema"] == "pivotkv/link/1" and r["device"] == "cuda" for r in found)
    check_gathers([r for r in found if r["schema"] == "pivotkv/gpu-gather/1"])


def check_speeds(out):
    found = [r for r in records(out, "link.jsonl") if r["schema"] == "pivotkv/gpu-speeds/1"]
    assert len(found) == 1, found
    is_above_zero(found[0], "device_read_gbps", "load_gbps", "store_gbps", "gemv_us", "gemv_gbps", "gemv_bound_gbps",
                  "gemv_share", "f16_tflops")


def check_bench(out, count, generates):
    found = records(out, "stack.jsonl")
    assert len(found) == count, [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in found]
    for row in found:
        assert row["device"] == "cuda" and row["bound"] in ("device memory", "host link", "arithmetic"), row
        is_above_zero(row, "median_ts", "bound_ts", "share", "weight_bytes")
        assert abs(row["share"] - row["median_ts"] / row["bound_ts"]) < 1e-3 + 0.01 * row["share"], row
        assert (row["n_gen"] > 0) == generates or generates is None, row
    return found


def check_stack(out):
    check_speeds(out)
    found = check_bench(out, 2, True)
    # 4 layers of a KV head of 128 in f16, at the depth and half of what is generated
    for row in found:
        assert row["kv_bytes"] == 2 * 4 * 128 * 2 * (row["n_depth"] + 1), row
    streamed = [row["link_bytes"] > 0 for row in found]
    assert streamed == [False, True], streamed


def check_prefill(out):
    row = check_bench(out, 1, False)[0]
    assert row["n_prompt"] == 12, row
    width, inner, kv = 256, 256, 128
    layer = width * width * 2 + 2 * width * kv + 3 * width * inner
    head, tokens = 256 * width, 12
    assert row["flops"] == 2 * 4 * layer * tokens + 2 * head + 4 * 128 * 2 * 4 * (tokens * 13 // 2), row


STAGES = {"conformance": (2, None), "edges": (3, None), "speeds": (1, check_speeds), "stack": (6, check_stack),
          "link": (2, check_link), "prefill": (4, check_prefill), "model": (4, lambda out: check_bench(out, 2, None))}


def check_out(out, stages, got):
    assert got.returncode == 0, got.stdout + got.stderr
    assert set(os.listdir(out)) <= FILES, os.listdir(out)
    machine = records(out, "machine.json")[0]
    assert machine["gpu"] == "SIMT on a CPU" and machine["pcie_gen"] == "5" and machine["date"], machine
    tests = records(out, "tests.jsonl")
    for test in tests:
        assert test["result"] == "PASS" and test["status"] == 0 and test["seconds"] >= 0, test
    for stage in stages:
        count = sum(test["stage"] == stage for test in tests)
        assert count == STAGES[stage][0], (stage, tests)


def main():
    with tempfile.TemporaryDirectory() as folder:
        place(folder, sys.argv[1:])
        got = run(folder, os.path.join(folder, "none"), driver=False)
        if got.returncode != 77:  # there is a real driver
            assert os.path.exists("/dev/nvidiactl"), got.stderr
        for stage, (_, check) in STAGES.items():
            begin, out = time.monotonic(), os.path.join(folder, "out-" + stage)
            got = run(folder, out, "--stage", stage, *(["--model", MODEL] if stage == "model" else []))
            check_out(out, [stage], got)
            if check:
                check(out)
            print(f"{stage}: {time.monotonic() - begin:.1f} s")
        got = run(folder, os.path.join(folder, "out"), "--stage", "speeds", "--stage", "prefill")
        check_out(os.path.join(folder, "out"), ["speeds"], got)
        # A device that is lost between: programs skip, and the script says so
        got = run(folder, os.path.join(folder, "lost"), "--stage", "edges", "--stage", "speeds", PKV_SIMT_NO_DEVICE="100")
        assert "SKIP device " in got.stdout and "SKIP speeds " in got.stdout, got.stdout + got.stderr
        got = run(folder, os.path.join(folder, "out"), "--stage", "nonsense")
        assert got.returncode == 2, got
    print("ok")


main()
