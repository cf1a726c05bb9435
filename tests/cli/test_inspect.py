#!/usr/bin/env python3
"""inspect: text and record; files that would not load give one line, little memory, exit code 1."""
import os
import resource
import tempfile

from cli_support import CliTest, MALFORMED, TINY, is_sanitized, main, run

LIMIT = 500 << 20  # of address space: an allocation that follows a number in the file would fail


class Inspect(CliTest):
    def test_good_file(self):
        text = self.ok("inspect", TINY).decode()
        record = self.record("inspect", TINY)
        for word in ("llama", "F16", "no_vocab"):
            self.assertIn(word, text)
        self.assertEqual((record["supported"], record["model"]["layers"], record["model"]["vocab"]), (True, 1, 32))

    def test_ways_to_name_the_file(self):
        text = self.ok("inspect", TINY)
        self.assertEqual(self.ok("inspect", "-m", TINY), text)
        self.fails("inspect", TINY, "-m", TINY, code=2, mentions="MODEL, --model")
        with tempfile.TemporaryDirectory() as cache:
            os.makedirs(os.path.join(cache, "pivotkv/models"))
            os.symlink(TINY, os.path.join(cache, "pivotkv/models", "small.gguf"))
            for args in (["small.gguf"], ["-m", "small.gguf"]):
                self.assertIn(b"llama", self.ok("inspect", *args, "--cache-dir", os.path.join(cache, "pivotkv")))
                self.assertIn(b"llama", self.ok("inspect", *args, env={**os.environ, "XDG_CACHE_HOME": cache}))
            self.fails("inspect", "other.gguf", "--cache-dir", cache, mentions="other.gguf")

    def test_malformed_files(self):
        names = [name for name in sorted(os.listdir(MALFORMED)) if name.endswith(".gguf") and name != "ok.gguf"]
        self.assertGreater(len(names), 8)
        for name in names:
            path = os.path.join(MALFORMED, name)
            free = self.fails("inspect", path, mentions=name)
            if not is_sanitized():
                tight = self.fails("inspect", path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)))
                self.assertEqual(free, tight)
            self.assertEqual(self.fails("inspect", path, "--json"), free)

    def test_not_a_model(self):
        for path in ("/", "/dev/null", os.path.join(MALFORMED, "README.md"), "/nowhere/x.gguf", "/nowhere/\n.gguf", b"/nowhere/\xff.gguf"):
            got = run("inspect", path)
            self.assertEqual((got.returncode, got.stdout, len(got.stderr.splitlines())), (1, b"", 1), got.stderr)


if __name__ == "__main__":
    main()
