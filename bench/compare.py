#!/usr/bin/env python3
"""Says which rows of `pivotkv bench --json` moved beyond noise between two files.

A row moved when the ranges from the 10th to the 90th percentile of its samples do not overlap and its median changed by
more than 3 %. Exits with 0 whatever moved.
"""
import argparse
import json
import sys

SMALLEST_MOVE = 0.03
# What names a row, in the order of the table; all that a row has of it must be equal for two rows to be the same test.
KEYS = ("model", "model_filename", "synthetic", "device", "cpu", "threads", "n_threads", "kv_policy", "policy", "kv_budget",
        "budget", "kv_cache_dtype", "pyramid", "n_prompt", "n_gen", "n_depth", "n_parallel")


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
        samples = record.get("samples_ts") or []
        self.samples = len(samples)

        def figure(name, share):
            return record[name] if name in record else percentile(samples, share)

        self.median, self.low, self.high = figure("median_ts", 0.5), figure("p10_ts", 0.1), figure("p90_ts", 0.9)


def name_of(record):
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
                if not record.get("samples_ts") and "median_ts" not in record:
                    continue  # another kind of record
                for name in ("model", "model_filename"):  # the same file, wherever it lies
                    if isinstance(record.get(name), str):
                        record[name] = record[name].rsplit("/", 1)[-1]
                key = tuple((name, json.dumps(record[name], sort_keys=True)) for name in KEYS if name in record)
                rows[key] = (record, Row(record))
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not rows:
        raise Failure(f"{path}: no rows of pivotkv bench --json in it")
    return rows


def label(key, varying):
    values = dict(key)
    extra = [json.loads(values[name]) for name in varying if name in values]
    return "".join(f"  {value}" for value in extra)


def main():
    parser = argparse.ArgumentParser(prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="JSON lines of pivotkv bench")
    parser.add_argument("new", metavar="NEW", help="the same, later")
    args = parser.parse_args()
    try:
        old, new = read(args.old), read(args.new)
    except Failure as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1

    shape = ("n_prompt", "n_gen", "n_depth", "n_parallel")
    varying = [name for name in KEYS if name not in shape
               and len({dict(key).get(name) for key in (*old, *new)}) > 1]
    lines, moved, few = [], 0, False
    for key, (record, before) in old.items():
        if key not in new:
            continue
        after = new[key][1]
        change = after.median / before.median - 1 if before.median else 0.0
        verdict = ""
        if abs(change) > SMALLEST_MOVE and (after.low > before.high or after.high < before.low):
            verdict = "faster" if change > 0 else "SLOWER"
            moved += 1
        few = few or min(before.samples, after.samples) < 5
        lines.append((name_of(record) + label(key, varying), before, after, change, verdict))

    width = max([len(line[0]) for line in lines] + [len("test")])
    if lines:
        print(f"{'test':<{width}}  {'old t/s':>20}  {'new t/s':>20}  {'change':>7}")
    for name, before, after, change, verdict in lines:
        spread = [f"{row.median:.2f} ({row.low:.0f}-{row.high:.0f})" for row in (before, after)]
        print(f"{name:<{width}}  {spread[0]:>20}  {spread[1]:>20}  {100 * change:>+6.1f}%  {verdict}".rstrip())
    for title, these, others in (("only in OLD", old, new), ("only in NEW", new, old)):
        names = [name_of(record) + label(key, varying) for key, (record, _) in these.items() if key not in others]
        if names:
            print(f"{title}: {', '.join(names)}")
    print(f"{moved} of {len(lines)} rows moved beyond noise")
    if few:
        print("note: some rows have fewer than 5 samples", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
