#!/usr/bin/env python3
"""chat: turns line by line, the cache kept between them, Ctrl-C on a terminal."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

from cli_support import BINARY, CliTest, TINY, main, model, run

SMOLLM2 = model("smollm2")
ARGS = ["-m", SMOLLM2 or "", "-c", "1024", "--temp", "0"]


class Chat(CliTest):
    def chat(self, lines, *args):
        return run("chat", *ARGS, *args, text="\n".join(lines).encode() + b"\n")

    def figures(self, got):
        """(kept, read, made) of every turn."""
        return [tuple(map(int, row)) for row in re.findall(r"(\d+) tokens kept, (\d+) read at \S+, (\d+) made", got.stderr.decode())]

    def test_turns_keep_the_cache(self):
        got = self.chat(["Hi", "Tell me about cats."], "-n", "24")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn(b"Cats", got.stdout)
        first, second = self.figures(got)
        self.assertEqual(first[0], 0)
        self.assertGreaterEqual(second[0], first[1])  # the first prompt at least was not read again
        self.assertLess(second[1], 60)

    def test_clear_and_system(self):
        got = self.chat(["Hi.", "/clear", "Hi.", "/system You are a pirate.", "Hi.", "/exit", "Hi."], "-n", "8")
        self.assertEqual(got.returncode, 0, got.stderr)
        figures = self.figures(got)
        self.assertEqual(len(figures), 3)
        self.assertEqual(sum(figures[0][:2]), sum(figures[1][:2]))
        self.assertNotEqual(sum(figures[1][:2]), sum(figures[2][:2]))

    def test_lines_may_end_in_cr_lf(self):
        plain, crlf = (run("chat", *ARGS, "-n", "4", text=end.join([b"Hi.", b"", b"/clear", b"Hi.", b"/exit", b"/unknown"])) for end in (b"\n", b"\r\n"))
        self.assertEqual((crlf.returncode, crlf.stdout), (0, plain.stdout), crlf.stderr)
        self.assertEqual([figures[:2] for figures in self.figures(crlf)], [figures[:2] for figures in self.figures(plain)])

    def test_markers_stay_text(self):
        plain = self.figures(self.chat(["a"], "-n", "1"))[0]
        marker = self.figures(self.chat(["<|im_end|>"], "-n", "1"))[0]
        self.assertGreater(marker[1], plain[1])

    def test_context_full(self):
        got = self.chat(["word " * 2000, "Hi."], "-n", "4")
        self.assertEqual(got.returncode, 1)
        self.assertIn(b"/clear forgets it, a larger --ctx-size", got.stderr)
        self.assertEqual(len(self.figures(got)), 1)
        got = run("chat", "-m", SMOLLM2, "-c", "8192", "-n", "4", text=b"word " * 9000)
        self.assertIn(b"/clear forgets it\n", got.stderr)

    def test_refusals(self):
        self.assertNotIn("--ids", self.fails("chat", "-m", TINY, mentions="vocabulary"))
        got = self.chat(["/unknown"])
        self.assertEqual((got.returncode, got.stdout), (1, b""))
        self.assertIn(b"/exit", got.stderr)


class Terminal(CliTest):
    def setUp(self):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([BINARY, "chat", *ARGS, "-n", "400"], stdin=slave, stdout=slave, stderr=slave,
                                        start_new_session=True, preexec_fn=lambda: os.close(self.master),
                                        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
        os.close(slave)
        self.seen = b""

    def tearDown(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def until(self, pattern, seconds=60):
        """Read until the pattern is seen in what has not been matched yet."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            self.assertLess(time.monotonic(), end, f"no {pattern} in {self.seen[-300:]!r}")
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 4096)
                except OSError:
                    self.fail(f"the program ended; no {pattern} in {self.seen[-300:]!r}")
        self.seen = self.seen[re.search(pattern, self.seen).end():]

    def ready(self, seconds=60):
        """The prompt stands there and the editor reads: before that the terminal itself echoes what is typed."""
        self.until(rb"> ", seconds)
        end = time.monotonic() + seconds
        while termios.tcgetattr(self.master)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), end, "the editor does not read")
            time.sleep(0.01)

    def test_ctrl_c_stops_the_answer_only(self):
        self.ready()
        os.write(self.master, "Tell me a very long story about a lighthouse. — 日本\n".encode())
        self.until(rb"\r\n[^\r\n]{3}")  # of the answer, which has some hundred tokens
        self.process.send_signal(signal.SIGINT)
        self.until(rb"\[interrupted;")
        self.ready()
        os.write(self.master, b"half a line")
        time.sleep(0.3)
        self.process.send_signal(signal.SIGINT)
        self.until(rb"> ")
        os.write(self.master, b"/exit\n")
        self.assertEqual(self.process.wait(timeout=30), 0)

    def test_end_of_input(self):
        self.ready()
        os.write(self.master, b"\x04")
        self.assertEqual(self.process.wait(timeout=30), 0)

    def test_sigterm_ends(self):
        self.until(rb"> ")  # at once: also between the prompt and the read behind it
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(timeout=30), 143)


if __name__ == "__main__":
    if SMOLLM2 is None:
        print("SKIP no model smollm2: run scripts/get-model smollm2")
        sys.exit(77)
    main()
