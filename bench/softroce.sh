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

rounds=5 iterations=1000 build=build-bench packages=()
usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while (($#)); do
  case $1 in
    --rounds | --iterations | --build)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    --no-packages) packages=(--no-packages) ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ $rounds =~ ^[1-9][0-9]*$ && $iterations =~ ^[1-9][0-9]{2,}$ ]] || { usage >&2; exit 2; }

die() { echo "bench: $*" >&2; exit 1; }

if [[ ! -f $build/build.ninja ]]; then
  meson setup "$build" . --buildtype=release -Dtests=disabled -Dexamples=disabled -Dprograms=enabled \
    -Dbenchmarks=enabled >/dev/null || die "$build does not configure; see $build/meson-logs/meson-log.txt"
fi
ninja -C "$build" src/programs/verbena-perf bench/bare_write >&2 || die "$build does not build"

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
scripts/softroce.sh "${packages[@]}" --results "$results" --build "$build" -- \
  bench/softroce_rounds.sh "$build" "$rounds" "$iterations" >&2
python3 bench/softroce_table.py "$results/figures"
