#!/usr/bin/env python3
"""Every option with every kind of bad value: exit code 2 and one line that names option and allowed values."""
import os
import re
import subprocess
import sys
import unittest

BINARY = os.path.join(os.environ.get("PIVOTKV_BUILD", "build/release"), "pivotkv")
NO_MODEL = "/nowhere/no-such-model.gguf"
HUGE = "9" * 30
NOT_NUMBERS = ["", "nan", "inf", "-inf", "1e999", "abc", "1x", " 1", "1 ", "0x10", "+1", "1,5", "--", HUGE, "-" + HUGE, "1\n2", "\xff"]

# option: (kind, least, most); a kind "real>" excludes its least value
NUMERIC = {
    "n-predict": ("int", -1, 1 << 30),
    "ctx-size": ("int", 1, 1 << 30),
    "threads": ("int", 1, 1024),
    "temp": ("real", 0, 100),
    "top-k": ("int", 0, 2147483647),
    "top-p": ("real>", 0, 1),
    "min-p": ("real", 0, 1),
    "repeat-penalty": ("real>", 0, 10),
    "presence-penalty": ("real", -2, 2),
    "frequency-penalty": ("real", -2, 2),
    "repeat-last-n": ("int", 0, 2147483647),
    "seed": ("int", 0, (1 << 53) - 1),
    "kv-device-bytes": ("size", 1, 1 << 50),
    "kv-host-bytes": ("size", 1, 1 << 50),
    "recent": ("int", 1, 1 << 30),
    "kv-check": ("int", 1, 1 << 30),
    "sinks": ("int", 0, 1 << 20),
    "recent-ratio": ("real>", 0, 1),
    "context": ("int", 128, 1 << 30),
    "instances": ("int", 1, 1000),
    "parallel": ("int", 1, 4096),
    "link-gbps": ("real0", 0.001, 10000),
    "link-latency-us": ("real", 0, 1000000),
    "tokens": ("int", 1, 1 << 30),
    "top": ("int", 0, 1 << 30),
    "score-from": ("int", 1, 1 << 30),
    "n-prompt": ("int", 0, 1 << 24),
    "n-gen": ("int", 0, 1 << 24),
    "n-depth": ("ints", 0, 1 << 24),
    "npl": ("ints", 1, 1024),
    "repetitions": ("int", 1, 1000),
    "min-size": ("size", 1, 1 << 30),
    "max-size": ("size", 1, 1 << 30),
    "region": ("size", 1, 1 << 30),
    "memory-bytes": ("size", 1, 1 << 50),
    "pieces": ("ints", 1, 16384),
    "streams": ("ints", 1, 16),
    "nodes": ("ints", 0, 1023),
}
OTHER_BAD = {
    "logit-bias": ["", "5", "5=", "=1", "-1=1", "5=nan", "5=101", "5=-101", "x=1", "5=1=1", HUGE + "=1"],
    "device": ["", "gpu", "CPU", "cpu|cuda", "cpu "],
    "cpu": ["", "sse", "AVX2", "auto|"],
    "kv-cache-dtype": ["", "f64", "F16", "q4_0"],
    "chat-template": ["", "vicuna", "ChatML"],
    "log-level": ["", "loud", "5"],
    "log-format": ["", "xml"],
    "stop": ["", "x" * 4097, "\udcff", "\udce2\udc80"],
    "kv-policy": ["pivots", "FULL", "", "device|full"],
    "kv-budget": ["", "0", "0%", "100.1%", "-1", "-5%", "%", "nan%", "1e3", "5%%", "10 %", "1.5MiB", "4GB", HUGE],
    "pyramid": ["", "steep", "Flat", "flat|"],
    "policies": ["", "nosuch", "snapkv,", "full|window"],
    "slots-of": ["", "nosuch", "oracle"],
    "against": ["", "nosuch"],
    "task": ["", "puzzle"],
    "mode": ["", "slow"],
    "full-resident": ["", "middle", "first|"],
    "gpu-layers": ["99", "0"],
    "ngl": ["99"],
    "direction": ["", "both|", "h2d"],
    "pattern": ["", "random"],
    "memory": ["", "Pinned", "hugetlb"],
    "compute": ["", "f32"],
    "order": ["", "reversed"],
}
TEXT_OPTIONS = {"model", "cache-dir", "prompt", "file", "ids", "text", "system", "profile", "sim", "kv-save", "kv-load", "out", "squeeze-out"}
WITHOUT_MODEL = {"link", "doctor"}


def run(*args, **kwargs):
    return subprocess.run([BINARY, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, **kwargs)


def commands():
    text = run("--help").stdout.decode()
    return [name for name in re.findall(r"^  ([a-z]+) ", text.split("commands:")[1], re.M) if name != "help"]


def options(command):
    """Long names of a command's options, with the placeholder of the value (None for flags)."""
    text = run(command, "--help").stdout.decode()
    return {name: value for name, value in re.findall(r"^  (?:-\w, |    )--([a-z-]+)(?: (\S+))?", text, re.M)}


class Options(unittest.TestCase):
    def refused(self, command, *args, mentions):
        got = run(command, *args)
        where = f"{command} {args!r}"
        self.assertEqual(got.returncode, 2, where + got.stderr.decode(errors="replace"))
        self.assertEqual(got.stdout, b"", where)
        lines = got.stderr.decode(errors="replace").splitlines()
        self.assertEqual(len(lines), 1, f"{where}: {lines}")
        self.assertTrue(lines[0].startswith(f"pivotkv: {command}: "), lines[0])
        self.assertIn(mentions, lines[0], where)
        return lines[0]

    def each(self):
        for command in commands():
            for name, value in options(command).items():
                yield command, name, value

    def base(self, command):
        return [NO_MODEL] if command == "inspect" else ["-m", NO_MODEL] if command not in WITHOUT_MODEL else []

    def test_every_option_is_known_to_this_test(self):
        for command, name, value in self.each():
            if value and name not in TEXT_OPTIONS:
                self.assertTrue(name in NUMERIC or name in OTHER_BAD, f"{command} --{name} {value}: not in the tables")

    def test_bad_numbers(self):
        seen = set()
        for command, name, _ in self.each():
            if name not in NUMERIC:
                continue
            kind, least, most = NUMERIC[name]
            again, bad = name in seen, [str(least - 1), str(most + 1)]
            seen.add(name)
            bad += ["nan"] if again else NOT_NUMBERS  # one parser: the whole list once an option
            bad += [str(least)] if kind == "real>" else []
            bad += [str(least / 2), "1e-9", "-0.001"] if kind == "real0" else []
            bad += ["1.5", "1e3"] if kind in ("int", "ints", "size") else []
            bad += ["1GB", "1.5GiB", "GiB", HUGE + "GiB"] if kind == "size" else []
            bad += ["1,", ",1", "1,,2", "1,x", "1," + HUGE, ",".join(["1"] * 17)] if kind == "ints" else []
            if kind == "ints" and not again:
                bad.remove("1,5")
            for value in bad:
                line = self.refused(command, *self.base(command), f"--{name}={value}", mentions=f"--{name}: '")
                self.assertIn(" is not allowed: ", line)
                self.assertIn(str(least), line)

    def test_bad_words(self):
        for command, name, _ in self.each():
            for value in OTHER_BAD.get(name, []):
                self.refused(command, *self.base(command), f"--{name}={value}", mentions=f"--{name}: ")

    def test_limits_are_allowed(self):
        for command, name, _ in self.each():
            if name not in NUMERIC or command in WITHOUT_MODEL:
                continue
            kind, least, most = NUMERIC[name]
            least = "0.001" if kind == "real>" else least
            for value in (least, most, *([0] if kind == "real0" else [])):
                extra = {"score-from": ["--perplexity"], "recent": ["--kv-policy", "full"], "kv-check": ["--kv-policy", "full"],
                         "sinks": ["--kv-policy", "h2o"], "recent-ratio": ["--kv-policy", "h2o"]}.get(name, [])
                extra = [] if command == "quality" else extra
                need = {"generate": ["-p", "x"], "eval": ["--ids", "/dev/null"], "tokenize": ["-p", "x"],
                        "quality": ["--text", "/dev/null"]}.get(command, [])
                got = run(command, *self.base(command), *need, *extra, f"--{name}={value}")
                self.assertEqual(got.returncode, 1, f"{command} --{name}={value}: {got.stderr!r}")
                self.assertIn(NO_MODEL, got.stderr.decode())

    def test_missing_value(self):
        for command, name, value in self.each():
            if value:
                self.refused(command, *self.base(command), f"--{name}", mentions=f"--{name}: ")
            else:
                self.refused(command, *self.base(command), f"--{name}=1", mentions=f"--{name} takes no value")

    def test_unknown_options_and_operands(self):
        for command in commands():
            self.refused(command, *self.base(command), "--no-such-option", mentions="--no-such-option")
            self.refused(command, *self.base(command), "--no-such\noption", mentions="--no-such?option")
            self.refused(command, *self.base(command), "-X", mentions="-X")
            self.refused(command, *self.base(command), "surplus", mentions="surplus")

    def test_missing_model(self):
        for command in commands():
            if command not in WITHOUT_MODEL:
                self.refused(command, mentions="MODEL" if command == "inspect" else "--model")
                if command != "inspect":
                    self.refused(command, "-m", "", mentions="--model")

    def test_program(self):
        for args in (["help", "no-such-command"], ["help", "chat", "eval"], ["help", ""], [], ["no-such-command"], ["--no-such-option"], [""], ["gen\nerate"]):
            got = run(*args)
            self.assertEqual((got.returncode, got.stdout), (2, b""), args)
            self.assertEqual(len(got.stderr.decode().splitlines()), 1, got.stderr)
        for args in (["--help"], ["-h"], ["--version"]):
            got = run(*args)
            self.assertEqual((got.returncode, got.stderr), (0, b""), args)
            self.assertIn(b"pivotkv", got.stdout)

    def test_help_is_a_command(self):
        text = run("--help").stdout
        self.assertEqual(commands(), ["generate", "chat", "tokenize", "eval", "bench", "quality", "link", "plan", "inspect", "calibrate", "doctor"])
        self.assertIn(b"\n  help ", text)
        for args, want in ((["help"], text), *((["help", command], run(command, "--help").stdout) for command in commands())):
            got = run(*args)
            self.assertEqual((got.returncode, got.stdout, got.stderr), (0, want, b""), args)

    def test_exit_codes_of_signals_are_told(self):
        for command in ("generate", "chat"):
            text = run(command, "--help").stdout
            for code in (b"130", b"143", b"512"):
                self.assertIn(code, text, command)

    def test_help(self):
        for command in commands():
            for flag in ("--help", "-h"):
                got = run(command, flag)
                self.assertEqual((got.returncode, got.stderr), (0, b""), command)
                self.assertTrue(got.stdout.startswith(b"usage: pivotkv " + command.encode()), command)
                for line in got.stdout.decode().splitlines():
                    self.assertLessEqual(len(line), 90, line)

    def test_output_fails(self):
        for args in (["--help"], ["--version"], ["tokenize", "--help"]):
            with open("/dev/full", "wb") as full:
                got = subprocess.run([BINARY, *args], stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(got.returncode, 1, args)
            self.assertEqual(len(got.stderr.splitlines()), 1, got.stderr)
            self.assertIn(b"stdout", got.stderr)


if __name__ == "__main__":
    if not os.access(BINARY, os.X_OK):
        print(f"SKIP {BINARY} is not there")
        sys.exit(77)
    unittest.main(verbosity=0)
