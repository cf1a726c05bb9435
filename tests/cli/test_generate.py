#!/usr/bin/env python3
"""generate on a tiny model of ids: records, limits, refusals, signals, outputs that fail. Text where a real model is there."""
import fcntl
import os
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

from cli_support import BINARY, CliTest, MALFORMED, TINY, main, model, run

SMOLLM2 = model("smollm2")
LONG = ["--ids", "-", "-n", "200", "--link-latency-us", "50000"]  # goes on for some 20 seconds


class Generate(CliTest):
    def generate(self, *args, ids=b"1 2 3", **kwargs):
        return self.record("generate", "-m", TINY, "--ids", "-", *args, text=ids, **kwargs)

    def test_record(self):
        record = self.generate("-n", "7", "--seed", "5")
        self.assertEqual((record["n_prompt"], record["n_gen"], record["finish"], record["seed"]), (3, 7, "length", 5))
        self.assertEqual(len(record["ids"]), 7)
        self.assertTrue(all(0 <= id < 32 for id in record["ids"]))
        self.assertIsNone(record["text"])
        self.assertGreater(record["first_token_ns"], 0)
        self.assertGreater(record["peak_rss_bytes"], record["kv_device_bytes"])
        for place in ("device", "pinned", "pageable"):
            memory = record["memory"][place]
            self.assertLessEqual(memory["granted_bytes"], memory["available_bytes"], place)
        self.assertEqual(record["memory"]["device"]["asked_bytes"],
                         sum(line["bytes"] for line in record["memory"]["lines"] if line["where"] == "device"))

    def test_ids_on_stdout(self):
        record = self.generate("-n", "7", "--seed", "5")
        got = run("generate", "-m", TINY, "--ids", "-", "-n", "7", "--seed", "5", text=b"1 2 3")
        self.assertEqual([int(word) for word in got.stdout.split()], record["ids"])
        self.assertIn(b"K and V", got.stderr)
        self.assertIn(b"tokens/s", got.stderr)
        quiet = run("generate", "-m", TINY, "--ids", "-", "-n", "7", "--seed", "5", "--quiet", text=b"1 2 3")
        self.assertEqual((quiet.stdout, quiet.stderr), (got.stdout, b""))

    def test_figures(self):
        def figures(*args):
            got = run("generate", "-m", TINY, "--ids", "-", *args, text=b"1 2 3")
            return got.stdout, got.stderr[got.stderr.index(b"granted", got.stderr.index(b"pageable  ")):].partition(b"\n")[2].splitlines()
        out, lines = figures("-n", "0")
        self.assertEqual((out, [line.split()[0] for line in lines]), (b"", [b"prompt", b"memory", b"seed"]))
        out, lines = figures("-n", "1")
        self.assertEqual([line.split()[:1] for line in lines], [[], [b"prompt"], [b"answer"], [b"first"], [b"memory"], [b"seed"]])
        self.assertNotIn(b"tokens/s", lines[2])
        self.assertFalse(out.endswith(b"\n"))  # so the empty line is on stderr
        self.assertIn(b"tokens/s", figures("-n", "4")[1][2])

    def test_seed_decides(self):
        sets = [tuple(self.generate("-n", "20", "--temp", "3", "--top-k", "0", "--seed", seed)["ids"]) for seed in ("1", "1", "2")]
        self.assertEqual(sets[0], sets[1])
        self.assertNotEqual(sets[0], sets[2])

    def test_limits(self):
        self.assertEqual(self.generate("-n", "0")["ids"], [])
        self.assertEqual(self.generate("-n", "1")["n_gen"], 1)
        record = self.generate("-n", "-1", "-c", "8")
        self.assertEqual((record["finish"], record["n_gen"]), ("context", 6))  # the last token needs no room
        self.assertEqual(self.generate("-n", "2", "-c", "3")["n_gen"], 1)  # as the help of -c says

    def test_prompt_pieces_and_bias(self):
        want = self.generate("--temp", "0", "-n", "1")["ids"][0]
        other = self.generate("--temp", "0", "-n", "1", "--logit-bias", f"{want}=-100")["ids"][0]
        self.assertNotEqual(want, other)
        self.assertEqual(self.generate("--temp", "0", "-n", "1", "--logit-bias", "9=100")["ids"], [9])

    def test_refusals(self):
        def fails(*args, ids=b"1 2 3", **kwargs):
            return self.fails("generate", "-m", TINY, *args, text=ids, **kwargs)
        fails("--ids", "-", "-c", "2", mentions=("3 tokens", "2", "--ctx-size"))
        fails("--ids", "-", "-c", "257", mentions=("256", "a smaller --ctx-size"))
        self.assertNotIn("--ctx-size", fails("--ids", "-", ids=b"1 " * 257, mentions=("257", "256", "shorten")))
        self.assertNotIn("--ctx-size", fails("--ids", "-", "-c", "250", ids=b"1 " * 257, mentions=("257", "256", "shorten")))
        fails("--ids", "-", ids=b"1 32", mentions="'32'")
        fails("--ids", "-", ids=b"1 x", mentions="'x'")
        fails("--ids", "-", ids=b" \n", mentions="empty")
        fails("--ids", "/nowhere", mentions="/nowhere")
        fails("--ids", "/", mentions="directory")
        fails("-p", "text", mentions="vocabulary")
        fails("--ids", "-", "--stop", "x", mentions="--stop", code=2)
        fails("--ids", "-", "--logit-bias", "32=1", code=2, mentions="32")
        fails("--ids", "-", "--device", "cuda", mentions="cuda")
        fails("--ids", "-", "--chat", code=2, mentions="--chat")
        fails("-p", "a", "-f", "b", code=2, mentions="--prompt, --file")
        fails("-p", "a", "--system", "b", code=2, mentions="--system")
        fails("-p", "a", "--chat-template", "gemma", code=2, mentions="--chat-template")

    def test_advice_helps(self):
        """A refusal for memory advises what this command has and what would be enough; the tiny model's K and V
        of a page of 32 tokens are 8 KiB in f16."""
        def advice(*args):
            got = run(*args, text=b"1 2 3 4 " * 25)
            lines = got.stderr.decode().splitlines()
            self.assertEqual((got.returncode, got.stdout), (1, b""), lines)
            self.assertNotIn(" 0.0 ", lines[-1])
            return lines[-1].partition("fit")[2].lstrip("s")
        generate = ["generate", "-m", TINY, "--ids", "-", "--kv-device-bytes"]
        larger = "a larger --kv-device-bytes"
        self.assertEqual(advice(*generate, "100"), f"; use {larger}")  # not even one token
        self.assertEqual(advice(*generate, "100", "--kv-cache-dtype", "q8_0"), f"; use {larger}")
        self.assertEqual(advice(*generate, "32KiB", "-c", "150"), f"; use a smaller --ctx-size or --kv-cache-dtype q8_0 or {larger}")
        self.assertEqual(advice(*generate, "32KiB", "-c", "250"), f"; use a smaller --ctx-size or {larger}")
        evaluate = ["eval", "-m", TINY, "--ids", "-", "--kv-device-bytes"]
        self.assertEqual(advice(*evaluate, "20KiB"), f"; use a smaller --tokens or --kv-cache-dtype q8_0 or {larger}")
        self.assertEqual(advice(*evaluate, "20KiB", "--exact"), f"; use a smaller --tokens or {larger}")
        bench = ["bench", "-m", TINY, "-p", "0", "-n", "4", "--kv-device-bytes"]
        self.assertEqual(advice(*bench, "32KiB", "-d", "240"), f"; use a smaller --n-depth, --n-prompt or --n-gen or {larger}")
        self.assertEqual(advice(*bench, "32KiB", "-npl", "1000"), f"; use a smaller --n-depth, --n-prompt, --n-gen or --npl or {larger}")
        self.assertEqual(advice("bench", "-m", TINY, "-p", "0", "-n", "4", "--kv-device-bytes", "100", "-npl", "1000", "-d", "200"), f"; use {larger}")

    def test_malformed_files(self):
        for name in sorted(os.listdir(MALFORMED)):
            if not name.endswith(".gguf") or name == "ok.gguf":
                continue
            path = os.path.join(MALFORMED, name)
            for args in (["generate", "-m", path, "-n", "8", "-p", "x"], ["generate", "-m", path, "-n", "8", "--ids", "-"],
                         ["inspect", path], ["eval", "-m", path, "--ids", "-"], ["bench", "-m", path], ["chat", "-m", path]):
                self.fails(*args, text=b"1 2", mentions=name)
        for path in ("/", "/dev/null", os.path.join(MALFORMED, "README.md"), "/nowhere/x.gguf"):
            self.fails("generate", "-m", path, "-p", "x", mentions=path)
            self.fails("inspect", path, mentions=path)

    def start(self, *args):
        process = subprocess.Popen([BINARY, "generate", "-m", TINY, *LONG, *args], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        process.stdin.write(b"1 2 3")
        process.stdin.close()
        return process

    def test_signals(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            process = self.start("--quiet")
            first = process.stdout.read(1)
            process.send_signal(number)
            rest = process.stdout.read()
            self.assertEqual(process.wait(timeout=60), code)
            words = (first + rest).split(b" ")
            self.assertTrue(all(word.isdigit() for word in words), words[-3:])
            self.assertEqual(process.stderr.read(), b"")

    def test_signal_while_the_prompt_is_read(self):
        process = subprocess.Popen([BINARY, "generate", "-m", TINY, "--ids", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdin.write(b"1 ")
        process.stdin.flush()
        while struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, b"    "))[0] > 0:
            time.sleep(0.01)  # until it has been read
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (143, b""), err)

    def test_signal_keeps_the_record_whole(self):
        process = self.start("--json")
        process.stderr.readline()  # of the memory plan
        process.send_signal(signal.SIGINT)
        line = process.stdout.read()
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertTrue(line.endswith(b"\n") and b'"finish":"interrupted"' in line, line[-200:])

    def test_reader_goes_away(self):
        process = self.start("--quiet")
        process.stdout.read(1)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 1)
        lines = process.stderr.read().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(b"stdout", lines[0])

    def test_no_space(self):
        with open("/dev/full", "wb") as full:
            for args in ([], ["--json"]):
                got = subprocess.run([BINARY, "generate", "-m", TINY, "--ids", "-", "-n", "3", "--quiet", *args], input=b"1",
                                     stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(got.returncode, 1)
                self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
                self.assertIn(b"No space left", got.stderr)

    def test_closed_stdout(self):
        got = subprocess.run(f"'{BINARY}' generate -m '{TINY}' --ids - -n 3 --quiet >&-", shell=True, input=b"1", stderr=subprocess.PIPE)
        self.assertEqual(got.returncode, 1)
        self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)

    def test_model_in_the_cache_folder(self):
        with tempfile.TemporaryDirectory() as cache:
            os.mkdir(os.path.join(cache, "models"))
            os.symlink(TINY, os.path.join(cache, "models", "small.gguf"))
            self.ok("generate", "-m", "small.gguf", "--cache-dir", cache, "--ids", "-", "-n", "1", text=b"1")
            self.fails("generate", "-m", "other.gguf", "--cache-dir", cache, "--ids", "-", text=b"1", mentions="other.gguf")
        with tempfile.TemporaryDirectory() as cache:
            os.makedirs(os.path.join(cache, "pivotkv/models"))
            os.symlink(TINY, os.path.join(cache, "pivotkv/models", "small.gguf"))
            self.ok("generate", "-m", "small.gguf", "--ids", "-", "-n", "1", text=b"1", env={**os.environ, "XDG_CACHE_HOME": cache})


@unittest.skipIf(SMOLLM2 is None, "no model smollm2")
class GenerateText(CliTest):
    def greedy(self, *args, text=b"", n=24):
        return self.record("generate", "-m", SMOLLM2, "--temp", "0", "-n", str(n), *args, text=text)

    def test_stream_is_the_record(self):
        record = self.greedy("-p", "Emoji: 😀 😀 日本語 日本語")
        got = run("generate", "-m", SMOLLM2, "--temp", "0", "-n", "24", "-p", "Emoji: 😀 😀 日本語 日本語")
        self.assertEqual(got.stdout.decode(), record["text"])
        self.assertEqual(len(record["ids"]), record["n_gen"])

    def test_texts_of_n_are_prefixes(self):
        whole = self.greedy("-p", "Emoji: 😀 😀 日本語 日本語", n=12)["text"]
        for n in range(1, 12, 2):
            text = self.greedy("-p", "Emoji: 😀 😀 日本語 日本語", n=n)["text"]
            self.assertTrue(whole.startswith(text), (n, text, whole))

    def test_ways_in_and_chat(self):
        want = self.greedy("-p", "The capital of France is")
        self.assertEqual(self.greedy(text=b"The capital of France is")["ids"], want["ids"])
        self.assertEqual(self.greedy("-f", "-", text=b"The capital of France is")["ids"], want["ids"])
        ids = self.ok("tokenize", "-m", SMOLLM2, "-p", "The capital of France is")
        self.assertEqual(self.greedy("--ids", "-", text=ids)["ids"], want["ids"])
        chat = self.greedy("--chat", "-p", "What is 2+2?", n=40)
        self.assertEqual(chat["finish"], "end", chat["text"])
        self.assertIn("4", chat["text"])
        written = "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.greedy("--special", "-p", written)["ids"], self.greedy("--chat", "--system", "Be kind", "-p", "Hi")["ids"])
        self.assertGreater(self.greedy("-p", written)["n_prompt"], self.greedy("--special", "-p", written)["n_prompt"])

    def test_stop_strings(self):
        text = self.greedy("-p", "One, two, three,", n=20)["text"]
        stop = text[5:8]
        record = self.greedy("-p", "One, two, three,", "--stop", "never to be seen", "--stop", stop, n=20)
        self.assertEqual((record["text"], record["finish"]), (text[:text.index(stop)], "stop"))

    def test_empty_prompt(self):
        self.fails("generate", "-m", SMOLLM2, "-p", "", mentions="empty")
        self.fails("generate", "-m", SMOLLM2, mentions="empty")


if __name__ == "__main__":
    main()
