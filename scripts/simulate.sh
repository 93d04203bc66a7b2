#!/usr/bin/env bash
# Runs whole systems in simulation, by seed, for as long as you like: installs what is missing, builds optimized, runs
# seeds that were never run before, cuts failures down to the faults that they need, and shows what the faults met.
# usage: scripts/simulate.sh [--seeds N | --seconds S] [--from N] [--scenario NAME] [--jobs J] [--build DIR]
#                            [--no-packages]
#   --seeds N        so many seeds in each scenario
#   --seconds S      as many seeds as take S seconds (default: 60)
#   --from N         the first of --seeds (default: one that was not run before; it is printed)
#   --scenario NAME  only this one (default: all in turn)
#   --jobs J         runs, and before that compilers, at a time (default: cores)
#   --build DIR      where to build (default build-simulate)
#   --no-packages    trust that the packages are there
# A failing seed prints the command that runs it again; it is build-simulate/test/sim/verbena-simulate. The last line is
# the count. Ends with 0, 1 when a seed failed, 2 for wrong usage, 3 when packages must be installed by hand, 77 when
# Boost.Context is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '4,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
seeds='' seconds='' from='' jobs=$(nproc) build=build-simulate packages=1
scenario=()
while (($#)); do
  case $1 in
    --seeds | --seconds | --from | --jobs)
      [[ ${2:-} =~ ^[0-9]+$ ]] || { usage >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    --scenario)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      scenario=(--scenario "$2")
      shift ;;
    --build)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      build=$2
      shift ;;
    --no-packages) packages=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
if [[ -n $seconds && -n $seeds$from ]] || [[ -n $from && -z $seeds ]] || ((jobs == 0)); then
  usage >&2
  exit 2
fi

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  install_packages test || exit $?
fi

mkdir -p "$build"
log=$build/build.log
arguments=()
[[ -f $build/build.ninja ]] && arguments=(--reconfigure)
echo "simulate: building in $build"
if ! meson setup "${arguments[@]}" "$build" . -Dtests=enabled -Dprograms=disabled -Dexamples=disabled \
  -Dbenchmarks=disabled -Ddocs=disabled -Dunity=on --buildtype=release >"$log" 2>&1 </dev/null; then
  cat "$log"
  exit 1
fi
if grep -q 'the simulation of whole systems is left out' "$log"; then
  grep 'the simulation of whole systems is left out' "$log"
  exit 77
fi
if ! ninja -j "$jobs" -C "$build" test/sim/verbena-simulate >"$log" 2>&1; then
  cat "$log"
  exit 1
fi

if [[ -n $seeds && -z $from ]]; then
  from=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  echo "simulate: $seeds seeds from $from on"
fi
if [[ -n $seeds ]]; then
  which=(--from "$from" --seeds "$seeds")
else
  which=(--seconds "${seconds:-60}")
fi
exec "$build/test/sim/verbena-simulate" "${scenario[@]}" "${which[@]}" --jobs "$jobs" --twice=10 --coverage
