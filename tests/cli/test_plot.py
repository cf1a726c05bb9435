#!/usr/bin/env python3
"""bench/plot.py: what it refuses, and that it draws where matplotlib is there."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cli_support import SOURCE, main, run

PLOT = os.path.join(SOURCE, "bench/plot.py")
LINK = ("link", "--quick", "--region", "1MiB", "--max-size", "256KiB", "-r", "2", "--memory", "pinned", "--json", "--quiet")


class Plot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.lines = os.path.join(cls.folder.name, "link.jsonl")
        with open(cls.lines, "wb") as file:
            file.write(run(*LINK).stdout)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def plot(self, *args, **kwargs):
        return subprocess.run([sys.executable, PLOT, *args], capture_output=True, text=True, timeout=120, **kwargs)

    def refused(self, *args, mentions, **kwargs):
        got = self.plot(*args, **kwargs)
        self.assertEqual((got.returncode, got.stdout), (1, ""), got.stderr)
        self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
        self.assertIn(mentions, got.stderr)

    def test_refusals(self):
        out = self.path("out.svg")
        self.refused(self.path("none"), "-o", out, mentions="cannot read")
        self.refused(self.path("text", "not JSON\n"), "-o", out, mentions="text:1: expected a line of pivotkv link")
        self.refused(self.path("bench", '{"schema": "pivotkv/bench/1"}\n'), "-o", out, mentions="bench: no rows")
        self.refused(self.path("empty", "\n"), "-o", out, mentions="no rows")
        self.refused(self.lines, "-o", self.path("out.pdf"), mentions=".svg or .png")
        with open(self.lines, encoding="utf-8") as file:
            few = [line for line in file if "launch" in line or json.loads(line).get("pattern") == "strided"]
        self.refused(self.path("few", "".join(few)), "-o", out, mentions="no rows for --what sizes")
        self.assertFalse(os.path.exists(out))

    def test_missing_matplotlib_is_one_line(self):
        broken = self.path("broken")
        os.mkdir(broken)
        with open(os.path.join(broken, "matplotlib.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError\n")
        self.refused(self.lines, "-o", self.path("x.svg"), mentions="matplotlib is missing", env={**os.environ, "PYTHONPATH": broken})

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed")
    def test_draws(self):
        out = self.path("gather.svg")
        got = self.plot(self.lines, "--what", "gather", "-o", out)
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        with open(out, encoding="utf-8") as file:
            text = file.read()
        for word in ("host to device", "both directions, sum", "256 pieces a call", "memory to memory", "FITS THE CACHE"):
            self.assertIn(word, text)

    def quality(self):
        """Records as pivotkv quality writes them: two policies, two budgets, two contexts."""
        records = [{"schema": "pivotkv/quality/1", "text": text, "policy": policy, "pyramid": "flat", "recent_ratio": None, "budget": f"{budget}%",
                    "context": context, "mode": "forced", "name": "Little", "model": "little.gguf", "scored": 20, "device_bytes": budget * context,
                    "kl_mean": 1 / budget, "kl_mean_low": 0.5 / budget, "kl_mean_high": 2 / budget, "coverage_layers": [0.5, None, 0.7],
                    "hit_rate_layers": [0.2, 0.3, 0.4]}
                   for text in ("all", "prose") for policy in ("snapkv", "h2o") for budget in (5, 10) for context in (512, 1024)]
        records += [{**records[0], "policy": "full", "kl_mean": 0, "kl_mean_low": 0}, {**records[0], "policy": "squeeze", "refused": "too small"}]
        return self.path("quality", "".join(json.dumps(record) + "\n" for record in records))

    def test_quality_refusals(self):
        out = self.path("quality.svg")
        self.refused(self.lines, "--what", "kl", "-o", out, mentions="no records of pivotkv quality")
        self.refused(self.quality(), "-o", out, mentions="no rows of pivotkv link")
        self.refused(self.lines, self.lines, "-o", out, mentions="one file")
        self.refused(self.path("other", "[]\n"), "--what", "hits", "-o", out, mentions="expected a line of pivotkv quality")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not installed")
    def test_draws_quality(self):
        for what, words in (("kl", ("512 tokens, forced", "1,024 tokens, forced", "device bytes", "KL(full")),
                            ("coverage", ("512 tokens, forced, 5%", "1,024 tokens, forced, 10%", "layer", "softmax mass")),
                            ("hits", ("layer", "slots"))):
            out = self.path(f"{what}.svg")
            got = self.plot(self.quality(), "--what", what, "-o", out)
            self.assertEqual((got.returncode, got.stderr), (0, ""))
            with open(out, encoding="utf-8") as file:
                text = file.read()
            for word in ("snapkv", "h2o", "Little", "20 tokens scored", *words):
                self.assertIn(word, text)
            for word in ("squeeze", "full<"):
                self.assertNotIn(word, text)


if __name__ == "__main__":
    main()
