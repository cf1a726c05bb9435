#!/usr/bin/env python3
"""calibrate: where its file goes, what it says, what is refused before any work; texts of real models where they are there."""
import json
import os
import stat
import tempfile

from cli_support import CliTest, SOURCE, is_sanitized, main, model

TINY_MODELS = {name: os.path.join(SOURCE, f"tests/golden/tiny/{name}.gguf") for name in ("llama_q4_1", "gemma3", "qwen3")}
SMOLLM2 = model("smollm2")
LINES = "tests/golden/text_report.txt"


class Calibrate(CliTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "a.pkvcal")

    def tearDown(self):
        self.folder.cleanup()

    def path(self, *parts):
        return os.path.join(self.folder.name, *parts)

    def names(self, *parts):
        return sorted(os.listdir(self.path(*parts)))

    def test_the_cache_is_made_and_used_by_name_of_the_model(self):
        cache = self.path("some", "where")
        for name, path in TINY_MODELS.items():
            record = self.record("calibrate", "-m", path, "--cache-dir", cache)
            self.assertEqual(record["file"], os.path.join(cache, "calibration", record["identity"] + ".pkvcal"))
            self.assertEqual(os.path.getsize(record["file"]), record["file_bytes"])
            self.assertEqual(record["source"], "made-up ids")
            with open(record["file"], "rb") as file:
                before = file.read()
            self.record("calibrate", "-m", path, "--cache-dir", cache, "-t", "1")
            with open(record["file"], "rb") as file:
                self.assertEqual(file.read(), before, name)
        self.assertEqual(len(self.names("some", "where", "calibration")), 3)
        self.assertEqual(stat.S_IMODE(os.stat(cache).st_mode), 0o700)

    def test_environment_says_where_the_cache_is(self):
        for variables, place in (({"XDG_CACHE_HOME": self.path("x")}, "x/pivotkv"), ({"HOME": self.path("h")}, "h/.cache/pivotkv"),
                                 ({"XDG_CACHE_HOME": "relative", "HOME": self.path("i")}, "i/.cache/pivotkv")):
            environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
            record = self.record("calibrate", "-m", TINY_MODELS["llama_q4_1"], env={**environment, **variables})
            self.assertTrue(record["file"].startswith(self.path(place, "calibration")), record["file"])
        self.fails("calibrate", "--quiet", "-m", TINY_MODELS["llama_q4_1"], env=environment, mentions="-o FILE")

    def test_text_says_what_was_done(self):
        lines = self.ok("calibrate", "-m", TINY_MODELS["gemma3"], "-o", self.file).decode().splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"^read \d+ made-up tokens .* in \d+\.\d s$")
        self.assertIn(f"wrote {self.file}, ", lines[1])
        self.assertEqual(self.names(), ["a.pkvcal"])

    def test_cosines_of_global_layers_for_squeeze(self):
        out = self.path("cosine.json")
        for name, count in (("gemma3", 1), ("qwen3", 5)):
            record = self.record("calibrate", "-m", TINY_MODELS[name], "-o", self.file, "--squeeze-out", out)
            with open(out, encoding="ascii") as file:
                cosine = json.load(file)
            self.assertEqual(cosine, record["cosine"])
            self.assertEqual(len(cosine), count)
            self.assertTrue(all(0 <= value <= 1 for value in cosine), cosine)
            self.ok("plan", "-m", TINY_MODELS[name], "-c", "1000", "--kv-policy", "squeeze", "--kv-budget", "70%", "--pyramid", "file:" + out)

    def test_what_is_wrong_is_said_and_nothing_written(self):
        path, text = TINY_MODELS["llama_q4_1"], os.path.join(SOURCE, LINES)
        self.fails("calibrate", "--quiet", "-m", path, "-o", self.file, "--text", text, mentions=["no vocabulary", "--text"])
        self.fails("calibrate", "--quiet", "-m", path, "-o", "/nowhere/a", mentions="/nowhere/a")
        self.fails("calibrate", "--quiet", "-m", path, "-o", self.file, "--squeeze-out", "/nowhere/b", mentions="/nowhere/b")
        self.fails("calibrate", "--quiet", "-m", path, "-o", self.folder.name, mentions="regular file")
        self.fails("calibrate", "--quiet", "-m", path, "--cache-dir", "/dev/null/x", mentions=["/dev/null/x", "folder"])
        self.fails("calibrate", "-m", path, "-o", self.file, "surplus", code=2, mentions="surplus")
        self.assertEqual(self.names(), [])

    def test_a_text_of_ones_own(self):
        if SMOLLM2 is None:
            self.skipTest("no model")
        words = ("So it was said, and so it is written down here, word for word. " * 20).encode()
        record = self.record("calibrate", "-m", SMOLLM2, "-o", self.file, "--text", "-", text=words)
        self.assertEqual((record["source"], record["tokens_left_out"], len(record["cosine"])), ("text", 0, 30))
        with open(self.file, "rb") as file:
            data = file.read()
        self.assertNotIn(b"written", data)
        self.assertIn(b"tokens of stdin in", self.ok("calibrate", "-m", SMOLLM2, "-o", self.file, "--text", "-", text=words))
        with open(self.file, "rb") as file:
            self.assertEqual(file.read(), data)
        self.fails("calibrate", "--quiet", "-m", SMOLLM2, "-o", self.file, "--text", "-", text=b"Too short.", mentions=["stdin", "128"])
        self.fails("calibrate", "--quiet", "-m", SMOLLM2, "-o", self.file, "--text", "/nowhere", mentions="/nowhere")
        self.assertEqual(os.path.getsize(self.file), len(data))

    def test_the_built_in_text(self):
        if SMOLLM2 is None or is_sanitized():
            self.skipTest("no model, or it takes minutes")
        record = self.record("calibrate", "-m", SMOLLM2, "-o", self.file)
        self.assertEqual((record["source"], record["tokens_left_out"]), ("built-in", 0))
        self.assertTrue(2000 <= record["tokens"] <= 2800, record["tokens"])


if __name__ == "__main__":
    main()
