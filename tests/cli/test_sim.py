#!/usr/bin/env python3
"""--sim: predictions are labelled, repeatable, move the way they must, need no weights and no memory; what is refused."""
import json
import os
import tempfile

from cli_support import CliTest, SOURCE, main

PROFILE = os.path.join(SOURCE, "docs/results/2026-11-29-link-zen3.profile.json")  # version 1
MODEL = os.path.join(SOURCE, "tests/golden/tiny/llama_q4_1.gguf")
SIM = ("-m", MODEL, "--sim", PROFILE)


class Sim(CliTest):
    def bench(self, *args):
        return self.record("bench", *SIM, "-p", "0", "-n", "4", "-r", "2", *args)

    def test_labelled_and_the_same_every_time(self):
        record = self.bench("-d", "600")
        self.assertEqual((record["simulated"], record["device"], record["cpu"], record["threads"]), (PROFILE, "sim", "avx2", 2))
        self.assertAlmostEqual(record["samples_ts"][0] / record["samples_ts"][1], 1, places=3)  # of whole nanoseconds
        self.assertEqual(record["samples_ts"], self.bench("-d", "600")["samples_ts"])
        text = self.ok("bench", *SIM, "-p", "0", "-n", "4", "-r", "1").decode()
        self.assertTrue(text.startswith("simulated, nothing was run; profile "), text)
        self.assertNotIn("simulated", self.record("bench", "-m", MODEL, "-p", "0", "-n", "1", "-r", "1"))

    def test_a_slow_link_is_its_own_bound(self):
        record = self.bench("-d", "1500", "--kv-budget", "30%", "--link-gbps", "0.01")
        tier = record["kv_tier"]
        self.assertGreater(tier["loaded_bytes"], 0)
        steps = 4 * 3  # with the warm-up
        bound_ms = tier["loaded_bytes"] / steps / 0.01e9 * 1e3
        self.assertAlmostEqual(1e3 / record["median_ts"], bound_ms, delta=0.1 * bound_ms)
        faster = self.bench("-d", "1500", "--kv-budget", "30%", "--link-gbps", "0.02")
        self.assertAlmostEqual(faster["median_ts"] / record["median_ts"], 2, delta=0.1)
        whole = self.bench("-d", "1500", "--kv-budget", "100%", "--link-gbps", "0.01")
        self.assertEqual(whole["kv_tier"]["loaded_bytes"], 0)
        self.assertGreater(whole["median_ts"], 10 * record["median_ts"])

    def test_plan_tells_times_and_bound(self):
        args = ("plan", *SIM, "-c", "2000", "--kv-budget", "30%", "--link-gbps", "0.01")
        record, text = self.record(*args), self.ok(*args).decode()
        self.assertEqual((record["simulated"], record["simulated_prompt_tokens"]), (PROFILE, 1998))
        self.assertGreaterEqual(record["simulated_step_ms"], record["simulated_step_bound_ms"])
        self.assertLessEqual(record["simulated_step_ms"], 1.1 * record["simulated_step_bound_ms"])
        self.assertAlmostEqual(record["simulated_step_bound_ms"], record["simulated_step_loaded_bytes"] / 0.01e9 * 1e3, places=3)
        self.assertGreater(record["simulated_prompt_ms"], 0)
        self.assertIn(f"decode step with 1 x 2000 tokens: {record['simulated_step_ms']:.3f} ms", text)
        self.assertNotIn("simulated", self.ok("plan", "-m", MODEL, "-c", "2000").decode())
        several = self.record("plan", *SIM, "-c", "100", "--parallel", "3")
        self.assertEqual((several["sequences"], several["simulated_step_loaded_bytes"]), (3, 0))
        self.fails("plan", *SIM, "-c", "2", mentions=["--sim", "at least 3"])

    def test_limits_of_the_profile_not_of_the_machine(self):
        record = self.record("plan", *SIM, "-c", "2000", "--parallel", "4096")
        self.assertGreater(record["memory"]["device"]["available_bytes"], 1 << 45)
        self.fails("plan", *SIM, "-c", "2000", "--kv-device-bytes", "10KiB", "--quiet", mentions="--kv-device-bytes")

    def test_refusals(self):
        for option, value in (("--device", "cpu"), ("--cpu", "scalar"), ("--threads", "1")):
            self.fails("bench", *SIM, option, value, code=2, mentions=["--sim", option])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.json")
            self.fails("plan", "-m", MODEL, "--sim", path, mentions=["profile.json", "No such file"])
            with open(PROFILE, encoding="utf-8") as file:
                profile = json.load(file)
            for change, word in (({"cached": True}, "cache"), ({"schema": "pivotkv/profile/9"}, "profile/9"), ({"threads": 0}, "threads")):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump({**profile, **change}, file)
                self.fails("plan", "-m", MODEL, "--sim", path, mentions=word)


if __name__ == "__main__":
    main()
