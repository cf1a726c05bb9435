#!/usr/bin/env python3
"""bench/quality-table: the tables of records that are there; nothing is run or fetched."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cli_support import SOURCE

TABLE = os.path.join(SOURCE, "bench/quality-table")


def record(policy, text, kl, ratio=None, **more):
    return {"policy": policy, "text": text, "kl_mean": kl, "kl_mean_low": kl / 2, "kl_mean_high": kl * 2, "kl_p99": 9 * kl, "top1": 0.75,
            "coverage": 0.5, "context": 512, "budget": "5%", "mode": "forced", "study": "policies", "scored": 20, "kl_ratio": ratio, "hit_rate": 0.3, **more}


class QualityTable(unittest.TestCase):
    def table(self, records, *more):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "records")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(one) + "\n" for one in records)
            return subprocess.run([sys.executable, TABLE, "--table", "-o", path, "--contexts", "512", "--budgets", "5", *more],
                                  capture_output=True, text=True, timeout=60)

    def test_rows_and_order(self):
        rows = [record("oracle", "all", 0.01), record("h2o", "all", 0.2), record("snapkv", "all", 0.25), record("window", "all", 0.5),
                record("h2o", "prose", 0.1, 5.0), record("h2o", "code", 0.3, 70.0),
                {"policy": "squeeze", "text": "all", "context": 512, "budget": "5%", "mode": "forced", "study": "policies", "refused": "too small"}]
        got = self.table(rows)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("| 5% | `h2o` | 0.2000 [0.1000, 0.4000] | 1.80 | 75.0 | 0.500 | 30.0 | 5 (prose) to 70 (code) |", got.stdout)
        self.assertIn("| 5% | `squeeze` | too small |", got.stdout)
        self.assertIn("the order holds", got.stderr)
        other = [{**one, "budget": "7%", "kl_ratio": one.get("kl_ratio") and 9 * one["kl_ratio"]} for one in rows[:6]]
        self.assertIn("30.0 | 5 (prose) to 70 (code) |", self.table(rows + other, "--budgets", "5,7").stdout)
        rows[3]["kl_mean"] = 0.22
        self.assertIn("the order DIFFERS", self.table(rows).stderr)

    def test_other_studies(self):
        layers = {"hit_rate_layers": [0.25, None, 0.5]}
        rows = [record("last-row", "all", 0.1, study="overlap", **layers), record("last-row", "code", 0.1, study="overlap", **layers)]
        got = self.table(rows, "--study", "overlap")
        self.assertIn("| 5% | `last-row` | 30.0 | 30.0 to 30.0 | 25 50 |", got.stdout, got.stderr)
        rows = [record("snapkv", "all", kl, study="recent", recent_ratio=ratio) for ratio, kl in ((0.4, 0.2), (0.1, 0.5))]
        got = self.table(rows, "--study", "recent")
        self.assertIn("| 0.1 | 0.4 |", got.stdout, got.stderr)
        self.assertIn("| `snapkv` | 0.500 [0.250, 1.000] | 0.200 [0.100, 0.400] |", got.stdout)
        less = {"kl_diff": 0.2, "kl_diff_low": -0.1, "kl_diff_high": 0.5}
        rows = [record("snapkv", "all", 0.1, study="shapes", pyramid="flat"), record("snapkv", "all", 0.3, 3.0, study="shapes", pyramid="cosine", **less),
                record("snapkv", "code", 0.3, 4.0, study="shapes", pyramid="cosine", **less)]
        got = self.table(rows, "--study", "shapes")
        self.assertIn("| cosine | 0.3000 | +0.2000 [-0.1000, +0.5000] | 3.00 | 4.00 to 4.00 | 0.500 |", got.stdout, got.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=0)
