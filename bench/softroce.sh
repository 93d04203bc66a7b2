#!/usr/bin/env bash
# Measures verbena-perf on Soft-RoCE beside perftest and a bare post-and-poll loop, in interleaved rounds of one boot of
# the emulated machine (scripts/softroce.sh), and prints the medians of their ratios with the targets.
# usage: bench/softroce.sh [--rounds N] [--iterations N] [--build DIR] [--no-packages]
#   --rounds N      rounds, each of which measures everything once (default 5)
#   --iterations N  operations of each latency test in a round; the bandwidth test has half (default 1000)
#   --build DIR     release build to use and to make where there is none (default build-bench)
# Ends with 0 when everything was measured, whether the targets are met or not, and otherwise as scripts/softroce.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=bench/common.sh
source bench/common.sh

rounds=5 iterations=1000 build=build-bench packages=1
parse_options 'rounds iterations build' "$@"
[[ $rounds =~ ^[1-9][0-9]*$ && $iterations =~ ^[1-9][0-9]{2,}$ ]] || bad_usage
no_packages=()
((packages)) || no_packages=(--no-packages)
build_release src/programs/verbena-perf bench/bare_write
[[ -x $build/examples/uchan ]] || meson configure "$build" -Dexamples=enabled
build_release examples/uchan

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
scripts/softroce.sh "${no_packages[@]}" --results "$results" --build "$build" -- \
  bench/softroce_rounds.sh "$build" "$rounds" "$iterations" >&2
python3 bench/softroce_table.py "$results/figures"
