#!/usr/bin/env python3
"""How well `bench --sim` predicts: measures decode steps with --kv-policy full over an emulated link in cells of budget x link x
context, predicts the same from a profile, and prints both with their ratio. All samples go to a file of JSON lines."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

KEPT = ("build", "commit", "machine", "device", "cpu", "threads", "simulated", "n_gen", "n_depth", "samples_ts", "kv_tier")


def numbers(text):
    return [float(word) for word in text.split(",")]


def bench(args, cell, extra):
    budget, link, depth = cell
    command = [*args.prefix.split(), args.binary, "bench", "-m", args.model, "-p", "0", "-n", str(args.gen), "-d", f"{depth:g}",
               "-r", str(args.repetitions), "--kv-policy", "full", "--kv-budget", f"{budget:g}%", "--link-gbps", f"{link:g}",
               "--json", "--quiet", *extra]
    load = os.getloadavg()[0]
    got = subprocess.run(command, capture_output=True, check=False)
    if got.returncode != 0:
        sys.exit(f"sim_check: {' '.join(command)}: {got.stderr.decode(errors='replace').strip()}")
    record = json.loads(got.stdout.splitlines()[-1])
    line = {"schema": "pivotkv/sim-check/1", "budget": budget, "link_gbps": link, "context": int(depth), "load": load}
    line.update({key: record[key] for key in KEPT if key in record})
    line["samples_ms"] = [1e3 / rate for rate in line.pop("samples_ts")]
    return line


def report(cells, lines, within):
    print("| budget | link, GB/s | context | measured, ms (least, most of its turns) | simulated, ms | simulated / measured | within |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    held = 0
    for cell in cells:
        mine = [line for line in lines if (line["budget"], line["link_gbps"], line["context"]) == cell]
        simulated = next(line["samples_ms"][0] for line in mine if "simulated" in line)
        turns = [statistics.median(line["samples_ms"]) for line in mine if "simulated" not in line]
        measured = statistics.median(sample for line in mine if "simulated" not in line for sample in line["samples_ms"])
        ratio = simulated / measured
        ok = abs(ratio - 1) <= within / 100
        held += ok
        print(f"| {cell[0]:g} % | {cell[1]:g} | {cell[2]:g} | {measured:.2f} ({min(turns):.2f}, {max(turns):.2f}) | {simulated:.2f} | "
              f"{ratio:.3f} | {'yes' if ok else '**no**'} |")
    print(f"\n{held} of {len(cells)} cells within {within:g} %.")
    return held == len(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/release/pivotkv")
    parser.add_argument("--model", required=True, help="as for -m")
    parser.add_argument("--profile", required=True, help="file of `pivotkv link --profile`")
    parser.add_argument("--budgets", type=numbers, default=[10, 30, 60], help="percent")
    parser.add_argument("--links", type=numbers, default=[0.5, 1], help="GB/s")
    parser.add_argument("--contexts", type=numbers, default=[2048, 7680], help="tokens before the measured steps")
    parser.add_argument("--gen", type=int, default=8, help="steps of a sample")
    parser.add_argument("-r", "--repetitions", type=int, default=3, help="samples of a cell and turn")
    parser.add_argument("--turns", type=int, default=2, help="times that all cells are measured, one after the other")
    parser.add_argument("--prefix", default="", help="command put before the binary, such as 'nice -n -15'")
    parser.add_argument("--within", type=float, default=10, help="percent")
    parser.add_argument("-o", "--output", help="file for all samples, JSON lines")
    args = parser.parse_args()
    cells = [(budget, link, depth) for depth in args.contexts for link in args.links for budget in args.budgets]
    lines = [bench(args, cell, ["--sim", args.profile]) for cell in cells]
    for turn in range(args.turns):
        for cell in cells:
            lines.append({**bench(args, cell, []), "turn": turn})
            print(f"turn {turn + 1}: {cell[0]:g} %, {cell[1]:g} GB/s, {cell[2]:g} tokens: "
                  + " ".join(f"{sample:.2f}" for sample in lines[-1]["samples_ms"]) + " ms", file=sys.stderr, flush=True)
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps({**line, "written": time.strftime("%Y-%m-%d")}) + "\n")
    return 0 if report(cells, lines, args.within) else 1


if __name__ == "__main__":
    sys.exit(main())
