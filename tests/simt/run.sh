#!/usr/bin/env bash
# run.sh PROGRAM ORDER:SEED...: a program linked with tests/simt, once for each order of its threads.
# Says how to repeat what failed.
set -u
program=$1
shift
for run in "$@"; do
    if ! output=$(PKV_SIMT_ORDER=${run%:*} PKV_SIMT_SEED=${run#*:} "$program" 2>&1); then
        printf '%s\n' "$output"
        printf 'failed: PKV_SIMT_ORDER=%s PKV_SIMT_SEED=%s %s\n' "${run%:*}" "${run#*:}" "$program"
        exit 1
    fi
done
printf '%s\nruns: %s\n' "$output" "$*"
