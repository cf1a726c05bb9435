"""What the tests of the binary share."""
import json
import os
import subprocess
import sys
import unittest

SOURCE = os.environ.get("PIVOTKV_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.join(os.environ.get("PIVOTKV_BUILD", os.path.join(SOURCE, "build/release")), "pivotkv")
MALFORMED = os.path.join(SOURCE, "tests/golden/malformed")
GEMMA2 = os.path.join(SOURCE, "tests/golden/tiny/gemma2.gguf")  # two layers, 320 ids, no vocabulary
TINY = os.path.join(MALFORMED, "ok.gguf")  # one layer, 32 ids, no vocabulary
MODELS = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}


def model(name):
    """Path of a real model, or None."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for path in (os.environ.get(f"PIVOTKV_MODEL_{name.upper()}"), os.path.join(cache, "pivotkv/models", MODELS[name])):
        if path and os.access(path, os.R_OK):
            return path
    return None


def run(*args, text=b"", **kwargs):
    """The finished process; text goes to its stdin."""
    kwargs.setdefault("timeout", 120)
    return subprocess.run([BINARY, *args], input=text, capture_output=True, **kwargs)


class CliTest(unittest.TestCase):
    def ok(self, *args, **kwargs):
        """stdout of a run that must succeed."""
        got = run(*args, **kwargs)
        self.assertEqual(got.returncode, 0, f"{args}: {got.stderr.decode(errors='replace')}")
        return got.stdout

    def record(self, *args, **kwargs):
        """The one JSON line of a run that must succeed."""
        lines = self.ok(*args, "--json", **kwargs).decode().splitlines()
        self.assertEqual(len(lines), 1, lines)
        record = json.loads(lines[0])
        for key in ("schema", "build", "commit", "machine"):
            self.assertIn(key, record)
        self.assertEqual(record["schema"], f"pivotkv/{args[0]}/1")
        return record

    def fails(self, *args, code=1, mentions=(), **kwargs):
        """A run that must fail with one line on stderr and nothing on stdout."""
        got = run(*args, **kwargs)
        stderr = got.stderr.decode(errors="replace")
        self.assertEqual(got.returncode, code, f"{args}: {stderr}")
        self.assertEqual(got.stdout, b"", args)
        lines = stderr.splitlines()
        self.assertEqual(len(lines), 1, f"{args}: {lines}")
        self.assertTrue(lines[0].startswith(f"pivotkv: {args[0]}: "), lines[0])
        for word in [mentions] if isinstance(mentions, str) else mentions:
            self.assertIn(word, lines[0], args)
        return lines[0]


def is_sanitized():
    """A build with a sanitizer reserves terabytes of address space."""
    with open(BINARY, "rb") as file:
        data = file.read()
    return b"__asan_init" in data or b"__tsan_init" in data


def main():
    if not os.access(BINARY, os.X_OK):
        print(f"SKIP {BINARY} is not there")
        sys.exit(77)
    unittest.main(verbosity=0)
