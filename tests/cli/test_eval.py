#!/usr/bin/env python3
"""eval and bench: their records, and that pieces, perplexity and last logits agree with each other."""
import json
import math
import os
import shutil
import struct
import tempfile

from cli_support import CliTest, GEMMA2, TINY, main
from test_cases import Layout

IDS = " ".join(str((7 * i * i + 3) % 32) for i in range(200)).encode()


class Eval(CliTest):
    def evaluate(self, *args, ids=IDS):
        return self.record("eval", "-m", TINY, "--ids", "-", *args, text=ids)

    def test_top_is_sorted_and_lse_is_theirs(self):
        record = self.evaluate("--top", "32")
        logits = [logit for _, logit in record["top"]]
        self.assertEqual(record["tokens"], 200)
        self.assertEqual(sorted(id for id, _ in record["top"]), list(range(32)))
        self.assertEqual(logits, sorted(logits, reverse=True))
        self.assertAlmostEqual(record["lse"], math.log(sum(math.exp(logit) for logit in logits)), places=4)
        self.assertEqual(self.evaluate("--top", "3")["top"], record["top"][:3])
        self.assertEqual(len(self.evaluate()["top"]), 10)

    def test_perplexity_is_the_mean_of_single_steps(self):
        words = IDS.split()
        nll = []
        for n in range(150, 160):
            record = self.evaluate("--top", "32", "-n", str(n))
            nll.append(record["lse"] - dict(map(tuple, record["top"]))[int(words[n])])
        record = self.evaluate("--perplexity", "--score-from", "150", "-n", "160")
        self.assertEqual((record["scored"], record["top"]), (10, []))
        self.assertAlmostEqual(record["mean_nll"], sum(nll) / len(nll), places=4)
        self.assertAlmostEqual(record["ppl"], math.exp(record["mean_nll"]), places=3)
        self.assertEqual(self.evaluate("--perplexity")["scored"], 199)

    def test_exact_is_near(self):
        fast, exact = self.evaluate("--top", "32"), self.evaluate("--top", "32", "--exact")
        self.assertEqual((fast["kv"], exact["kv"], exact["exact"]), ("f16", "f32", True))
        other = dict(map(tuple, exact["top"]))
        self.assertLess(max(abs(logit - other[id]) for id, logit in fast["top"]), 0.2)

    def test_text_output(self):
        lines = self.ok("eval", "-m", TINY, "--ids", "-", "--top", "2", "--perplexity", text=IDS).decode().splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["tokens", "lse", "top", "top", "scored", "mean_nll", "ppl"])

    def test_refusals(self):
        def fails(*args, ids=IDS, **kwargs):
            self.fails("eval", "-m", TINY, *args, text=ids, **kwargs)
        fails(code=2, mentions="--text, --ids")
        fails("--ids", "-", "--text", "-", code=2, mentions="--text, --ids")
        fails("--ids", "-", "--score-from", "3", code=2, mentions="--perplexity")
        fails("--ids", "-", "--perplexity", "--score-from", "200", mentions="200")
        fails("--ids", "-", "--perplexity", ids=b"1", mentions="1 tokens")
        fails("--ids", "-", "--top", "33", code=2, mentions="32")
        fails("--ids", "-", "--exact", "--kv-cache-dtype", "f16", code=2, mentions="f32")
        fails("--ids", "-", ids=b"", mentions="no token")
        fails("--ids", "-", ids=b"5 32", mentions="'32'")
        fails("--ids", "-", ids=b"5 x\n7", mentions="number 2, 'x':")
        fails("--ids", "-", ids=b"5 x7 8", mentions="'x7':")
        fails("--ids", "-", ids=b"5 7\0 8", mentions=("number 2, '7'", "NUL"))
        fails("--ids", "-", ids=b"5 \0", mentions="NUL")
        fails("--text", "-", mentions="vocabulary")


class NotNumbers(CliTest):
    """A model that computes no numbers, by one weight or by all of a norm: never a result with exit code 0."""

    def patched(self, source, tensor, values):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "model.gguf")
        shutil.copy(source, path)
        layout = Layout(source)
        data = (layout.tables_bytes + 31) // 32 * 32
        with open(path, "r+b") as file:
            file.seek(data + next(offset for name, _, offset in layout.tensors if name == tensor))
            file.write(struct.pack(f"<{len(values)}f", *values))
        return path

    def test_nan_and_infinity(self):
        for path in (self.patched(GEMMA2, "token_embd.weight", [math.nan]), self.patched(GEMMA2, "output_norm.weight", [math.nan] * 64),
                     self.patched(TINY, "output_norm.weight", [math.inf] * 64)):
            for args in ([], ["--json"], ["--perplexity"], ["--exact", "--perplexity", "--json"], ["--top", "0"]):
                self.fails("eval", "-m", path, "--ids", "-", "--quiet", *args, text=b"0 1 2 3 4 5 6 7 8", mentions=("not finite", "logits"))
            for args in (["-p", "8", "-n", "0"], ["-p", "0", "-n", "8"]):
                self.fails("bench", "-m", path, "--quiet", "--json", "-r", "1", *args, "-d", "8", mentions="not finite")

    def test_perplexity_too_large(self):
        path = self.patched(TINY, "output_norm.weight", [1e6] * 64)
        for args in ([], ["--json"]):
            self.fails("eval", "-m", path, "--ids", "-", "--quiet", "--perplexity", *args, text=IDS, mentions="perplexity")
        self.ok("eval", "-m", path, "--ids", "-", "--quiet", text=IDS)


class Bench(CliTest):
    def rows(self, *args):
        return [json.loads(line) for line in self.ok("bench", "-m", TINY, "--json", "-r", "3", *args).splitlines()]

    def test_rows(self):
        rows = self.rows("-p", "16", "-n", "4", "-d", "0,40", "-npl", "1,3")
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"], r["n_parallel"]) for r in rows],
                         [(16, 0, 0, 1), (0, 4, 0, 1), (0, 4, 0, 3), (16, 0, 40, 1), (0, 4, 40, 1), (0, 4, 40, 3)])
        for row in rows:
            self.assertEqual(len(row["samples_ts"]), 3)
            self.assertEqual(row["median_ts"], sorted(row["samples_ts"])[1])
            self.assertTrue(0 < row["p10_ts"] <= row["median_ts"] <= row["p90_ts"])
        self.assertEqual([r["n_gen"] for r in self.rows("-p", "0", "-n", "2")], [2])
        self.assertEqual([r["n_prompt"] for r in self.rows("-p", "2", "-n", "0")], [2])

    def test_refusals(self):
        self.fails("bench", "-m", TINY, "-p", "0", "-n", "0", code=2, mentions="--n-prompt, --n-gen")


if __name__ == "__main__":
    main()
