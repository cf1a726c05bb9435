#!/usr/bin/env python3
"""bench/compare.py: verdicts on rows of bench and link, and what it refuses."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cli_support import SOURCE

COMPARE = os.path.join(SOURCE, "bench/compare.py")


def copy(median, **more):
    row = {"name": "host_to_device_memcpy_ce", "memory": "pinned", "node": 0, "streams": 1, "compute": "none", "piece_bytes": 64, "pieces": 256,
           "samples_gbps": [median] * 5, "median_gbps": median, "p10_gbps": median * 0.99, "p90_gbps": median * 1.01}
    return {**row, **more}


def launch(median):
    return {"name": "launch", "samples_us": [median] * 5, "median_us": median, "p10_us": median, "p90_us": median}


def tokens(median):
    return {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "n_parallel": 1, "samples_ts": [median] * 5}


class Compare(unittest.TestCase):
    def compare(self, old, new, *args, code=0):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, rows in (("old", old), ("new", new)):
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
            got = subprocess.run([sys.executable, COMPARE, *paths, *args], capture_output=True, text=True, timeout=60)
        self.assertEqual(got.returncode, code, got.stderr)
        return got.stdout + got.stderr

    def test_verdicts(self):
        text = self.compare([tokens(100), copy(5.0), launch(1.0)], [tokens(90), copy(6.0), launch(1.2)])
        lines = {line.split()[0]: line for line in text.splitlines()}
        self.assertTrue(lines["pp512@0"].endswith("-10.0%  SLOWER"), text)
        self.assertTrue(lines["host_to_device_memcpy_ce"].endswith("+20.0%  faster"), text)
        self.assertTrue(lines["launch"].endswith("+20.0%  SLOWER"), text)
        self.assertIn("3 of 3 rows moved", text)

    def test_rows_are_told_apart(self):
        old = [copy(5.0), copy(6.0, piece_bytes=256), copy(7.0, streams=2), copy(8.0, single=True, pieces=1)]
        text = self.compare(old, old)
        self.assertIn("0 of 4 rows moved", text)
        self.assertIn("2 streams", text)

    def test_within(self):
        text = self.compare([copy(5.0), launch(1.0)], [copy(5.4), launch(1.2)], "--within", "10")
        self.assertIn("1 of 2 rows within 10 %", text)
        self.assertNotIn("memcpy", text)

    def test_drift_is_taken_out(self):
        old = [copy(5.0), copy(6.0, piece_bytes=256), launch(1.0), copy(7.0, streams=2)]
        new = [copy(4.0), copy(4.8, piece_bytes=256), launch(1.25), copy(7.0, streams=2)]
        text = self.compare(old, new, "--drift", "--within", "1")
        self.assertIn("3 of 4 rows within 1 %", text)
        self.assertIn("taken out: -20.0 %", text)
        self.assertIn("+25.0%  faster", text)

    def test_refusals(self):
        self.assertIn("no rows", self.compare([{"schema": "x"}], [copy(1.0)], code=1))
        self.assertIn("expected a JSON object a line", self.compare([[1]], [copy(1.0)], code=1))


if __name__ == "__main__":
    unittest.main(verbosity=0)
