#!/usr/bin/env python3
"""Says which rows of `pivotkv bench --json` or `pivotkv link --json` moved beyond noise between two files.

A row moved when the ranges from the 10th to the 90th percentile of its samples do not overlap and its median changed by
more than 3 %. Exits with 0 whatever moved. With --within only rows whose medians differ by more are listed. With --drift
the median change of all rows is taken out first: the part of it that is the machine's, not the row's.
"""
import argparse
import copy
import json
import sys

SMALLEST_MOVE = 0.03
# What names a row, in the order of the table; all that a row has of it must be equal for two rows to be the same test.
KEYS = ("model", "model_filename", "synthetic", "device", "cpu", "threads", "n_threads", "kv_policy", "policy", "kv_budget",
        "budget", "kv_cache_dtype", "pyramid", "n_prompt", "n_gen", "n_depth", "n_parallel",
        "name", "memory", "node", "streams", "compute", "piece_bytes", "pieces", "single")
UNITS = {"ts": "t/s", "gbps": "GB/s", "us": "us", "gops": "Gop/s"}


class Failure(Exception):
    pass


def percentile(samples, share):
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Row:
    def __init__(self, record):
        unit = unit_of(record)
        samples = record.get(f"samples_{unit}") or []
        self.samples, self.less_is_better = len(samples), unit == "us"

        def figure(name, share):
            name = f"{name}_{unit}"
            return record[name] if name in record else percentile(samples, share)

        self.median, self.low, self.high = figure("median", 0.5), figure("p10", 0.1), figure("p90", 0.9)

    def speed(self):
        return 1 / self.median if self.less_is_better else self.median

    def scaled(self, factor):
        """As if the machine had been so much faster."""
        row = copy.copy(self)
        factor = 1 / factor if self.less_is_better else factor
        row.median, row.low, row.high = self.median * factor, self.low * factor, self.high * factor
        return row


def unit_of(record):
    """None: another kind of record."""
    return next((unit for unit in UNITS if record.get(f"samples_{unit}") or f"median_{unit}" in record), None)


def name_of(record):
    if "name" in record:
        parts = [record["name"]]
        if "piece_bytes" in record:
            parts += [record["memory"], f"{record['piece_bytes']} x {record['pieces']}"]
            parts += [f"{record['streams']} streams"] if record["streams"] != 1 else []
            parts += [f"beside {record['compute']}"] if record["compute"] != "none" else []
        return " ".join(parts)
    parts = []
    if record.get("n_prompt"):
        parts.append(f"pp{record['n_prompt']}")
    if record.get("n_gen"):
        parts.append(f"tg{record['n_gen']}")
    if record.get("n_parallel", 1) != 1:
        parts.append(f"npl{record['n_parallel']}")
    return " ".join(parts) + f"@{record.get('n_depth', 0)}"


def read(path):
    """The rows of a file by what KEYS names. A later row replaces an earlier one with the same key."""
    rows = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    raise Failure(f"{path}:{number}: expected a JSON object a line") from None
                if not isinstance(record, dict):
                    raise Failure(f"{path}:{number}: expected a JSON object a line")
                if unit_of(record) is None:
                    continue
                for name in ("model", "model_filename"):  # the same file, wherever it lies
                    if isinstance(record.get(name), str):
                        record[name] = record[name].rsplit("/", 1)[-1]
                key = tuple((name, json.dumps(record[name], sort_keys=True)) for name in KEYS if name in record)
                rows[key] = (record, Row(record))
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not rows:
        raise Failure(f"{path}: no rows of pivotkv bench or link --json in it")
    return rows


def short(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def label(key, varying):
    values = dict(key)
    extra = [json.loads(values[name]) for name in varying if name in values]
    return "".join(f"  {value}" for value in extra)


def main():
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="JSON lines of pivotkv bench or link")
    parser.add_argument("new", metavar="NEW", help="the same, later")
    parser.add_argument("--within", type=float, metavar="PERCENT", help="list rows whose medians differ by more, count the others")
    parser.add_argument("--drift", action="store_true", help="take out the median change of all rows first")
    args = parser.parse_args()
    try:
        old, new = read(args.old), read(args.new)
    except Failure as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1

    shape = ("n_prompt", "n_gen", "n_depth", "n_parallel", "name", "memory", "streams", "compute", "piece_bytes", "pieces")
    varying = [name for name in KEYS if name not in shape
               and len({dict(key).get(name) for key in (*old, *new)}) > 1]
    lines, moved, few, within = [], 0, False, 0
    both = [(record, before, new[key][1], key) for key, (record, before) in old.items() if key in new]
    speedups = [after.speed() / before.speed() for _, before, after, _ in both if before.median and after.median]
    drift = percentile(speedups, 0.5) if args.drift and speedups else 1.0
    for record, before, after, key in both:
        after = after.scaled(1 / drift)
        change = after.median / before.median - 1 if before.median else 0.0
        verdict = ""
        if abs(change) > SMALLEST_MOVE and (after.low > before.high or after.high < before.low):
            verdict = "faster" if (change > 0) != before.less_is_better else "SLOWER"
            moved += 1
        few = few or min(before.samples, after.samples) < 5
        if args.within is not None and abs(change) <= args.within / 100:
            within += 1
            continue
        lines.append((name_of(record) + label(key, varying), before, after, change, verdict))

    width = max([len(line[0]) for line in lines] + [len("test")])
    if lines:
        units = sorted({UNITS[unit_of(record)] for record, _ in old.values()})
        unit = f" {units[0]}" if len(units) == 1 else ""
        print(f"{'test':<{width}}  {'old' + unit:>20}  {'new' + unit:>20}  {'change':>7}")
    for name, before, after, change, verdict in lines:
        spread = [f"{row.median:.2f} ({short(row.low)}-{short(row.high)})" for row in (before, after)]
        print(f"{name:<{width}}  {spread[0]:>20}  {spread[1]:>20}  {100 * change:>+6.1f}%  {verdict}".rstrip())
    for title, these, others in (("only in OLD", old, new), ("only in NEW", new, old)):
        names = [name_of(record) + label(key, varying) for key, (record, _) in these.items() if key not in others]
        if names:
            print(f"{title}: {', '.join(names)}")
    print(f"{moved} of {len(lines) + within} rows moved beyond noise")
    if args.drift:
        print(f"taken out: {100 * (drift - 1):+.1f} %")
    if args.within is not None:
        print(f"{within} of {len(lines) + within} rows within {args.within:g} %")
    if few:
        print("note: some rows have fewer than 5 samples", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
