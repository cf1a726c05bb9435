#!/usr/bin/env python3
"""Draws the curves of `pivotkv link --json`: median against size of the pieces, p10 to p90 shaded.

One panel a direction. --what says which rows: sizes (contiguous, by kind of memory), gather (by number of
pieces), patterns, streams, compute (beside kernels), latency. Needs matplotlib (pip install matplotlib).
"""
import argparse
import json
import sys

DIRECTIONS = {"host_to_device": "host to device", "device_to_host": "device to host", "both": "both directions, sum"}
ALONE = {"streams": 1, "compute": "none"}
# What: rows it takes, what tells its curves apart, how a curve is called.
FIGURES = {
    "sizes": ({"pattern": "contiguous", **ALONE}, "memory", "{}"),
    "gather": ({"pattern": "gather", "memory": "pinned", **ALONE}, "pieces", "{} pieces a call"),
    "patterns": ({"memory": "pinned", **ALONE}, "pattern", "{}"),
    "streams": ({"pattern": "contiguous", "memory": "pinned", "compute": "none"}, "streams", "{} streams"),
    "compute": ({"pattern": "contiguous", "memory": "pinned", "streams": 1}, "compute", "beside {}"),
    "latency": ({}, "direction", "{}"),
}
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8a5a9e", "#c98a00")


class Failure(Exception):
    pass


def read(path):
    """The rows with sizes, and the run's record."""
    rows, run = [], {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    kind = record["record"] if record["schema"] == "pivotkv/link/1" else None
                except (ValueError, TypeError, KeyError):
                    raise Failure(f"{path}:{number}: expected a line of pivotkv link --json") from None
                if kind == "run":
                    run = record
                elif kind == "row" and record.get("piece_bytes"):
                    rows.append(record)
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not rows:
        raise Failure(f"{path}: no rows of pivotkv link --json in it")
    return run, rows


def select(rows, what):
    """{direction: {curve: [(piece_bytes, median, p10, p90)]}}"""
    wanted, key, title = FIGURES[what]
    panels = {}
    for row in rows:
        if what == "latency":
            if not row["name"].endswith("_latency_ce"):
                continue
            panel, unit = "call to end", "us"
        else:
            if "calls" not in row or any(row[name] != value for name, value in wanted.items()):
                continue
            if row.get("single") or (what == "patterns" and row["pattern"] == "gather" and row["pieces"] != most_pieces(rows)):
                continue
            panel, unit = DIRECTIONS[row["direction"]], "sum_gbps" if row["direction"] == "both" else "gbps"
            if row["direction"] == "both" and not row["name"].startswith("host_to_device"):
                continue  # the sum is in both rows
        point = (row["piece_bytes"], row[f"median_{unit}"], row[f"p10_{unit}"], row[f"p90_{unit}"])
        name = title.format(row[key]).replace("1 streams", "1 stream").replace("beside none", "alone").replace("_", " ")
        panels.setdefault(panel, {}).setdefault(name, []).append(point)
    return panels


def most_pieces(rows):
    return max((row["pieces"] for row in rows if row.get("pattern") == "gather"), default=0)


def size(value):
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.0f} GiB"


def draw(plt, panels, run, what, output):
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.4), sharey=True, squeeze=False)
    for axis, (panel, curves) in zip(axes[0], panels.items()):
        sizes = set()
        for colour, (name, points) in zip(COLOURS, curves.items()):
            x, median, low, high = zip(*sorted(points))
            sizes.update(x)
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.plot(x, median, color=colour, marker="o", markersize=3, linewidth=1.2, label=name)
        ticks = sorted(sizes)[:: 2 if len(sizes) > 8 else 1]
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [size(tick) for tick in ticks], rotation=45, ha="right", fontsize=7)
        axis.minorticks_off()
        axis.set_title(panel, fontsize=9)
        axis.set_xlabel("piece", fontsize=8)
        axis.tick_params(axis="y", labelsize=7)
        axis.grid(color="#dddddd", linewidth=0.5)
        axis.legend(fontsize=7, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylim(0, 1.05 * max(point[3] for curves in panels.values() for points in curves.values() for point in points))
    axes[0][0].set_ylabel("us" if what == "latency" else "GB/s", fontsize=8)
    machine, device = run.get("machine", {}).get("cpu", ""), run.get("device", "")
    measures = ", memory to memory" if run.get("measures") == "memory" else ""
    cached = "; FITS THE CACHE" if run.get("cached") else ""
    figure.suptitle(f"{device} device, {machine}{measures}: {what}{cached}", fontsize=9)
    figure.tight_layout()
    try:
        figure.savefig(output, dpi=150, metadata={"Date": None} if output.lower().endswith(".svg") else None)
    except (OSError, ValueError) as error:
        raise Failure(f"cannot write {output}: {getattr(error, 'strerror', None) or error}") from None


def main():
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", help="JSON lines of pivotkv link --json")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="picture to write: .svg or .png")
    parser.add_argument("--what", choices=FIGURES, default="sizes", help="which curves (default sizes)")
    args = parser.parse_args()
    try:
        if not args.output.lower().endswith((".svg", ".png")):
            raise Failure(f"{args.output}: expected a name that ends in .svg or .png")
        run, rows = read(args.file)
        panels = select(rows, args.what)
        if not panels:
            raise Failure(f"{args.file}: no rows for --what {args.what}")
        try:
            import matplotlib
        except ImportError:
            raise Failure("matplotlib is missing: pip install matplotlib") from None
        matplotlib.use("svg" if args.output.lower().endswith(".svg") else "agg")
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pivotkv", "font.family": "sans-serif"})
        import matplotlib.pyplot as plt
        draw(plt, panels, run, args.what, args.output)
    except Failure as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
