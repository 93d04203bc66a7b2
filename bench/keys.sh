#!/usr/bin/env bash
# Measures what operations on the key-value store cost with 1 thousand to 10 million keys, beside reads of as much
# memory that depend on each other, in interleaved rounds. Prints the medians, and writes them with a plot and the
# environment.
# usage: bench/keys.sh [--rounds N] [--seconds S] [--most N] [--build DIR] [--out DIR] [--json FILE] [--no-packages]
#   --rounds N   rounds, each of which measures everything once (default 3)
#   --seconds S  seconds of each measurement in a round (default 0.3)
#   --most N     keys at most, in thousands (default 10000; that takes 4 GiB of memory)
#   --build DIR  release build to use and to make where there is none (default build-bench)
#   --out DIR    where keys.md and keys.svg go (default docs/benchmarks)
#   --json FILE  the costs as JSON: keys, and ns of each operation
# Ends with 0 when everything was measured, 2 for usage, 1 when something failed.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=bench/common.sh
source bench/common.sh

rounds=3 seconds=0.3 most=10000 build=build-bench out=$PWD/docs/benchmarks json='' packages=1
parse_options 'rounds seconds most build out json' "$@"
[[ $rounds =~ ^[1-9][0-9]{0,3}$ && $seconds =~ ^[0-9]+(\.[0-9]+)?$ && $most =~ ^[1-9][0-9]{0,5}$ ]] || bad_usage
[[ $out == /* ]] || out=$caller/$out
[[ -z $json || $json == /* ]] || json=$caller/$json

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  install_packages bench matplotlib || install_packages bench || exit $?
fi
build_release src/programs/verbena-kv bench/chase
kv=$build/src/programs/verbena-kv

read -r client_cpu server_cpu siblings < <(python3 bench/compare_table.py --cpus) || true
[[ -n ${server_cpu:-} ]] || die 'two cpus are needed, and this process may use one'
taskset -cp "$client_cpu,$server_cpu" $$ >/dev/null

work=$(mktemp -d)
figures=$work/figures server=''
clean_up() {
  if [[ -n $server ]]; then kill "$server" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap clean_up EXIT

# bench NAME ARGUMENT...: notes what verbena-kv bench measures with `keys` keys.
bench() {
  timeout -k 5 300 "$kv" bench -p "$(<"$work/port")" --rounds 1 --keys "$keys" --seconds "$seconds" --json --no-erase \
    "${@:2}" >"$work/one" || die "verbena-kv bench with $keys keys failed"
  note "$1:$keys" "$(<"$work/one")"
}

# All figures of so many `keys`, for which the server has memory and entries enough: one entry for each 256 B.
measure() {
  local tries
  rm -f "$work/port"
  "$kv" serve -p 0 --port-file "$work/port" -m "$((64 + keys / 3500))" --max-clients 4 >"$work/log" &
  server=$!
  for ((tries = 0; tries < 6000; ++tries)); do
    [[ ! -s $work/port ]] || break
    kill -0 "$server" 2>/dev/null || die 'the server ended; its message is above'
    sleep 0.01
  done
  bench filling --count 1
  bench get-index --no-fill --read-percent 100 --clock-every 100 --lookup one-sided --known-locations 0
  bench get-message --no-fill --read-percent 100 --clock-every 100 --lookup message
  bench put --no-fill --read-percent 0 --clock-every 100
  bench gets-index --no-fill --read-percent 100 --batch 32 --lookup one-sided --known-locations 0
  bench gets-message --no-fill --read-percent 100 --batch 32 --lookup message
  kill "$server"
  wait "$server" || die "the server ended with $?"
  server=''
  # A key of 16 B and a value of 64 B take two cache lines of an item.
  taskset -c "$client_cpu" "$build/bench/chase" "$((keys * 128))" "$seconds" >"$work/one" || die 'chase failed'
  note "chase:$keys" "$(<"$work/one")"
}

for ((round = 1; round <= rounds; ++round)); do
  echo "bench: round $round of $rounds" >&2
  for ((decade = 1; decade <= most; decade *= 10)); do
    for thousands in "$decade" "$((3 * decade))"; do
      keys=$((thousands * 1000))
      if ((thousands <= most)); then measure; fi
    done
  done
done
note cpus "\"client on $client_cpu, server on $server_cpu${siblings:+: threads of one core, which share its caches}\""
note rounds "$rounds"
"$(table_python)" bench/keys_table.py "$figures" --out "$out" ${json:+--json "$json"}
