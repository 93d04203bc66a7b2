#!/usr/bin/env bash
# Compares this checkout with UCX, and with other checkouts, in slices of 300 us in turn between the same two cores:
# blocking calls, messages and the store's operations, by public calls only, beside bare exchanges of cache lines.
# Prints a table for each state of the machine. docs/benchmarks/slices.md says how to read it.
# usage: bench/slices.sh [--rotations N] [--slice N] [--build DIR] [--others DIRS] [--json FILE] [--no-packages]
#   --rotations N   slices of each operation (default 200)
#   --slice N       length of a slice in microseconds (default 300)
#   --build DIR     release build to use and to make where there is none (default build-bench)
#   --others DIRS   other checkouts, by commas, each with a release build in DIR/build-bench
#   --json FILE     where the slices go, a JSON object in each line
# Ends with 0 when everything was measured, 2 for usage, and 1 when something failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=bench/common.sh
source bench/common.sh

rotations=200 slice=300 build=build-bench others='' json='' packages=1
parse_options 'rotations slice build others json' "$@"
[[ $rotations =~ ^[1-9][0-9]{0,5}$ && $slice =~ ^[1-9][0-9]{0,4}$ ]] || bad_usage

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  install_packages bench || exit $?
  install_packages ucx || true
fi
read -r client_cpu server_cpu siblings < <(python3 bench/compare_table.py --cpus) || true
[[ -n ${server_cpu:-} ]] || die 'two cpus are needed, and this process may use one'
[[ -z $siblings ]] || echo 'bench: both cpus are threads of one core, which share its caches: not what two cores do' >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[[ -n $json ]] || json=$work/slices

# library NAME SOURCE FLAG...: a shared object for the driver. Nothing that it contains is seen by the others.
variants=()
library() {
  g++ -std=c++23 -O3 -fPIC -shared -fvisibility=hidden "bench/slices/$2.cpp" "${@:3}" -Wl,--exclude-libs,ALL \
    -Wl,-Bsymbolic -o "$work/$1.so" || die "bench/slices/$2.cpp does not build"
  variants+=("$1=$work/$1.so")
}
# verbena NAME CHECKOUT BUILD
verbena() {
  local flags
  flags=$(PKG_CONFIG_PATH=$3/meson-uninstalled pkg-config --libs verbena-uninstalled) || die "$3 tells no flags"
  # shellcheck disable=SC2086
  library "$1" verbena -I"$2/include" $flags
}
build_release bench/slices/slices src/libverbena.a
verbena now . "$build"
IFS=, read -ra others <<<"$others"
for other in "${others[@]}"; do
  [[ -f $other/build-bench/src/libverbena.a ]] || die "$other/build-bench has no libverbena.a"
  verbena "$(basename "$other")" "$other" "$other/build-bench"
done
if pkg-config --exists ucx 2>/dev/null; then
  library ucx ucx -lucp -lucs
else
  echo 'bench: no UCX headers (libucx-dev): without it' >&2
fi

timeout -k 5 1800 "$build/bench/slices/slices" --cpus "$client_cpu,$server_cpu" --rotations "$rotations" \
  --slice-us "$slice" "${variants[@]}" >"$json" || die 'the driver failed'
echo "$(uname -srm), $(grep -m 1 '^model name' /proc/cpuinfo | cut -d : -f 2-), cpus $client_cpu and $server_cpu"
python3 bench/slices_table.py "$json"
