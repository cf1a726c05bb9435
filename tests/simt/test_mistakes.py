#!/usr/bin/env python3
"""test_mistakes.py kernels|host PLAIN ASAN CHECK: every deliberate mistake of mistakes.cpp, in each build
and order of the table below, is noticed as the table says; right code never is. With "show" in front, prints
what happens instead. Exit status: 0 = as it must be, 1 = not."""
import concurrent.futures
import os
import subprocess
import sys

# Name of a column: build (of PLAIN ASAN CHECK), environment.
COLUMNS = {
    "in_order": (0, {"PKV_SIMT_ORDER": "in_order"}),
    "random": (0, {"PKV_SIMT_ORDER": "random"}),
    "priority": (0, {"PKV_SIMT_ORDER": "priority"}),
    "asan": (1, {"PKV_SIMT_ORDER": "priority"}),
    "check": (2, {"PKV_SIMT_ORDER": "in_order"}),
    "check_priority": (2, {"PKV_SIMT_ORDER": "priority"}),
    "eager": (0, {"PKV_SIMT_STREAMS": "eager"}),
    "lazy": (0, {"PKV_SIMT_STREAMS": "lazy"}),
    "second_first": (0, {"PKV_SIMT_STREAMS": "adversarial", "PKV_SIMT_FIRST": "1"}),
    "first_last": (0, {"PKV_SIMT_STREAMS": "adversarial", "PKV_SIMT_LAST": "0"}),
    "threads": (0, {"PKV_SIMT_STREAMS": "threads"}),
    "guard": (0, {"PKV_SIMT_GUARD": "1"}),
    "asan_lazy": (1, {}),
    "check_lazy": (2, {}),
}
KERNEL_COLUMNS = ["in_order", "random", "priority", "asan", "check", "check_priority"]
HOST_COLUMNS = ["eager", "lazy", "second_first", "first_last", "threads", "guard", "asan_lazy", "check_lazy"]

# wrong: the result; report, race, unset (read before written): by the shim; fault: a signal; refused: an error
# of the fake runtime; -: nobody noticed.
KERNELS = """
right_sum        -       -       -       -       -       -
right_tiles      -       -       -       -       -       -
right_product    -       -       -       -       -       -
no_barrier       wrong   wrong   wrong   wrong   unset   unset
loop_barrier     wrong   wrong   wrong   wrong   race    race
divergent        report  report  report  report  report  report
early_end        report  report  report  report  report  report
past_shared      report  report  report  asan    report  report
past_output      report  report  report  asan    report  report
past_input       fault   fault   fault   asan    report  report
absent_lanes     report  report  report  report  report  report
blocks_add       -       -       -       -       race    race
lanes_trade      -       -       -       -       race    race
misaligned       -       -       -       ubsan   -       -
unset            wrong   wrong   wrong   wrong   unset   unset
host_memory      -       -       -       -       report  report
no_copy_wait     wrong   wrong   wrong   wrong   unset   unset
no_copy_barrier  wrong   wrong   wrong   wrong   unset   unset
no_end_barrier   -       -       wrong   wrong   race    unset
unset_copy       wrong   wrong   wrong   wrong   unset   unset
right_copy       -       -       -       -       -       -
fragment         wrong   wrong   wrong   wrong   wrong   wrong
"""
HOST = """
right_streams       -        -        -        -        -        -        -        -
no_sync             -        wrong    wrong    wrong    wrong|-  wrong    wrong    wrong
refill              -        wrong    wrong    wrong    wrong|-  wrong    wrong    wrong
no_wait             -        wrong    wrong    wrong    wrong|-  wrong    wrong    wrong
wait_before_record  -        wrong    wrong    wrong    wrong|-  wrong    wrong    wrong
pageable            refused  refused  refused  refused  refused  refused  refused  refused
wrong_kind          refused  refused  refused  refused  refused  refused  refused  refused
wrong_length        refused  refused  refused  refused  refused  refused  refused  refused
null_stream         refused  refused  refused  refused  refused  refused  refused  refused
host_reads_device   -        -        -        -        -        fault    -        -
use_after_free      fault    fault    fault    fault    fault    fault    asan     report
unpin_early         -        refused  refused  refused  refused|-  refused  refused  refused
unset_input         wrong    wrong    wrong    wrong    wrong    wrong    wrong    unset
"""


def outcome(program, environment, name):
    run = subprocess.run([program, name], env=os.environ | {"PKV_SIMT_SEED": "1"} | environment, timeout=60,
                         capture_output=True, text=True, errors="replace")
    text = run.stderr
    if "AddressSanitizer" in text:
        return "asan"
    if "runtime error" in text:
        return "ubsan"
    if run.returncode == 86:
        return "race" if ": race in " in text else "unset" if "that nobody wrote" in text else "report"
    if "wrong result" in text:
        return "wrong"
    return {0: "-", 3: "refused", -11: "fault", -7: "fault"}.get(run.returncode, f"status{run.returncode}")


def main():
    show = sys.argv[1] == "show"
    table, *programs = sys.argv[1 + show:]
    columns, rows = (KERNEL_COLUMNS, KERNELS) if table == "kernels" else (HOST_COLUMNS, HOST)
    rows = [row.split() for row in rows.strip().splitlines()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [[pool.submit(outcome, programs[COLUMNS[c][0]], COLUMNS[c][1], row[0]) for c in columns] for row in rows]
        got = [[job.result() for job in row] for row in jobs]
    if show:
        for row, results in zip([["#"]] + rows, [columns] + got):
            print(f"{row[0]:<18} " + " ".join(f"{r:<14}" for r in results))
        return 0
    failures = 0
    for row, results in zip(rows, got):
        for column, want, result in zip(columns, row[1:], results, strict=True):
            if result not in want.split("|"):
                print(f"{row[0]}: {column}: got {result}, want {want}")
                failures += 1
    mistakes = sum(not row[0].startswith("right") for row in rows)
    print(f"{mistakes} mistakes and {len(rows) - mistakes} right programs, {len(columns)} ways each: {failures} not as expected")
    return failures != 0


sys.exit(main())
