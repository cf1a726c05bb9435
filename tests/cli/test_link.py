#!/usr/bin/env python3
"""link: shape of what it prints, refusals, the profile file, and output that fails."""
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
import unittest

from cli_support import BINARY, CliTest, is_sanitized, main, run

TINY = ("--quick", "--region", "1MiB", "--max-size", "256KiB", "-r", "2")
# Small enough to run often.
ONE = (*TINY, "--direction", "host_to_device", "--pattern", "gather", "--memory", "pinned", "--compute", "none")


class Link(CliTest):
    def rows(self, *args):
        lines = [json.loads(line) for line in self.ok("link", *args, "--json").decode().splitlines()]
        for line in lines:
            self.assertEqual(line["schema"], "pivotkv/link/1")
        self.assertEqual(lines[0]["record"], "run")
        for line in lines[1:]:
            self.assertEqual(line["record"], "row")
        return lines[0], lines[1:]

    def test_every_row_has_its_samples(self):
        head, rows = self.rows(*TINY, "-r", "5", "--memory", "pinned", "--compute", "read")
        self.assertEqual((head["device"], head["measures"], head["rounds"], head["seed"]), ("cpu", "memory", 5, 1))
        for row in rows:
            unit = next(unit for unit in ("gbps", "us", "gops") if f"samples_{unit}" in row)
            samples = sorted(row[f"samples_{unit}"])
            burst = "latency" in row["name"] or "call" in row["name"]
            self.assertIn(len(samples), (5 * 32,) if burst else (5, 15), row["name"])
            if row["name"] != "copy_wait":  # a difference of two times
                self.assertGreater(samples[0], 0, row)
            if not burst:
                self.assertAlmostEqual(row[f"median_{unit}"], samples[len(samples) // 2], places=5)
            self.assertLessEqual(samples[0], row[f"p10_{unit}"])
            self.assertLessEqual(row[f"p10_{unit}"], row[f"p90_{unit}"])
            self.assertLessEqual(row[f"p90_{unit}"], samples[-1] * 1.000001)
            if row["name"].startswith("host_to_device_bidirectional"):
                other = rows[rows.index(row) + 1]
                self.assertTrue(other["name"].startswith("device_to_host_bidirectional"))
                self.assertEqual(row["samples_sum_gbps"], other["samples_sum_gbps"])
                for one, two, both in zip(row["samples_gbps"], other["samples_gbps"], row["samples_sum_gbps"]):
                    self.assertAlmostEqual(both, 2 * min(one, two), delta=1e-6 * both)
            if row.get("compute") == "read":
                self.assertEqual(len(row["samples_overlap"]), 5)

    def test_kernels_tell_their_work(self):
        _, rows = self.rows(*ONE)
        kernels = {row["name"]: row for row in rows if row["name"].startswith("kernel_")}
        self.assertEqual(len(kernels), 19)
        one, many = kernels["kernel_linear_q8_rows_1"], kernels["kernel_linear_q8_rows_256"]
        self.assertGreater(many["flops"] / many["local_bytes"], 10 * one["flops"] / one["local_bytes"])
        self.assertGreater(one["median_us"], 0)

    def test_rows_cover_what_is_asked(self):
        _, rows = self.rows(*TINY, "--streams", "1,3", "--pieces", "7,64", "--memory", "pinned")
        names = {row["name"] for row in rows}
        for way, pattern in (("host_to_device", "gather"), ("device_to_host", "scatter")):
            for name in ("memcpy_ce", "strided_ce", f"{pattern}_ce", f"bidirectional_{pattern}_ce", "latency_ce", "bidirectional_memcpy_ce"):
                self.assertIn(f"{way}_{name}", names)
        for name in ("copy_call", "launch", "launch_latency", "launch_call", "device_local_read", "device_int8", "device_f32"):
            self.assertIn(name, names)
        copies = [row for row in rows if "calls" in row]
        self.assertEqual({row["streams"] for row in copies}, {1, 3})
        self.assertEqual({row["pieces"] for row in copies if row["pattern"] == "gather"}, {7, 64})
        self.assertEqual({row["compute"] for row in copies}, {"none", "int8", "read"})
        self.assertEqual({row["piece_bytes"] for row in copies}, {64, 1024, 16384, 262144})
        self.assertTrue(all(row["piece_bytes"] * row["pieces"] <= 1 << 20 for row in copies))
        _, rows = self.rows(*ONE)
        self.assertEqual({row["memory"] for row in rows if "memory" in row}, {"pinned"})
        self.assertEqual({row["name"] for row in rows if "calls" in row}, {"host_to_device_gather_ce"})
        _, rows = self.rows(*TINY, "--direction", "device_to_host", "--pattern", "contiguous", "--compute", "none")
        self.assertEqual({row["memory"] for row in rows if "calls" in row}, {"pageable", "huge", "pinned"})

    def test_cache_is_never_the_headline(self):
        head, rows = self.rows(*ONE)
        self.assertTrue(head["region_bytes"] <= head["last_level_bytes"] or not head["cached"])
        self.assertEqual(head["cached"], head["region_bytes"] <= head["last_level_bytes"])
        text = self.ok("link", *ONE, "--quiet").decode()
        self.assertEqual("No headline" in text, head["cached"])
        self.assertEqual(" of the bound" in text, False if head["cached"] else " of the bound" in text)
        if head["cached"]:
            self.assertTrue(any(line.endswith(" *") for line in text.splitlines()))
            self.assertTrue(all(row.get("bound_gbps") is None for row in rows))

    def test_emulated_link_is_what_is_measured(self):
        head, rows = self.rows(*ONE, "--link-gbps", "0.5", "--min-size", "16KiB")
        self.assertEqual(head["link_gbps"], 0.5)
        for row in rows:
            if "calls" in row:
                self.assertLess(row["median_gbps"], 0.525, row)
                self.assertGreater(row["median_gbps"], 0.2, row)
                self.assertEqual(row["bound_gbps"], 0.5)

    def test_text_says_what_it_is(self):
        text = self.ok("link", *ONE, "--quiet", "--seed", "42", "--order", "descending").decode()
        self.assertIn("The cpu device has no bus", text)
        self.assertIn("seed 42, descending order, 2 rounds", text)
        self.assertIn("host_to_device_gather_ce  pinned, node", text)

    def test_refusals(self):
        for args, words in (
            (("--min-size", "2KiB", "--max-size", "1KiB"), ("--min-size", "2048", "1024")),
            (("--max-size", "2MiB", "--region", "1MiB"), ("--max-size", "2097152", "--region")),
            (("--nodes", "0,0"), ("--nodes", "twice")),
            (("--profile", "/tmp/x", "--pattern", "gather"), ("--profile", "--pattern")),
            (("--profile", "/tmp/x", "--memory", "huge"), ("--profile", "--memory")),
            (("--pieces", "16385"), ("--pieces", "16384")),
            (("--streams", "17"), ("--streams", "16")),
        ):
            self.fails("link", *args, code=2, mentions=words)
        self.fails("link", "--quick", "--nodes", "1023", mentions=("--nodes", "1023"))
        self.fails("link", "--quick", "--device", "cuda", mentions="cuda")

    def test_memory_is_planned(self):
        line = self.fails("link", *TINY, "--memory-bytes", "10MiB", mentions=("bytes asked on the host", "10485760 available", "--region"))
        self.assertIn(f"{6 << 20} bytes asked on the host", line)
        line = self.fails("link", "--quick", "--region", "1GiB", "--memory-bytes", "900MiB", mentions=("943718400 available", "use --region "))
        advice = line.split("use --region ")[1].split()[0]
        self.ok("link", *ONE, "--region", advice, "--quiet", "--memory-bytes", "900MiB")

    @unittest.skipIf(is_sanitized(), "a sanitizer needs the address space")
    def test_memory_that_the_system_refuses(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
        got = run("link", "--quick", "--region", "512MiB", "--quiet", preexec_fn=limit)
        self.assertEqual((got.returncode, got.stdout), (1, b""))
        self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
        self.assertIn(b"refused", got.stderr)

    def test_profile(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write("old")
            self.ok("link", *TINY, "--compute", "none", "--profile", path)
            self.assertEqual(os.listdir(folder), ["profile.json"])
            with open(path, encoding="utf-8") as file:
                profile = json.load(file)
            self.assertEqual((profile["schema"], profile["device"], profile["emulated"]), ("pivotkv/profile/2", "cpu", False))
            for figure in (*profile["local"].values(), *profile["launch"].values(), *profile["copy"].values()):
                self.assertGreaterEqual(figure, 0)
            self.assertNotIn("beside", profile, "nothing was measured beside compute")
            for kind in ("linear_q4", "linear_q8", "linear_f32", "attend", "rows"):
                kernel = profile["kernels"][kind]
                self.assertGreater(kernel["launch_us"], 0)
                self.assertTrue(all(point["gbps"] > 0 for point in kernel["points"]), kind)
            self.ok("link", *TINY, "--compute", "read", "--memory", "pinned", "--profile", path)
            with open(path, encoding="utf-8") as file:
                for figure in json.load(file)["beside"].values():
                    self.assertTrue(0 < figure <= 1, figure)
            for direction in ("host_to_device", "device_to_host", "both"):
                sizes = [point["piece_bytes"] for point in profile["link"][direction]["contiguous"]]
                self.assertEqual(sizes, [64, 1024, 16384, 262144])
                self.assertTrue(all(point["gbps"] > 0 for curve in profile["link"][direction].values() for point in curve))

    def test_profile_that_cannot_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, word in ((os.path.join(folder, "no", "such"), "No such file"), (folder, "no regular file"),
                               ("/dev/null", "no regular file"), ("", "no path"), (os.path.join(folder, "x" * 300), "too long")):
                begin = time.monotonic()
                self.fails("link", "--profile", path, mentions=word)
                self.assertLess(time.monotonic() - begin, 5, "refused before anything is measured")
            self.assertEqual(os.listdir(folder), [])

    def test_profile_of_a_run_that_fails_is_the_old_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write("old")
            self.fails("link", *TINY, "--memory-bytes", "10MiB", "--profile", path)
            # No room for the file itself, found out at the end.
            limit = lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
            got = run("link", *TINY, "--compute", "none", "--json", "--quiet", "--profile", path, preexec_fn=limit)
            self.assertEqual(got.returncode, 1)
            self.assertIn(b"not written", got.stderr)
            self.assertEqual(os.listdir(folder), ["profile.json"])
            with open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), "old")

    def test_output_that_fails(self):
        with open("/dev/full", "wb") as full:
            got = subprocess.run([BINARY, "link", *ONE, "--quiet"], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(got.returncode, 1)
        self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
        self.assertIn(b"cannot write to stdout", got.stderr)
        end, other = os.pipe()
        os.close(end)
        got = subprocess.run([BINARY, "link", *ONE, "--quiet", "--json"], stdout=other, stderr=subprocess.PIPE, timeout=60)
        os.close(other)
        self.assertEqual(got.returncode, 1)
        self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
        self.assertIn(b"Broken pipe", got.stderr)

    def test_signal_reports_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "profile.json")
            process = subprocess.Popen([BINARY, "link", "--quick", "-r", "1000", "--json", "--profile", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(0.7 if not is_sanitized() else 5)
            process.send_signal(signal.SIGINT)
            stdout, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130)
            self.assertEqual(os.listdir(folder), [])
            for line in stdout.decode().splitlines():
                json.loads(line)


if __name__ == "__main__":
    main()
