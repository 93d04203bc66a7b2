#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test: plainly, whole systems in simulation for a minute
# (docs/simulation.md), on real verbs in an emulated machine (docs/softroce.md), under ASan and UBSan, the fuzzers for a
# minute in all, under TSan, and a selection for AArch64, emulated; then the checks of the tree, and the style.
# usage: scripts/test.sh [--quick] [--filter TEXT] [--seeds N] [--fuzz-seconds N] [--jobs N]
#   --quick           the plain build only; real verbs, Fortran and MPI only where they are there already
#   --filter TEXT     only tests whose name contains TEXT, in the plain build
#   --seeds N         seeds for the randomized suites (VERBENA_SEEDS), and runs under chaos (VERBENA_CHAOS_SEED 1 to N)
#   --fuzz-seconds N  seconds for each fuzzing target (default: 50 in all)
#   --jobs N          compilers at a time (default: cores)
# The last line is `verbena: N passed, M failed, K skipped`. Ends with 1 when something failed or nothing ran, 2 for
# wrong usage, 3 when packages must be installed by hand. Builds in build-test/ (VERBENA_BUILD_ROOT), what comes later
# with low priority behind the tests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec </dev/null

case " $* " in
  *' --help '* | *' -h '*) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac

# shellcheck source=scripts/packages.sh
source "$here/packages.sh"
sets=(test)
case " $* " in
  *' --quick '* | *' --filter '*) ;;
  *) sets+=(lint mpi pmix) ;;
esac
install_packages "${sets[@]}" || exit $?
exec python3 "$here/run_tests.py" "$@"
