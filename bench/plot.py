#!/usr/bin/env python3
"""Draws the curves of `pivotkv link --json`, or of `pivotkv quality --json`.

link: median against size of the pieces, p10 to p90 shaded, one panel a direction. --what says which rows: sizes (contiguous,
by kind of memory), gather (by number of pieces), patterns, streams, compute (beside kernels), latency.
quality, several files if need be: --what kl (KL divergence against device bytes, 95 % intervals shaded, one panel a context and mode), or
coverage, hits (by layer, one panel a context, mode and budget); one curve a policy, shape and ratio.
Needs matplotlib (pip install matplotlib).
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
# What: the key of its numbers by layer, and how the axis is called.
LAYERS = {"coverage": ("coverage_layers", "share of the softmax mass"), "hits": ("hit_rate_layers", "share of the oracle's slots")}
QUALITY = ("kl", *LAYERS)
COLOURS = ("#1b6ca8", "#d1495b", "#2e933c", "#8a5a9e", "#c98a00", "#17888f", "#7a4a2b", "#d36ba6", "#5c6670", "#8fa31e")


class Failure(Exception):
    pass


def lines(path, schema):
    """The records of a file, all of which are of this schema."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    known = record["schema"] == f"pivotkv/{schema}/1"
                except (ValueError, TypeError, KeyError):
                    raise Failure(f"{path}:{number}: expected a line of pivotkv {schema} --json") from None
                if known:
                    yield record
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def read(path):
    """The rows with sizes, and the run's record."""
    rows, run = [], {}
    for record in lines(path, "link"):
        if record["record"] == "run":
            run = record
        elif record["record"] == "row" and record.get("piece_bytes"):
            rows.append(record)
    if not rows:
        raise Failure(f"{path}: no rows of pivotkv link --json in it")
    return run, rows


def read_quality(paths):
    """The records of all texts together."""
    rows = [record for path in paths for record in lines(path, "quality") if record["text"] == "all" and "refused" not in record]
    if not rows:
        raise Failure(f"{paths[0]}: no records of pivotkv quality --json in it")
    return rows


def arm_name(row):
    """A curve: the policy, and what is not as usual."""
    shape = "" if row["pyramid"] in ("flat", "own") else f", {row['pyramid']}"
    return row["policy"] + shape + (f", recent {row['recent_ratio']:g}" if row.get("recent_ratio") else "")


def select_quality(rows, what):
    """{panel: {curve: [(x, y, low, high)]}}"""
    panels = {}
    for row in rows:
        panel = f"{row['context']:,} tokens, {row['mode']}"
        if what == "kl":
            points = [(row["device_bytes"], *(row[key] for key in ("kl_mean", "kl_mean_low", "kl_mean_high")))]
            points = [point for point in points if point[2] > 0]
        else:
            panel += f", {row['budget']}"
            values = row.get(LAYERS[what][0]) or []
            points = [(layer, value, value, value) for layer, value in enumerate(values) if value is not None]
        if points and (what == "kl" or row["policy"] != "full"):
            panels.setdefault(panel, {}).setdefault(arm_name(row), []).extend(points)
    return panels


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


def draw_curves(axis, curves):
    for colour, (name, points) in zip(COLOURS * (1 + len(curves) // len(COLOURS)), curves.items()):
        x, middle, low, high = zip(*sorted(points))
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(x, middle, color=colour, marker="o", markersize=3, linewidth=1.2, label=name)


def size_axis(axis, curves, step):
    ticks = sorted({point[0] for points in curves.values() for point in points})[::step]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [size(tick) for tick in ticks], rotation=45, ha="right", fontsize=7)
    axis.minorticks_off()


def finish_axis(axis, panel, label):
    axis.set_title(panel, fontsize=9)
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(axis="y", labelsize=7)
    axis.grid(color="#dddddd", linewidth=0.5)
    axis.legend(fontsize=7, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)


def draw(plt, panels, run, what):
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.4), sharey=True, squeeze=False)
    for axis, (panel, curves) in zip(axes[0], panels.items()):
        draw_curves(axis, curves)
        sizes = {point[0] for points in curves.values() for point in points}
        size_axis(axis, curves, 2 if len(sizes) > 8 else 1)
        finish_axis(axis, panel, "piece")
    axes[0][0].set_ylim(0, 1.05 * max(point[3] for curves in panels.values() for points in curves.values() for point in points))
    axes[0][0].set_ylabel("us" if what == "latency" else "GB/s", fontsize=8)
    machine, device = run.get("machine", {}).get("cpu", ""), run.get("device", "")
    measures = ", memory to memory" if run.get("measures") == "memory" else ""
    cached = "; FITS THE CACHE" if run.get("cached") else ""
    figure.suptitle(f"{device} device, {machine}{measures}: {what}{cached}", fontsize=9)
    return figure


def draw_quality(plt, panels, rows, what):
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.2), sharey=True, squeeze=False)
    for axis, (panel, curves) in zip(axes[0], panels.items()):
        draw_curves(axis, curves)
        if what == "kl":
            axis.set_xscale("log", base=2)
            ticks = sorted({point[0] for point in max(curves.values(), key=len)})  # the budgets
            axis.set_xticks(ticks, [f"{tick / 2**20:.3g} MiB" for tick in ticks], fontsize=7)
            axis.margins(x=0.1)
            axis.minorticks_off()
            axis.set_yscale("log")
        finish_axis(axis, panel, "device bytes of a sequence" if what == "kl" else "layer")
    axes[0][0].set_ylabel("KL(full || policy), nats" if what == "kl" else LAYERS[what][1], fontsize=8)
    figure.suptitle(f"{rows[0]['name'] or rows[0]['model']}, {rows[0]['scored']:,} tokens scored", fontsize=9)
    return figure


def save(figure, output):
    figure.tight_layout()
    try:
        figure.savefig(output, dpi=150, metadata={"Date": None} if output.lower().endswith(".svg") else None)
    except (OSError, ValueError) as error:
        raise Failure(f"cannot write {output}: {getattr(error, 'strerror', None) or error}") from None


def main():
    parser = argparse.ArgumentParser(prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", nargs="+", help="JSON lines of pivotkv link --json, or quality --json")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="picture to write: .svg or .png")
    parser.add_argument("--what", choices=(*FIGURES, *QUALITY), default="sizes", help="which curves (default sizes)")
    args = parser.parse_args()
    try:
        if not args.output.lower().endswith((".svg", ".png")):
            raise Failure(f"{args.output}: expected a name that ends in .svg or .png")
        run = {}
        if args.what in QUALITY:
            rows = read_quality(args.file)
            panels = select_quality(rows, args.what)
        elif len(args.file) > 1:
            raise Failure(f"--what {args.what}: one file, {len(args.file)} are given")
        else:
            run, rows = read(args.file[0])
            panels = select(rows, args.what)
        if not panels:
            raise Failure(f"{args.file[0]}: no rows for --what {args.what}")
        try:
            import matplotlib
        except ImportError:
            raise Failure("matplotlib is missing: pip install matplotlib") from None
        matplotlib.use("svg" if args.output.lower().endswith(".svg") else "agg")
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pivotkv", "font.family": "sans-serif"})
        import matplotlib.pyplot as plt
        figure = draw_quality(plt, panels, rows, args.what) if args.what in QUALITY else draw(plt, panels, run, args.what)
        save(figure, args.output)
    except Failure as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
