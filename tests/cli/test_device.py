#!/usr/bin/env python3
"""--device auto and cuda, with and without a driver, in builds with and without CUDA."""
import os
import subprocess

from cli_support import BINARY, TINY, CliTest, is_sanitized, main, run

COMMANDS = {
    "generate": (["-m", TINY, "--ids", "-", "-n", "2"], b"1 2 3"),
    "plan": (["-m", TINY], b""),
    "link": (["--quick", "--region", "1MiB", "--max-size", "256KiB", "-r", "1"], b""),
}


def built_with_cuda():
    with open(BINARY, "rb") as file:
        return b"cudaHostRegister" in file.read()


def has_gpu():
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


class Device(CliTest):
    def test_cuda_without_a_driver_is_one_line(self):
        if has_gpu():
            self.skipTest("there may be a GPU")
        missing = "no NVIDIA driver" if built_with_cuda() else "not in this build"
        for command, (args, text) in COMMANDS.items():
            self.fails(command, *args, "--device", "cuda", text=text, mentions=("'cuda'", missing))

    def test_auto_takes_the_cpu_and_says_so(self):
        if has_gpu():
            self.skipTest("there may be a GPU")
        for command in ("generate", "link"):
            args, text = COMMANDS[command]
            for more in ([], ["--device", "auto"]):
                got = run(command, *args, *more, text=text)
                self.assertEqual(got.returncode, 0, got.stderr)
                said = [line for line in got.stderr.decode().splitlines() if "auto took the cpu" in line]
                self.assertEqual(len(said), 1, got.stderr)
                self.assertIn("'cuda'", said[0])
            got = run(command, *args, "--device", "cpu", text=text)
            self.assertNotIn(b"auto took", got.stderr)

    def test_start_loads_no_gpu_library(self):
        """cuBLAS alone is 600 MB of shared objects; without a device nothing of CUDA is to be loaded."""
        linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True).stdout
        for name in ("cublas", "cudart", "libcuda", "libstdc++"):
            if not (is_sanitized() and name == "libstdc++"):
                self.assertNotIn(name, linked)
        debug = dict(os.environ, LD_DEBUG="files")
        for args in (["--version"], ["generate", *COMMANDS["generate"][0]], ["doctor"]):
            got = run(*args, text=b"1 2 3", env=debug)
            self.assertEqual(got.returncode, 0, args)
            opened = [line for line in got.stderr.decode(errors="replace").splitlines() if "calling init: " in line]
            self.assertTrue(opened, "the loader says nothing")
            for line in opened:
                self.assertFalse(not has_gpu() and "cublas" in line, line)


if __name__ == "__main__":
    main()
