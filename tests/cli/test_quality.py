#!/usr/bin/env python3
"""The quality command: policies against full attention on equal bytes."""
import json
import os
import tempfile
import unittest

from cli_support import CliTest, GEMMA2, SOURCE, is_sanitized, main, model

SMOLLM2 = model("smollm2")
TEXT = os.path.join(SOURCE, "tests/golden/text_report.txt")
CODE = os.path.join(SOURCE, "tests/golden/text_code.txt")


class Refused(CliTest):
    def test_bad_lists_are_named(self):
        base = ["quality", "-m", GEMMA2, "--text", TEXT]
        self.fails(*base, "--policies", "snapkv,nosuch", code=2, mentions=["--policies", "nosuch"])
        self.fails(*base, "--kv-budget", "10%,ten", code=2, mentions=["--kv-budget", "ten"])
        self.fails(*base, "--pyramid", "steep", code=2, mentions=["--pyramid", "steep"])
        self.fails(*base, "--policies", "", code=2, mentions="--policies")
        self.fails(*base, "--recent-ratio", "0.5,2", code=2, mentions=["--recent-ratio", "2"])
        self.fails(*base, "--recent-ratio", "0", code=2, mentions="--recent-ratio")
        self.fails(*base, "--slots-of", "oracle", code=2, mentions=["--slots-of", "oracle"])
        self.fails(*base, "--against", "h2o", "--policies", "snapkv,window", code=2, mentions=["--against", "h2o"])
        self.fails(*base, "--against", "cosine", code=2, mentions=["--against", "cosine"])
        self.fails("quality", "-m", GEMMA2, code=2, mentions="--text")

    def test_help_names_every_policy(self):
        for command in ("generate", "plan", "bench"):
            text = self.ok(command, "--help").decode()
            for policy in ("snapkv-keep", "pivot-norecall", "oracle", "random"):
                self.assertIn(policy, text)
            self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_weights_of_layers_from_a_file(self):
        tiny = os.path.join(SOURCE, "tests/golden/tiny/llama_q4_1.gguf")
        plan = ["plan", "-m", tiny, "-c", "2000", "--kv-policy", "h2o", "--kv-budget", "60%"]
        layers = self.record(*plan)["kv_global_layers"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.json")

            def write(text):
                with open(path, "w") as file:
                    file.write(text)
            write(json.dumps([3] + [1] * (layers - 1)))
            self.record(*plan, "--pyramid", f"file:{path}")
            for text in ("", "[", "{}", "[1" + ",1" * layers + "]", json.dumps(["1"] * layers)):
                write(text)
                self.fails(*plan, "--pyramid", f"file:{path}", mentions=[path, f"array of {layers} numbers"])
            for weights in ([0] * layers, [-1] + [1] * (layers - 1)):
                write(json.dumps(weights))
                self.fails(*plan, "--pyramid", f"file:{path}", mentions="weights")
            self.fails(*plan, "--pyramid", f"file:{folder}/none", mentions="none")
        self.fails(*plan[:5], "--pyramid", "cosine", code=2, mentions="--pyramid")

    def test_model_without_a_vocabulary(self):
        self.fails("quality", "-m", GEMMA2, "--text", TEXT, mentions="no vocabulary")


@unittest.skipUnless(SMOLLM2, "no SmolLM2")
class Smollm2(CliTest):
    def records(self, *args):
        out = self.ok("quality", "-m", SMOLLM2, "--quiet", "--json", "--context", "600", *args, timeout=600)
        return [json.loads(line) for line in out.decode().splitlines()]

    def test_short_text_and_long_context(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as short:
            short.write("one two three " * 100)
            short.flush()
            self.fails("quality", "-m", SMOLLM2, "--quiet", "--text", TEXT, "--text", short.name, "--context", "400",
                       "--tokens", "100", mentions=[short.name, "tokens", "501"])
        self.fails("quality", "-m", SMOLLM2, "--quiet", "--text", TEXT, "--context", "8192", "--tokens", "100",
                   mentions="8192")

    @unittest.skipIf(is_sanitized(), "minutes in a build with a sanitizer; the other tests go the same way")
    def test_policies_in_order(self):
        """What is known beforehand: full is exact, oracle covers most, random and window least; a budget too small
        is told in its cell; a wider one covers more."""
        policies = "full,window,h2o,snapkv,pivot-norecall,oracle,random"
        rows = self.records("--text", TEXT, "--text", CODE, "--tokens", "16", "--policies", policies,
                            "--kv-budget", "45%,70%,30")
        pooled = {(r["policy"], r["budget"]): r for r in rows if r["text"] == "all"}
        self.assertEqual(len(pooled), 7 * 3)
        self.assertEqual(len(rows), 3 * len(pooled))
        for (policy, budget), row in pooled.items():
            if budget == "30":
                self.assertIn("KiB", row["refused"])
                continue
            self.assertEqual(row["scored"], 32)
            self.assertLessEqual(row["device_bytes"], row["budget_bytes"])
            self.assertGreaterEqual(row["device_bytes"], 0.995 * row["budget_bytes"])
            self.assertGreater(row["coverage"], 0.3)
            self.assertLessEqual(row["coverage"], 1 + 1e-6)
            self.assertLessEqual(row["kl_mean_low"], row["kl_mean"])
            self.assertLessEqual(row["kl_mean"], row["kl_mean_high"])
            self.assertEqual(row["ranked"], policy != "full")
            if policy == "full":
                self.assertEqual((row["kl_mean"], row["top1"]), (0, 1))
                self.assertGreater(row["bytes_moved"], 0)
            elif policy not in ("oracle", "random"):
                self.assertEqual(row["bytes_moved"], 0)
        for budget in ("45%", "70%"):
            coverage = {policy: pooled[policy, budget]["coverage"] for policy in policies.split(",")}
            kl = {policy: pooled[policy, budget]["kl_mean"] for policy in policies.split(",")}
            for policy in ("window", "h2o", "snapkv", "pivot-norecall", "random"):
                self.assertGreater(coverage["oracle"], coverage[policy])
                self.assertGreater(kl[policy], kl["oracle"])
            for policy in ("h2o", "snapkv", "pivot-norecall"):
                self.assertGreater(coverage[policy], max(coverage["window"], coverage["random"]))
                self.assertGreater(pooled[policy, budget]["hit_rate"], pooled["random", budget]["hit_rate"])
                self.assertLess(pooled[policy, budget]["hit_rate"], 1)
            for policy in ("full", "oracle"):
                self.assertIsNone(pooled[policy, budget]["hit_rate"])
        for policy in policies.split(",")[1:]:
            self.assertGreater(pooled[policy, "70%"]["coverage"], pooled[policy, "45%"]["coverage"])

    def test_writing_by_itself(self):
        """A policy's own text, which full attention reads along with: exact where everything is."""
        rows = self.records("--text", TEXT, "--tokens", "8", "--policies", "full,window", "--kv-budget", "45%",
                            "--pyramid", "flat,cosine", "--mode", "both")
        self.assertEqual([(r["policy"], r["pyramid"], r["mode"]) for r in rows],
                         [(p, s, m) for m in ("forced", "free")
                          for p, s in (("full", "flat"), ("window", "flat"), ("window", "cosine"))])
        for row in rows:
            self.assertEqual(row["kl_mean"] == 0, row["policy"] == "full")
            if row["policy"] == "full":
                self.assertEqual(row["top1"], 1)

    def test_shapes_and_ratios_against_one(self):
        """Arms of one policy against its flat shape, token by token; ratios and sinks change what is kept."""
        rows = self.records("--text", TEXT, "--tokens", "12", "--policies", "full,snapkv,pyramidkv", "--kv-budget", "45%",
                            "--pyramid", "flat,reversed", "--recent-ratio", "0.4,0.8", "--sinks", "8", "--against", "flat")
        self.assertEqual([(r["policy"], r["pyramid"], r["recent_ratio"]) for r in rows],
                         [("full", "flat", None), ("snapkv", "flat", 0.4), ("pyramidkv", "own", 0.4), ("snapkv", "flat", 0.8),
                          ("pyramidkv", "own", 0.8), ("snapkv", "reversed", 0.4), ("snapkv", "reversed", 0.8)])
        flat = {r["recent_ratio"]: r for r in rows if (r["policy"], r["pyramid"]) == ("snapkv", "flat")}
        self.assertNotEqual(flat[0.4]["kl_mean"], flat[0.8]["kl_mean"])
        for row in rows:
            if row["pyramid"] != "reversed":
                self.assertNotIn("against", row)
                continue
            other = flat[row["recent_ratio"]]
            self.assertEqual((row["against"], row["against_pyramid"]), ("snapkv", "flat"))
            self.assertAlmostEqual(row["kl_diff"], row["kl_mean"] - other["kl_mean"], 6)
            self.assertAlmostEqual(row["kl_ratio"], row["kl_mean"] / other["kl_mean"], 4)
            self.assertLessEqual(row["kl_diff_low"], row["kl_diff"])
            self.assertLessEqual(row["kl_diff"], row["kl_diff_high"])
            layers = [c for c in row["coverage_layers"] if c is not None]
            self.assertEqual(len(row["coverage_layers"]), 30)
            self.assertAlmostEqual(row["coverage"], sum(layers) / len(layers), 5)

    def test_slots_of_another_policy(self):
        """The oracle with h2o's ring is another one than with its own, and still better than h2o."""
        base = ["--text", TEXT, "--tokens", "12", "--kv-budget", "70%", "--against", "h2o", "--policies"]
        own = self.records(*base, "h2o,oracle")[1]
        rows = self.records(*base, "h2o,oracle", "--slots-of", "h2o")
        self.assertNotIn("slots_of", rows[0])
        self.assertEqual(rows[1]["slots_of"], "h2o")
        self.assertNotEqual(rows[1]["kl_mean"], own["kl_mean"])
        self.assertLess(rows[1]["kl_ratio"], 1)
        self.assertLess(rows[1]["kl_diff_high"], 0)

    def test_pivotal_tokens(self):
        """Hits of the best sets of later steps: the last rows together tell more of them than the last row alone."""
        rows = self.records("--text", TEXT, "--tokens", "17", "--policies", "last-row,last-rows,oracle", "--kv-budget", "45%")
        one, many = rows[0], rows[1]
        self.assertGreater(one["hit_rate"], 0.3)
        self.assertGreater(many["hit_rate"], one["hit_rate"])
        self.assertLess(many["hit_rate"], 1)
        self.assertEqual(len(many["hit_rate_layers"]), 30)
        self.assertLessEqual(min(many["hit_rate_layers"]), many["hit_rate"])
        alone = self.records("--text", TEXT, "--tokens", "17", "--policies", "last-row", "--kv-budget", "45%")[0]
        self.assertEqual((alone["kl_mean"], alone["hit_rate"]), (one["kl_mean"], None))

    def test_tasks(self):
        """Answers that stand in the context: full attention finds them, and what forgot them does not."""
        rows = self.records("--text", TEXT, "--task", "copy", "--task", "passkey", "--instances", "1", "--policies",
                            "full,window,oracle", "--kv-budget", "45%")
        pooled = {r["policy"]: r for r in rows if r["text"] == "all"}
        self.assertEqual([r["text"] for r in rows if r["policy"] == "full"], ["all", "copy", "passkey"])
        self.assertEqual(pooled["full"]["right"], pooled["full"]["right_full"])
        self.assertGreater(pooled["full"]["right"], 0.8)
        self.assertGreater(pooled["oracle"]["right"], pooled["window"]["right"])
        self.fails("quality", "-m", SMOLLM2, "--text", TEXT, "--task", "puzzle", code=2, mentions=["--task", "puzzle"])


if __name__ == "__main__":
    main()
