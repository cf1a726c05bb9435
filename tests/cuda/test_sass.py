#!/usr/bin/env python3
"""The machine code of the kernels that a decode step spends its time in is what docs/cuda.md claims.

Reads the library's own objects through scripts/cuda-report; skips without them, or where neither the toolkit's
cuobjdump nor the one that cuda-report once installed in the build folder is there.
"""
import json
import os
import subprocess
import sys
import unittest

BUILD = os.environ["PIVOTKV_BUILD"]
REPORT = os.path.join(os.environ["PIVOTKV_SOURCE"], "scripts", "cuda-report")
FILES = ("append", "attend", "attend_bf16", "attend_f16", "attend_q8", "linear", "norm", "predict", "recall",
         "rope")
ARCH = "sm_90"

# Weights and pages by 16 bytes a lane, from global memory: 13 formats of 1, 2, 4 or 8 rows.
GEMV = [f"few<{rows}>" for rows in (1, 2, 4, 8)]
DECODE = [f"attend_mma<{size}u, {kind}, 1u>" for size in (64, 128, 256) for kind in (0, 1, 3)]
# 65,536 registers for 24 warps, or 16.
REGISTERS = {"few<1>": 80, "few<2>": 128, "few<4>": 128, "few<8>": 128}
# Sin and cos of a double keep their argument reduction on the stack.
STACK = {"rope_table"}


def report():
    """Kernels by name, or None where there is nothing to read or to read it with."""
    command = [sys.executable, REPORT, "--build", BUILD, "--arch", ARCH, "--offline", "--json", *FILES]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(result.stderr.strip())
        return None
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return {row["name"]: row for row in rows}


KERNELS = report()


class Sass(unittest.TestCase):
    def of(self, name):
        self.assertIn(name, KERNELS)
        return KERNELS[name]

    def test_no_kernel_spills(self):
        for name, kernel in KERNELS.items():
            if name not in STACK:
                with self.subTest(name):
                    self.assertEqual((kernel["stack_bytes"], kernel["counts"]["STL"]), (0, 0))

    def test_gemv_reads_global_memory_by_16_bytes(self):
        for name in GEMV:
            counts = self.of(name)["counts"]
            with self.subTest(name):
                self.assertGreaterEqual(counts["LDG.128"], 80)
                self.assertEqual(counts["LD.128"], 0)
                self.assertLessEqual(counts["LD"], 2)  # bias and residual, once a block
                self.assertGreaterEqual(counts["IDP"], 320)

    def test_gemv_has_as_many_warps_as_claimed(self):
        for name, registers in REGISTERS.items():
            with self.subTest(name):
                self.assertLessEqual(self.of(name)["registers"], registers)

    def test_decode_attention_copies_ahead_and_multiplies_on_tensor_cores(self):
        for name in DECODE:
            counts = self.of(name)["counts"]
            with self.subTest(name):
                self.assertGreaterEqual(counts["LDGSTS"], 3)
                self.assertGreaterEqual(counts["HMMA"], 8)
                self.assertLessEqual(counts["LD"], 2)  # a page's address, from the view or the tile

    def test_rehearsal_and_recall_have_two_blocks_a_multiprocessor(self):
        for name in ("predict<4u>", "predict<8u>", "recall"):
            with self.subTest(name):
                self.assertLessEqual(self.of(name)["registers"], 64)
        self.assertGreaterEqual(self.of("predict<4u>")["counts"]["IDP"], 64)
        self.assertGreaterEqual(self.of("recall")["counts"]["LDG.128"], 4)

    def test_nothing_else_loads_without_knowing_where_from(self):
        for name in ("append", "attend_merge", "norm", "predict<4u>", "predict<8u>", "recall", "rope"):
            with self.subTest(name):
                self.assertEqual(self.of(name)["counts"]["LD"], 0)


if __name__ == "__main__":
    if KERNELS is None:
        sys.exit(77)
    unittest.main()
