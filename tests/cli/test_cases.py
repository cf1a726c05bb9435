#!/usr/bin/env python3
"""Whole kinds of things that went wrong elsewhere: damaged model files, text cut inside characters, options
that are taken and do nothing."""
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from cli_support import BINARY, CliTest, TINY, main, model, run

SMOLLM2, GEMMA3 = model("smollm2"), model("gemma3")
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Layout:
    """Where the tensor table's fields stand in a GGUF file; written from the format's description."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.file = file
            _, _, tensors, keys = struct.unpack("<4sIQQ", file.read(24))
            for _ in range(keys):
                self.text()
                self.value(*struct.unpack("<I", file.read(4)))
            self.tensors = []  # name, where its offset stands, its offset
            for _ in range(tensors):
                name = self.text()
                file.read(8 * struct.unpack("<I", file.read(4))[0] + 4)
                at = file.tell()
                self.tensors.append((name.decode(), at, *struct.unpack("<Q", file.read(8))))
            self.tables_bytes = file.tell()

    def text(self):
        return self.file.read(struct.unpack("<Q", self.file.read(8))[0])

    def value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            kind, count = struct.unpack("<IQ", self.file.read(12))
            if kind in SCALAR_BYTES:
                self.file.seek(count * SCALAR_BYTES[kind], os.SEEK_CUR)
            else:
                for _ in range(count):
                    self.value(kind)
        else:
            self.file.seek(SCALAR_BYTES[kind], os.SEEK_CUR)


def run_and_measure(*args, text=b""):
    """Exit code, stdout, stderr and peak memory in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(text)
        given.seek(0)
        process = subprocess.Popen([BINARY, *args], stdin=given, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return process.returncode, out.read(), err.read(), usage.ru_maxrss * 1024


class DamagedModel(CliTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "model.gguf")

    def tearDown(self):
        self.folder.cleanup()

    def refused(self, mentions=()):
        for args in (["inspect", self.path], ["generate", "-m", self.path, "-n", "8", "--ids", "-"]):
            code, out, err, peak = run_and_measure(*args, text=b"1 2")
            lines = err.decode().splitlines()
            self.assertEqual((code, len(lines)), (1, 1), f"{args}: {code} {lines}")
            if args[0] == "generate":
                self.assertEqual(out, b"", args)
            for word in mentions:
                self.assertIn(word, lines[0])
            if "asan" not in BINARY and "tsan" not in BINARY:
                self.assertLess(peak, 100 << 20, args)

    def sweep(self, source):
        """A file cut at many places, and tensors moved to where they cannot be."""
        layout, size = Layout(source), os.path.getsize(source)
        step = max(1, layout.tables_bytes // 24)
        cuts = [0, 3, 4, 23, *range(24, layout.tables_bytes, step), layout.tables_bytes, size // 2, size - 1]
        shutil.copy(source, self.path)
        for cut in sorted(set(cuts), reverse=True):
            os.truncate(self.path, cut)
            self.refused([os.path.basename(self.path)])
        shutil.copy(source, self.path)
        name, at, offset = layout.tensors[len(layout.tensors) // 2]
        with open(self.path, "r+b") as file:
            for bad in (2**64 - 32, 2**63, 2**64 - 1, offset + 1, size, (size + 31) // 32 * 32, 2**40):
                file.seek(at)
                file.write(struct.pack("<Q", bad))
                file.flush()
                self.refused([name])

    def test_tiny(self):
        self.sweep(TINY)

    @unittest.skipIf(SMOLLM2 is None, "no model smollm2")
    def test_real(self):
        size, layout = os.path.getsize(SMOLLM2), Layout(SMOLLM2)
        last = max(layout.tensors, key=lambda tensor: tensor[2])[0]
        name, at, offset = layout.tensors[7]
        shutil.copy(SMOLLM2, self.path)
        with open(self.path, "r+b") as file:
            for value in (2**64 - 32, offset):
                file.seek(at)
                file.write(struct.pack("<Q", value))
                file.flush()
                if value != offset:
                    self.refused([name, str(value)])
        os.truncate(self.path, size - 1)
        self.refused([last])
        os.truncate(self.path, size - 50 * 1000 * 1000)
        self.refused()


def whole_characters(data):
    """The text of bytes of which the last may be the start of a character: that is left off."""
    for held in range(4):
        try:
            return data[: len(data) - held].decode()
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace")


@unittest.skipIf(SMOLLM2 is None, "no model smollm2")
class TextOut(CliTest):
    PROMPTS = ["Emoji: 😀 😀 😀 😀 日本語 日本語 日本語 日本", "Repeat: 🎉🎊🎉🎊🎉🎊🎉🎊🎉🎊🎉🎊", "你好，世界。你好，世界。你好，世界。你好，", "naïve café — “déjà vu” naïve café — “"]

    def args(self, prompt, n):
        return ["generate", "-m", SMOLLM2, "--temp", "0", "-n", str(n), "-p", prompt]

    def streamed(self, args):
        """stdout as it comes; at every moment it must be whole characters."""
        process = subprocess.Popen([BINARY, *args, "--quiet"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        data = b""
        while select.select([process.stdout], [], [], 60)[0]:
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                break
            data += piece
            data.decode()
        self.assertEqual(process.wait(timeout=60), 0, process.stderr.read())
        process.stdout.close()
        process.stderr.close()
        return data.decode()

    def test_every_length(self):
        inside = 0  # lengths that end inside a character: the test must meet some
        for prompt in self.PROMPTS:
            before, ids_before = "", []
            for n in range(1, 25) if prompt == self.PROMPTS[0] else (15,):
                record = self.record(*self.args(prompt, n))
                text, ids = record["text"], record["ids"]
                self.assertEqual(ids[: len(ids_before)], ids_before)
                self.assertTrue(text.startswith(before), f"{prompt!r} {n}: {before!r} is no head of {text!r}")
                raw = self.ok("tokenize", "-m", SMOLLM2, "--ids", text=" ".join(map(str, ids)).encode())
                if record["finish"] == "length":
                    self.assertEqual(text, whole_characters(raw), (prompt, n))
                inside += whole_characters(raw).encode() != raw
                if n % 12 == 0:
                    self.assertEqual(self.streamed(self.args(prompt, n)), text, (prompt, n))
                before, ids_before = text, ids
        self.assertGreater(inside, 0)


@unittest.skipIf(SMOLLM2 is None, "no model smollm2")
class Prompts(CliTest):
    """Any bytes are a prompt; what cannot be done is said in one line."""

    def test_any_bytes(self):
        for text in (b"\xff\xfe bad", b"a\0b", b"\xe2\x80", b" \n", "e\u0301\u200d\ufeff".encode(), b"<|im_end|>" * 3):
            for args in ([], ["--chat"], ["--special"]):
                got = run("generate", "-m", SMOLLM2, "--temp", "0", "-n", "3", "--quiet", *args, text=text)
                self.assertEqual((got.returncode, got.stderr), (0, b""), (text, args))
                got.stdout.decode()

    def test_too_long(self):
        for args in ([], ["--chat"]):
            self.fails("generate", "-m", SMOLLM2, "-c", "20", *args, text=b"word " * 21, mentions=("20", "--ctx-size"))

    @unittest.skipIf(GEMMA3 is None, "no model gemma3")
    def test_no_template(self):
        self.fails("generate", "-m", GEMMA3, "--chat", text=b"Hi", mentions=("no chat template", "--chat-template chatml|llama2|"))
        record = self.record("generate", "-m", GEMMA3, "--chat", "--chat-template", "gemma", "-n", "3", text=b"Hi")
        written = "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
        ids = self.record("tokenize", "-m", GEMMA3, "--special", "--bos", "-p", written)["ids"]
        self.assertEqual(record["n_prompt"], len(ids))


class Options(CliTest):
    """Each sampling option can be seen to act."""

    def ids(self, *args):
        return self.record("generate", "-m", TINY, "--ids", "-", "-n", "24", "--seed", "7", *args, text=b"1 2 3")["ids"]

    def test_all_that_leave_one_token_are_greedy(self):
        greedy = self.ids("--temp", "0")
        wild = ["--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
        self.assertNotEqual(self.ids(*wild), greedy)
        for option, value in (("--top-k", "1"), ("--top-p", "0.0001"), ("--min-p", "1"), ("--temp", "0")):
            self.assertEqual(self.ids(*wild, option, value), greedy, option)

    def test_penalties(self):
        greedy = self.ids("--temp", "0")
        for option, value in (("--repeat-penalty", "10"), ("--presence-penalty", "2"), ("--frequency-penalty", "2")):
            got = self.ids("--temp", "0", option, value)
            self.assertNotEqual(got, greedy, option)
            self.assertGreater(len(set(got)), len(set(greedy)), option)
            self.assertEqual(self.ids("--temp", "0", option, value, "--repeat-last-n", "0"), greedy, option)
            self.assertNotEqual(self.ids("--temp", "0", option, value, "--repeat-last-n", "1"), got, option)

    def test_refused_with_the_allowed_values(self):
        for option, value, allowed in (("--temp", "nan", "100"), ("--temp", "-1", "0"), ("--temp", "1e999", "100"), ("--top-p", "2", "1"),
                                       ("--top-p", "0", "1"), ("--top-p", "7", "1"), ("--min-p", "inf", "1"), ("--top-k", "-1", "0")):
            self.fails("generate", "-m", TINY, "--ids", "-", f"{option}={value}", code=2, mentions=(option, value, allowed), text=b"1")


if __name__ == "__main__":
    if os.access(BINARY, os.X_OK) and b"\n  generate " not in run("--help").stdout:
        print("SKIP this build has no generate")
        sys.exit(77)
    main()
