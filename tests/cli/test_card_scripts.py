#!/usr/bin/env python3
"""The scripts for a card without one: tests/gpu/run_all with programs that do nothing and an nvidia-smi of the test,
scripts/gpu-pack and scripts/cuda-report on folders that are no build, or half of one."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("PIVOTKV_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEEDS = '{"schema":"pivotkv/gpu-speeds/1","device_read_gbps":1,"load_gbps":1,"f16_tflops":1}'
CARD = 'Name "of", a \\ card'
STUBS = {
    "nvidia-smi": f"[ \"$1\" = -L ] || echo '{CARD}, 1.0, 1024 MiB, 5, 16, 1000 MHz, 1001 MHz'",
    "pivotkv": "[ \"$1\" = bench ] || exit 0\necho '{\"half\":'",
    "gpu_speeds": f"echo '{SPEEDS}'",
    "gpu_gather": "echo '{\"schema\":\"pivotkv/gpu-gather/1\"}'",
    "gpu_device": "", "gpu_device_edges": "", "gpu_tier_edges": "", "gpu_kernel_a": "", "gpu_kernel_b": "",
}


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


class Case(unittest.TestCase):
    """A copy of the scripts in a folder of its own; `caller` is where they are called."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.caller = os.path.join(folder.name, "tree"), os.path.join(folder.name, "caller")
        self.programs, self.scratch = os.path.join(self.caller, "programs"), os.path.join(folder.name, "scratch")
        for name in ("scripts", "tests/gpu"):
            shutil.copytree(os.path.join(SOURCE, name), os.path.join(self.root, name))
        for name, text in STUBS.items():
            self.stub(name, text)
        os.mkdir(self.scratch)

    def stub(self, name, text):
        put(os.path.join(self.programs, name), "#!/bin/sh\n" + text + "\n")

    def change(self, name, old, new):
        path = os.path.join(self.root, name)
        with open(path) as file:
            text = file.read()
        self.assertIn(old, text)
        put(path, text.replace(old, new))

    def call(self, script, *args, **variables):
        environment = dict(os.environ, PATH=self.programs + ":" + os.environ["PATH"], TMPDIR=self.scratch)
        environment.update(variables)
        return subprocess.run([os.path.join(self.root, script), *args], cwd=self.caller, env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)

    def run_all(self, *args, **variables):
        return self.call("tests/gpu/run_all", "--programs", "programs", "--out", "out", *args, **variables)

    def records(self, name):
        with open(os.path.join(self.caller, "out", name)) as file:
            return [json.loads(line) for line in file]

    def says(self, got, status, text):
        lines = got.stderr.splitlines()
        self.assertEqual((got.returncode, got.stdout), (status, ""), got)
        self.assertIn(text, lines[0])
        if status != 2:
            self.assertEqual(len(lines), 1, lines)


class RunAll(Case):
    def test_wrong_usage_is_said_before_anything_runs(self):
        for args, text in ((("--stage", "model"), "--stage model needs --model"), (("--layers", "x"), "--layers needs a number"),
                           (("--layers", "0"), "--layers needs a number"), (("--model", "none.gguf"), "no file"),
                           (("--model", "programs"), "no file"), (("--programs", "none"), "no folder"),
                           (("--build", "b"), "exclude"), (("--out", ""), "--out needs a value"), (("--stage", "x"), "no such")):
            self.says(self.run_all(*args), 2, text)
        self.assertEqual(os.listdir(self.caller), ["programs"])

    def test_folders_that_cannot_be_written(self):
        put(os.path.join(self.caller, "file"), "kept")
        self.says(self.run_all("--out", "file/out"), 1, "cannot make the folder")
        self.says(self.run_all("--out", "file"), 1, "cannot make the folder")
        os.makedirs(os.path.join(self.caller, "out", "stack.jsonl"))
        self.says(self.run_all(), 1, "cannot write to")
        self.says(self.run_all("--out", "more", TMPDIR="none"), 1, "cannot make a folder in " + self.caller + "/none")
        with open(os.path.join(self.caller, "file")) as file:
            self.assertEqual(file.read(), "kept")
        self.assertEqual(sorted(os.listdir(self.root)), ["scripts", "tests"])

    def test_results_lie_where_the_caller_says_and_are_json(self):
        foreign = os.path.join(self.scratch, "pivotkv-stack-8.gguf")
        put(foreign, "of another")
        got = self.run_all("--stage", "conformance", "--stage", "edges", "--stage", "speeds", "--stage", "link", "--small")
        self.assertEqual((got.returncode, got.stderr), (0, ""), got)
        self.assertIn("8 passed, 0 failed, 0 skipped, 0 left out", got.stdout)
        machine = self.records("machine.json")[0]
        self.assertEqual((machine["gpu"], machine["driver"], machine["memory_clock"]), (CARD, "1.0", "1001 MHz"))
        self.assertEqual([r["result"] for r in self.records("tests.jsonl")], ["PASS"] * 8)
        self.assertEqual(len(self.records("link.jsonl")), 2)
        self.assertEqual(os.listdir(self.scratch), [os.path.basename(foreign)])

    def test_a_share_that_ends_cuts_off_and_leaves_out(self):
        self.change("tests/gpu/run_all", "[edges]=30 [speeds]=10", "[edges]=2 [speeds]=4")
        self.stub("gpu_device", "exec sleep 20")
        self.stub("gpu_speeds", "printf '{\"half\":'; exec sleep 20")
        got = self.run_all("--stage", "edges", "--stage", "speeds")
        self.assertEqual(got.returncode, 1, got)
        for line in (r"FAIL device \(\d s\): cut off after [12] s", r"LEFT OUT edges of the device \(0 s\): no time left",
                     r"LEFT OUT edges of the tier \(0 s\): no time left", r"FAIL speeds \(\d s\): cut off after [1-4] s",
                     "0 passed, 2 failed, 0 skipped, 2 left out"):
            self.assertRegex(got.stdout, line)
        self.assertEqual([r["status"] for r in self.records("tests.jsonl")], [124, -1, -1, 124])
        self.assertEqual(self.records("link.jsonl"), [])

    def test_without_time_nothing_starts(self):
        self.change("tests/gpu/run_all", "[conformance]=60", "[conformance]=0")
        self.stub("gpu_kernel_a", "touch started")
        got = self.run_all("--stage", "conformance")
        self.assertEqual(got.returncode, 1, got)
        self.assertIn("0 passed, 0 failed, 0 skipped, 2 left out", got.stdout)
        self.assertFalse(os.path.exists(os.path.join(self.root, "started")))

    def test_a_stack_that_cannot_be_made(self):
        put(os.path.join(self.root, "tests/gpu/make_stack.py"), "raise SystemExit('no space')\n")
        got = self.run_all("--stage", "prefill", "--small")
        self.assertEqual(got.returncode, 1, got)
        self.assertIn("LEFT OUT prefill (0 s): no stack of layers", got.stdout)
        self.assertEqual(os.listdir(self.scratch), [])

    def test_rows_that_are_cut_off_are_told(self):
        model = "a \"b\" \\.gguf"
        put(os.path.join(self.caller, model), "")
        got = self.run_all("--stage", "model", "--model", model, "--small")
        self.assertEqual(got.returncode, 0, got)
        self.assertEqual(self.records("tests.jsonl")[1]["name"], model)
        with open(os.path.join(self.caller, "out", "log.txt")) as file:
            self.assertIn("is no JSON, left out", file.read())

    def test_programs_that_all_skip_are_no_success(self):
        self.stub("gpu_speeds", "exit 77")
        self.assertEqual(self.run_all("--stage", "speeds").returncode, 77)

    def test_a_build_without_cuda_is_left_as_it_is(self):
        cache = os.path.join(self.caller, "build", "CMakeCache.txt")
        put(cache, "of a user\n")
        self.stub("cmake", "echo 'all: phony'; echo \"$@\" >>called")
        for script, args in (("tests/gpu/run_all", ("--out", "out")), ("scripts/gpu-pack", ("--out", "pack"))):
            self.says(self.call(script, "--build", "build", *args), 1, "build is configured without CUDA")
        with open(cache) as file:
            self.assertEqual(file.read(), "of a user\n")
        for folder in (self.root, self.caller):
            if os.path.exists(os.path.join(folder, "called")):
                with open(os.path.join(folder, "called")) as file:
                    self.assertNotIn("ARCHITECTURES", file.read())

    def test_what_is_configured_for_which_architectures(self):
        self.stub("nvcc", "")
        for script, args, tree, arch in (("tests/gpu/run_all", (), self.root + "/build/gpu", "native"),
                                         ("tests/gpu/run_all", ("--build", "b"), self.caller + "/b", "native"),
                                         ("scripts/gpu-pack", (), self.root + "/build/card", "90-real"),
                                         ("scripts/gpu-pack", ("--build", "b", "--arch", "80"), self.caller + "/b", "80")):
            self.stub("cmake", "echo gpu_programs; echo \"$@\" >>" + self.scratch + "/called")
            self.assertEqual(self.call(script, *args).returncode, 1)  # nothing came of it
            with open(os.path.join(self.scratch, "called")) as file:
                self.assertEqual(file.readline(), f"--preset release -B {tree} -DCMAKE_CUDA_ARCHITECTURES={arch}\n")
            os.remove(os.path.join(self.scratch, "called"))


class CudaReport(Case):
    def setUp(self):
        super().setUp()
        for name in ("one", "two"):
            put(os.path.join(self.root, "kernels/cuda", name + ".cu"), "")
        self.objects = os.path.join(self.caller, "build/CMakeFiles/pivotkv_cuda.dir/kernels/cuda")

    def report(self, *args):
        return self.call("scripts/cuda-report", "--build", "build", "--offline", *args)

    def test_builds_without_all_objects(self):
        self.says(self.report(), 1, "no objects of kernels/cuda in build")
        put(os.path.join(self.objects, "one.cu.o"), "")
        self.says(self.report(), 1, "build is half built, the objects of these are missing: two")
        got = self.report("three")
        self.assertEqual(got.returncode, 2, got)
        self.assertIn("no file three.cu in kernels/cuda", got.stderr)

    def test_folders_that_lack_a_tool(self):
        for name in ("one", "two"):
            put(os.path.join(self.objects, name + ".cu.o"), "")
        self.says(self.report("--tools", "none"), 1, "no folder none (--tools)")
        put(os.path.join(self.caller, "tools/cuobjdump"), "")
        self.says(self.report("--tools", "tools"), 1, "no nvdisasm under tools")
        put(os.path.join(self.caller, "tools/nvdisasm"), "")
        os.remove(os.path.join(self.caller, "tools/cuobjdump"))
        self.says(self.report("--tools", "tools"), 1, "no cuobjdump under tools")


if __name__ == "__main__":
    sys.exit(unittest.main())
