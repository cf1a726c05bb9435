#!/usr/bin/env python3
"""--kv-save and --kv-load: a text or a chat that was kept goes on as if it had never ended."""
import os
import tempfile

from cli_support import CliTest, SOURCE, main, model, run

TINY = {name: os.path.join(SOURCE, f"tests/golden/tiny/{name}.gguf") for name in ("llama_q4_1", "gemma3", "qwen3")}
SMOLLM2 = model("smollm2")
POLICIES = ([], ["--kv-policy", "full"])


class Kept(CliTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "a.kv")

    def tearDown(self):
        self.folder.cleanup()

    def ids(self, numbers):
        path = os.path.join(self.folder.name, f"{len(numbers)}.txt")
        with open(path, "w", encoding="ascii") as file:
            file.write(" ".join(map(str, numbers)))
        return path

    def made(self, *args):
        return self.record("generate", "--seed", "7", "--temp", "1", "--ignore-eos", "--quiet", *args)["ids"]

    def test_parts_are_the_whole_at_every_block_edge(self):
        prompt = [(i * 37 + 5) % 320 for i in range(40)]
        for name, path in TINY.items():
            whole = self.made("-m", path, "--ids", self.ids(prompt), "-n", "100")
            for first in (1, 23, 24, 25, 56):  # 40 + 24 = two blocks
                for before, after in zip(POLICIES, reversed(POLICIES)):
                    part = self.made("-m", path, "--ids", self.ids(prompt), "-n", str(first), *before, "--kv-save", self.file)
                    rest = self.made("-m", path, "--ids", self.ids([]), "-n", str(100 - first), *after, "--kv-load", self.file)
                    self.assertEqual(part + rest, whole, (name, first, before))

    def test_hot_sets_go_on_as_if_they_had_never_ended(self):
        """The token that was chosen last is a step, not a prompt, which would fill the slots anew."""
        prompt = self.ids([(i * i * 31 + 5 * i) % 300 + 3 for i in range(600)])
        for policy in ("snapkv", "pivot-norecall", "h2o", "window", "snapkv-keep"):
            common = ["-m", TINY["llama_q4_1"], "-c", "1024", "--kv-policy", policy, "--kv-budget", "48%"]
            whole = self.made(*common, "--ids", prompt, "-n", "100")
            for first in (1, 33, 60):
                part = self.made(*common, "--ids", prompt, "-n", str(first), "--kv-save", self.file)
                rest = self.made(*common, "--ids", self.ids([]), "-n", str(100 - first), "--kv-load", self.file)
                self.assertEqual(part + rest, whole, (policy, first))

    def test_a_kept_prompt_gives_the_same_first_token(self):
        prompt = self.ids([3, 1, 4, 1, 5, 9, 2, 6])
        for path in TINY.values():
            whole = self.made("-m", path, "--ids", prompt, "-n", "8")
            self.assertEqual(self.made("-m", path, "--ids", prompt, "-n", "0", "--kv-save", self.file), [])
            self.assertEqual(self.made("-m", path, "--ids", self.ids([]), "-n", "8", "--kv-load", self.file), whole)

    def test_a_prompt_is_added(self):
        path = TINY["llama_q4_1"]
        whole = self.made("-m", path, "--ids", self.ids(range(10, 70)), "-n", "9")
        self.made("-m", path, "--ids", self.ids(range(10, 50)), "-n", "0", "--kv-save", self.file)
        record = self.record("generate", "-m", path, "--seed", "7", "--temp", "1", "--ignore-eos", "--ids", self.ids(range(50, 70)),
                             "-n", "9", "--kv-load", self.file)
        self.assertEqual((record["ids"], record["n_prompt"], record["n_loaded"], record["n_prompt_read"]), (whole, 60, 40, 20))

    def test_what_is_wrong_is_said_and_nothing_written(self):
        path, prompt = TINY["llama_q4_1"], self.ids([1, 2, 3])
        self.made("-m", path, "--ids", prompt, "-n", "3", "--kv-save", self.file)
        kept = os.path.getsize(self.file)
        args = ["generate", "--quiet", "-m", path, "--ids", prompt, "-n", "1"]
        self.fails(*args, "--kv-load", self.folder.name, mentions="regular file")
        self.fails(*args, "--kv-load", "/nowhere", mentions="/nowhere")
        self.fails(*args, "--kv-save", "/nowhere/file", mentions="cannot write")
        self.fails(*args, "--kv-save", "", mentions="no path")
        self.fails(*args, "--kv-load", path, mentions="not a file of a saved sequence")
        self.fails(*args, "--kv-load", self.file, "--kv-cache-dtype", "f32", mentions=["f16", "f32"])
        self.fails("generate", "--quiet", "-m", TINY["qwen3"], "--ids", prompt, "--kv-load", self.file, mentions="another model")
        self.fails(*args, "--kv-load", self.file, "-c", "4", mentions="--ctx-size")
        self.fails("generate", "-m", path, "-p", "x", "--chat", "--kv-load", self.file, code=2, mentions="--kv-load")
        with open(self.file, "r+b") as file:
            file.seek(-5, os.SEEK_END)
            file.write(b"?")
        self.fails(*args, "--kv-load", self.file, "--kv-save", self.file, mentions="damaged")
        self.assertEqual(os.path.getsize(self.file), kept)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["3.txt", "a.kv"])

    def test_permissions_and_links_stay(self):
        path, prompt = TINY["llama_q4_1"], self.ids([1, 2, 3])
        link = os.path.join(self.folder.name, "link.kv")
        os.symlink("a.kv", link)
        self.made("-m", path, "--ids", prompt, "-n", "3", "--kv-save", self.file)
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        os.chmod(self.file, 0o640)
        before = os.path.getsize(self.file)
        self.made("-m", path, "--ids", self.ids([]), "-n", "40", "--kv-load", link, "--kv-save", link)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o640)
        self.assertGreater(os.path.getsize(self.file), before)

    def test_a_character_cut_in_two_is_whole(self):
        if SMOLLM2 is None:
            self.skipTest("no model")
        args = ["generate", "-m", SMOLLM2, "--temp", "0", "--quiet"]
        text = "日本語で数を数えます。一、二、三、"
        whole = self.ok(*args, "-p", text, "-n", "14")
        self.assertIn("こ", whole.decode())
        for first in range(1, 10):
            part = self.ok(*args, "-p", text, "-n", str(first), "--kv-save", self.file)
            rest = self.ok(*args, "-n", str(14 - first), "--kv-load", self.file)
            self.assertEqual(part + rest, whole, first)

    def test_cleared_turns_are_not_kept(self):
        if SMOLLM2 is None:
            self.skipTest("no model")
        args = ["chat", "-m", SMOLLM2, "--temp", "0", "-n", "8", "-c", "512", "--quiet"]
        self.ok(*args, "--kv-save", self.file, text=b"My secret is a blue elephant.")
        large = os.path.getsize(self.file)
        self.ok(*args, "--kv-load", self.file, "--kv-save", self.file, text=b"/clear")
        self.assertLess(os.path.getsize(self.file), large)
        with open(self.file, "rb") as file:
            self.assertNotIn(b"elephant", file.read())
        self.assertEqual(self.ok(*args, "--kv-load", self.file, text=b"Say hello."), self.ok(*args, text=b"Say hello."))

    def test_chat_goes_on(self):
        if SMOLLM2 is None:
            self.skipTest("no model")
        args = ["chat", "-m", SMOLLM2, "--temp", "0", "-n", "12", "-c", "1024"]
        turns = [b"What is the capital of France?", b"And of Spain?", b"Which is larger?"]
        whole = run(*args, "--system", "Be short.", text=b"\n".join(turns))
        first = run(*args, "--system", "Be short.", "--kv-save", self.file, text=b"\n".join(turns[:2]))
        rest = run(*args, "--kv-load", self.file, "--kv-policy", "full", text=turns[2])
        self.assertEqual((whole.returncode, first.returncode, rest.returncode), (0, 0, 0), rest.stderr)
        self.assertEqual(first.stdout + rest.stdout, whole.stdout)
        kept = int(rest.stderr.split(b" tokens kept")[0].split(b"; ")[-1])
        self.assertGreater(kept, 40)  # the template cuts off little of it
        self.fails("chat", "-m", SMOLLM2, "--system", "x", "--kv-load", self.file, code=2, mentions="--system")
        self.made("-m", SMOLLM2, "-p", "Once", "-n", "2", "--kv-save", self.file)
        self.fails("chat", "--quiet", "-m", SMOLLM2, "--kv-load", self.file, mentions="holds no chat")


if __name__ == "__main__":
    main()
