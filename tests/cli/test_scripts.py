#!/usr/bin/env python3
"""The scripts: usage, mistakes in it, and a tree that cannot be written, each in words of their own."""
import os
import shutil
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("PIVOTKV_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(*words, **kwargs):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, **kwargs)


class Scripts(unittest.TestCase):
    def test_help_and_unknown_arguments(self):
        for name in ("demo", "check", "check-layers", "check-style", "get-model"):
            script = os.path.join(SOURCE, "scripts", name)
            for flag in ("--help", "-h"):
                got = run(script, flag)
                self.assertEqual((got.returncode, got.stderr), (0, b""), name)
                self.assertIn(f"usage: scripts/{name}".encode(), got.stdout)
            got = run(script, "--no-such-option")
            self.assertEqual((got.returncode, got.stdout), (2, b""), name)
            self.assertIn(b"--no-such-option", got.stderr)
            self.assertIn(f"usage: scripts/{name}".encode(), got.stderr)


class Demo(unittest.TestCase):
    """In a copy of the tree without sources, whose model is a file in a cache folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "tree")
        shutil.copytree(os.path.join(SOURCE, "scripts"), os.path.join(self.root, "scripts"))
        shutil.copytree(os.path.join(SOURCE, "docs/demo"), os.path.join(self.root, "docs/demo"))

    def put(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("#!/bin/bash\n" + text)
        os.chmod(path, 0o755)

    def demo(self, *args):
        return run(os.path.join(self.root, "scripts/demo"), *args)

    def test_a_tree_that_cannot_be_written(self):
        with open(os.path.join(self.root, "build"), "w"):
            pass  # no folder, so that root cannot write into it either
        got = self.demo()
        lines = got.stderr.decode().splitlines()
        self.assertEqual((got.returncode, got.stdout, len(lines)), (1, b"", 1), lines)
        self.assertTrue(lines[0].startswith("demo: cannot write to the folder "), lines)
        self.assertIn("build", lines[0])

    def test_no_build_writes_nothing(self):
        self.put("scripts/get-model", "echo /the/model\n")
        self.put("build/release/pivotkv", 'echo "$@"; cat\n')

        def tree():
            return sorted((root, sorted(files)) for root, _, files in os.walk(self.root))
        before = tree()
        got = self.demo("--no-build", "--question", "Who?", "--", "--quiet")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(tree(), before)
        words, _, prompt = got.stdout.decode().partition("\n")
        self.assertTrue(words.startswith("generate -m /the/model -f - "), words)
        self.assertTrue(words.endswith(" --quiet"), words)
        with open(os.path.join(self.root, "docs/demo/handbook.txt")) as file:
            self.assertTrue(prompt.startswith(file.read().rstrip("\n")))
        self.assertTrue(prompt.endswith("in one sentence: Who?"))


if __name__ == "__main__":
    unittest.main(verbosity=0)
