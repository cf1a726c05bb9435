#!/usr/bin/env python3
"""Where K and V live: the plan command, and budgets that change nothing but memory and what moves."""
import os
import random
import re
import tempfile

from cli_support import CliTest, GEMMA2, SOURCE, main, model, run

TINY = {name: os.path.join(SOURCE, f"tests/golden/tiny/{name}.gguf") for name in ("llama_q4_1", "gemma3", "qwen3")}
GEMMA3 = model("gemma3")


def lines(record):
    return {line["what"]: line["bytes"] for line in record["memory"]["lines"]}


class Plan(CliTest):
    def test_text_and_record_agree(self):
        text = self.ok("plan", "-m", TINY["gemma3"], "-c", "500").decode()
        record = self.record("plan", "-m", TINY["gemma3"], "-c", "500")
        self.assertIn(f"{record['kv_token_bytes']} bytes a token", text)
        for what, size in lines(record).items():
            self.assertRegex(text, rf"{re.escape(what)} +{size} ")
        for place in ("device", "pinned", "pageable"):
            self.assertEqual(sum(line["bytes"] for line in record["memory"]["lines"] if line["where"] == place),
                             record["memory"][place]["asked_bytes"])
            self.assertLessEqual(record["memory"][place]["asked_bytes"], record["memory"][place]["available_bytes"])

    def test_same_plan_as_a_run(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
            ids.write("1 2 3")
            ids.flush()
            for options in ([], ["--kv-budget", "400"], ["--kv-policy", "full"]):
                ran = self.record("eval", "-m", TINY["llama_q4_1"], "--ids", ids.name, *options)
                planned = self.record("plan", "-m", TINY["llama_q4_1"], "-c", "3", *options)
                self.assertEqual(lines(ran), lines(planned))

    def test_budget_shrinks_the_device_and_fills_the_host(self):
        args = ["plan", "-m", TINY["llama_q4_1"], "-c", "2000"]
        whole, half = self.record(*args, "--kv-policy", "full"), self.record(*args, "--kv-budget", "50%")
        tokens = self.record(*args, "--kv-budget", "1000")
        key = "K and V, global layers"
        self.assertEqual(lines(half)["K and V, all blocks"], lines(whole)["K and V, all blocks"])
        self.assertEqual(lines(half), lines(tokens))
        self.assertEqual(half["kv_budget_bytes"], half["kv_token_bytes"] * 1000)
        used = lines(half)[key] + lines(half)["K and V, staging tiles"]
        self.assertLessEqual(used, half["kv_budget_bytes"])
        self.assertGreater(used, half["kv_budget_bytes"] * 0.95)
        self.assertEqual(lines(self.record(*args, "--kv-budget", "100%")), lines(whole))
        self.assertEqual((whole["kv_global_layers"], whole["kv_dense_layers"], half["kv_dense_layers"]), (2, 2, 0))

    def test_policies_that_prune(self):
        """At their own bytes: fewer than everything, and no budget, by name."""
        args = ["plan", "-m", TINY["qwen3"], "-c", "2000"]
        key = "K and V, global layers"
        whole = lines(self.record(*args))[key]
        for policy in ("pyramidinfer", "pyramidinfer-paper"):
            record = self.record(*args, "--kv-policy", policy)
            self.assertLess(lines(record)[key], whole)
            self.assertLess(record["memory"]["pinned"]["asked_bytes"], whole)
            self.fails(*args, "--kv-policy", policy, "--kv-budget", "50%", mentions=[policy, "no budget"])
        self.fails("plan", "-m", TINY["gemma3"], "-c", "500", "--kv-policy", "pyramidinfer", mentions="window")

    def test_refusals(self):
        args = ["plan", "-m", TINY["llama_q4_1"], "-c", "2000"]
        line = self.fails(*args, "--kv-budget", "1", mentions=["KV budget", "--kv-budget"])
        least = re.search(r"need (\d+)", line).group(1)
        self.ok(*args, "--kv-budget", f"{least}KiB")
        self.fails(*args, "--kv-budget", f"{int(least) - 1}KiB", mentions=f"need {least}KiB")
        for limit in ("600KiB", "900KiB"):
            record = self.record(*args, "--kv-policy", "full", "--kv-device-bytes", limit)
            on_device = sum(line["bytes"] for line in record["memory"]["lines"]
                            if line["where"] == "device" and line["what"].startswith("K and V"))
            self.assertLessEqual(on_device, int(limit[:-3]) << 10)
        self.fails("plan", "-m", "/nowhere/x.gguf", mentions="/nowhere/x.gguf")
        self.fails(*args, "--kv-policy", "device", "--kv-budget", "5%", code=2, mentions="--kv-policy device")
        self.fails(*args, "--recent", "5", code=2, mentions="--recent")
        self.fails(*args, "--full-resident", "last", code=2, mentions="--full-resident")
        for option in ("--kv-host-bytes", "--kv-device-bytes"):
            got = run(*args, "--kv-policy", "full", option, "4096")
            self.assertEqual((got.returncode, got.stdout), (1, b""), option)
            line = got.stderr.decode().splitlines()[-1]
            self.assertIn("4096", line)
            self.assertIn(f"a larger {option}", line)

    def test_gemma3_at_32768(self):
        if GEMMA3 is None:
            self.skipTest("no model gemma3")
        record = self.record("plan", "-m", GEMMA3, "-c", "32768")
        self.assertEqual(record["kv_token_bytes"], 3072)
        self.assertEqual(lines(record)["K and V, global layers"], 100663296)
        self.assertLess(lines(record)["K and V, sliding layers (window and ring)"], 20 << 20)
        self.assertGreaterEqual(lines(record)["logits and staging"], 262144 * 4)


class Budget(CliTest):
    def test_any_budget_gives_the_same_numbers(self):
        rng = random.Random(3)
        for name, path in TINY.items():
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
                ids.write(" ".join(str(rng.randrange(320)) for _ in range(900)))
                ids.flush()
                args = ["eval", "-m", path, "--ids", ids.name, "--perplexity", "--top", "20"]
                want = self.record(*args)
                for option in ("100%", "85%", "760"):
                    got = self.record(*args, "--kv-budget", option, "--recent", "40")
                    for key in ("top", "lse", "mean_nll", "ppl"):
                        self.assertEqual(got[key], want[key], (name, option, key))
                    moved = got["kv_tier"]
                    self.assertGreater(moved["stored_bytes"], 0)
                    self.assertEqual(moved["loaded_bytes"] > 0, option != "100%", (name, option))

    def test_short_contexts(self):
        for count in (1, 2, 31, 32, 33, 64):
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as ids:
                ids.write(" ".join("5" for _ in range(count)))
                ids.flush()
                args = ["eval", "-m", GEMMA2, "--ids", ids.name]
                self.assertEqual(self.record(*args, "--kv-policy", "full")["top"], self.record(*args)["top"])


if __name__ == "__main__":
    main()
