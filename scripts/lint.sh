#!/usr/bin/env bash
# Checks the style of every source with clang-format and clang-tidy, and the prose of comments, messages and pages;
# --fix formats the sources instead.
# usage: scripts/lint.sh [--fix] [--jobs N] [--no-packages] [FILE...]      (all files when none is named)
# Ends with 0, 1 when something is to be mended, 77 when the tools are not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '4p' "${BASH_SOURCE[0]}" | sed 's/^# //'; }

fix=0
packages=1
jobs=$(nproc)
files=()
while (($#)); do
  case $1 in
    --fix) fix=1 ;;
    --no-packages) packages=0 ;;
    --jobs)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
      jobs=$2
      shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  install_packages test lint || exit $?
fi

# One version for everybody: what 18 and 19 make of a file differs, and so do their checks.
tool() { command -v "$1-19" || command -v "$1-18" || true; }
format=$(tool clang-format)
tidy=$(tool clang-tidy)
clang=$(tool clang++)
if [[ -z $format || -z $tidy || -z $clang ]]; then
  echo 'lint: skipped: clang-format, clang-tidy and clang++ 18 or 19 are not all there'
  exit 77
fi

directories=()
for directory in include src test demo examples bench; do
  [[ -d $directory ]] && directories+=("$directory")
done
is_everything=0
if ((${#files[@]} == 0)); then
  is_everything=1
  # What must not compile is formatted, but no compiler sees it here; a consumer is built by its own test.
  mapfile -t files < <(find "${directories[@]}" -name '*.[ch]pp' -o -name '*.[ch]' | sort)
fi

if ((fix)); then
  printf '%s\0' "${files[@]}" | xargs -0 "$format" -i
  echo "lint: formatted ${#files[@]} files"
  exit 0
fi

failed=0
case $format in
  *-19)
    findings=$(printf '%s\0' "${files[@]}" | xargs -0 "$format" --dry-run --Werror 2>&1) || {
      grep -E 'error:' <<<"$findings" | cut -d: -f1 | sort | uniq -c |
        sed 's/^ *\([0-9]*\) \(.*\)/lint: \2: \1 places are not formatted/'
      echo 'lint: scripts/lint.sh --fix formats them'
      failed=1
    } ;;
  *) echo 'lint: clang-format 19 is not there: formatting is not checked' ;;
esac

# The prose of all files, in a second.
if ((is_everything)) && ! python3 test/house/prose.py .; then failed=1; fi

# clang-tidy needs to know how each file is compiled: a Clang build is configured, and never built.
build=${VERBENA_BUILD_ROOT:-build-test}/lint
mkdir -p "$build"
log=$build/configure.log
if [[ -f $build/build.ninja ]]; then
  arguments=(--reconfigure)
else
  arguments=()
fi
export CC=${clang/clang++/clang} CXX=$clang
if ! meson setup "${arguments[@]}" "$build" . -Dtests=enabled -Db_colorout=never >"$log" 2>&1 </dev/null; then
  cat "$log"
  echo 'lint: the Clang build does not configure'
  exit 1
fi
# The one header that a build makes.
if grep -q mutant_names.inc "$build/build.ninja"; then
  ninja -C "$build" test/sim/mutant_names.inc >>"$log" || exit 1
fi
sources=()
if ((!is_everything)); then
  for file in "${files[@]}"; do
    # Only what the build compiles has a command.
    if [[ $file == *.cpp ]] && grep -q "/${file#./}\"" "$build/compile_commands.json"; then sources+=("$file"); fi
  done
fi
verdicts=()
if [[ ${VERBENA_NO_CACHE:-0} != 1 && -n ${VERBENA_CACHE:-} ]]; then verdicts=(--verdicts "$VERBENA_CACHE/tidy"); fi
if ((is_everything || ${#sources[@]})) &&
  ! scripts/clang_tidy.py "${verdicts[@]}" --jobs "$jobs" "$tidy" "$build" "${sources[@]}"; then
  echo 'lint: clang-tidy found something'
  failed=1
fi
((failed)) || echo "lint: ${#files[@]} files are well"
exit "$failed"
