#!/usr/bin/env python3
"""tokenize: text to ids and back, byte for byte, through every way in."""
import sys
import tempfile

from cli_support import CliTest, TINY, main, model

SMOLLM2, GEMMA3 = model("smollm2"), model("gemma3")
TEXTS = [b"Hello  world\n", b" leading", b"\n\n", b"a\r\n\tb", "naïve 😀 日本語 \U0001F468‍\U0001F469".encode(), b"\x80\x81 bad \xe4\xb8",
         b"nul\0inside", b"x" * 5000, b"<|im_start|>user"]


class Tokenize(CliTest):
    def ids(self, model_path, text, *args):
        return self.record("tokenize", "-m", model_path, *args, text=text)["ids"]

    def test_round_trip(self):
        for path in filter(None, (SMOLLM2, GEMMA3)):
            for text in TEXTS:
                line = self.ok("tokenize", "-m", path, text=text)
                self.assertTrue(line.endswith(b"\n"))
                self.assertEqual([int(word) for word in line.split()], self.ids(path, text))
                self.assertEqual(self.ok("tokenize", "-m", path, "--ids", "--special", text=line), text, text)

    def test_ways_in(self):
        text = "Two words\n"
        with tempfile.NamedTemporaryFile() as file:
            file.write(text.encode())
            file.flush()
            want = self.ids(SMOLLM2, text.encode())
            self.assertEqual(self.ids(SMOLLM2, b"", "-f", file.name), want)
        self.assertEqual(self.ids(SMOLLM2, text.encode(), "-f", "-"), want)
        self.assertEqual(self.ids(SMOLLM2, b"", "-p", text), want)
        self.assertNotEqual(self.ids(SMOLLM2, b"", "-p", text.rstrip()), want)

    def test_empty(self):
        self.assertEqual(self.ids(SMOLLM2, b""), [])
        self.assertEqual(self.ids(SMOLLM2, b"", "-p", ""), [])
        self.assertEqual(self.ok("tokenize", "-m", SMOLLM2), b"\n")
        self.assertEqual(self.ok("tokenize", "-m", SMOLLM2, "--ids"), b"")

    def test_markers(self):
        plain = self.ids(SMOLLM2, b"<|im_start|>")
        special = self.ids(SMOLLM2, b"<|im_start|>", "--special")
        self.assertGreater(len(plain), 1)
        self.assertEqual(special, [1])
        self.assertEqual(self.ids(SMOLLM2, b"", "--bos")[1:], [])
        self.assertEqual(self.ok("tokenize", "-m", SMOLLM2, "--ids", text=b"1"), b"")
        self.assertEqual(self.ok("tokenize", "-m", SMOLLM2, "--ids", "--special", text=b"1"), b"<|im_start|>")

    def test_json_text_is_utf8(self):
        ids = self.ok("tokenize", "-m", SMOLLM2, text=b"a\x80b")
        self.assertEqual(self.record("tokenize", "-m", SMOLLM2, "--ids", text=ids)["text"], "a�b")

    def test_refusals(self):
        for bad in (b"x", b"1 -1", b"99999999999", b"1.5", b"49152"):
            self.fails("tokenize", "-m", SMOLLM2, "--ids", text=bad, mentions=("stdin", "not an id from 0 to 49151"))
        self.fails("tokenize", "-m", SMOLLM2, "-p", "a", "-f", "b", code=2, mentions="--prompt, --file")
        self.fails("tokenize", "-m", SMOLLM2, "-f", "/nowhere", mentions="/nowhere")
        self.fails("tokenize", "-m", SMOLLM2, "-f", "/", mentions="directory")
        self.fails("tokenize", "-m", TINY, "-p", "a", mentions=("ok.gguf", "no vocabulary"))


if __name__ == "__main__":
    if SMOLLM2 is None:
        print("SKIP no model smollm2: run scripts/get-model smollm2")
        sys.exit(77)
    main()
