#!/usr/bin/env bash
# Runs a command several times while one other process for each core keeps all cores busy. Stops at the first failure.
#
#     tools/under_load.sh 5 make ci
set -u
runs=$1
shift
busy=()
trap 'kill "${busy[@]}"' EXIT
for _ in $(seq "$(nproc)"); do
    python3 -c 'while True: pass' &
    busy+=($!)
done
for run in $(seq "$runs"); do
    start=$SECONDS
    "$@" || { echo "Run $run of $runs failed after $((SECONDS - start)) s under load."; exit 1; }
    echo "Run $run of $runs passed in $((SECONDS - start)) s under load."
done
