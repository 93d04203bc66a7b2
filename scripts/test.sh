#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test: plainly, whole systems in simulation for a minute
# (docs/simulation.md), on real verbs in an emulated machine (docs/softroce.md), under ASan and UBSan, the fuzzers for a
# minute in all, under TSan, and a selection for AArch64, emulated; then the checks of the tree, and the style.
# What takes minutes, and a change seldom breaks alone, is the daily set: suites on real verbs beyond one of each kind,
# AArch64, mutants of the simulation, more fuzzing and chaos, Debian packages, empty machines. A run has one part of it.
# usage: scripts/test.sh [--quick] [--filter TEXT] [--suite NAME] [--changed [BASE]] [--daily] [--part NAME]
#                        [--seeds N] [--fuzz-seconds N] [--jobs N] [--no-cache]
#   --quick           the plain build, and the suites that take seconds each: the others are skips
#   --filter TEXT     only tests whose name contains TEXT, in the plain build
#   --suite NAME      only the tests of a suite of Meson, such as house or consumers, in the plain build
#   --changed [BASE]  what the files that differ from commit BASE can reach: in the plain build, with ASan in their own
#                     rooms, and the style (default: the commit before the last, or the last one while files are not
#                     committed). It says what it leaves out, and is no proof
#   --daily           the whole daily set
#   --part NAME       this part of the daily set, out of turn (scripts/daily.py)
#   --seeds N         seeds for the randomized suites (VERBENA_SEEDS), and runs under chaos (VERBENA_CHAOS_SEED 1 to N)
#   --fuzz-seconds N  seconds for each fuzzing target (default: 50 in all)
#   --jobs N          compilers at a time (default: cores)
#   --no-cache        compile everything again (scripts/cache.sh)
# The last line is `verbena: N passed, M failed, K skipped`. Ends with 1 when something failed or nothing ran, 2 for
# wrong usage, 3 when packages must be installed by hand. Builds in build-test/ (VERBENA_BUILD_ROOT), what comes later
# with low priority behind the tests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec </dev/null

case " $* " in
  *' --help '* | *' -h '*) sed -n '2,24s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

# shellcheck source=scripts/packages.sh
source "$here/packages.sh"
sets=(test)
case " $* " in
  *' --quick '* | *' --filter '* | *' --suite '*) ;;
  *) sets+=(lint mpi pmix) ;;
esac
install_packages "${sets[@]}" || exit $?
case " $* " in
  *' --no-cache '*) export VERBENA_NO_CACHE=1 ;;
esac
# shellcheck source=scripts/cache.sh
source "$here/cache.sh"
use_cache
exec python3 "$here/run_tests.py" "$@"
