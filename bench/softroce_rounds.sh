#!/usr/bin/env bash
# usage: softroce_rounds.sh BUILD ROUNDS ITERATIONS
# The rounds of bench/softroce.sh, in the emulated machine: notes a name and a JSON value a line in /results/figures.
# Both sides of every pair have cpu 0 for the client and cpu 1 for the server, rxe0, GID index 1 and the port's MTU, 8 B
# or 64 KiB, and as many operations.
set -euo pipefail
build=${1:?} rounds=${2:?} iterations=${3:?}
results=${VERBENA_RESULTS:?softroce_rounds.sh runs in the machine of scripts/softroce.sh}
# shellcheck source=bench/common.sh
source bench/common.sh
work=/tmp figures=$results/figures client_cpu=0 server_cpu=1
large=$((iterations / 2)) in_flight=32 port=18600

our() { ours "$1" "${@:2}" -d rxe0 --timeout-ms 30000; }

# perftest NAME BYTES ARGUMENT...: a program of perftest and its server; noted as `as`, or as NAME.
perftest() {
  local name=$1 line
  port=$((port + 1))  # A port of its own: the one before is in TIME_WAIT.
  local -a server=("$name" -d rxe0 -x 1 -p "$port" -s "$2" -F "${@:3}")
  local -a client=("${server[@]}" 127.0.0.1)
  serve_and_ask "$port" server client || die "$why"
  line=$(grep -E "^ *$2 +[0-9]+ " "$work/client" | tail -n 1) || die "$name says: $(<"$work/client")"
  read -ra line <<<"$line"
  note "${as:-$name}" "[$(IFS=,; echo "${line[*]}")]"
}

bare() {
  timeout -k 5 120 taskset -c 0 "$build/bench/bare_write" rxe0 8 "$iterations" >"$work/one" || die 'bare_write failed'
  note bare_write "$(<"$work/one")"
}

# Who goes first changes: a round's second half may be slower than its first.
pair() {
  if ((round % 2)); then $1; $2; else $2; $1; fi
}
latency=(-s 8 -n "$iterations" --warm-up "$((iterations / 10))")
our_read() { our read read "${latency[@]}"; }
our_write() { our write write "${latency[@]}"; }
our_pingpong() { our pingpong pingpong "${latency[@]}"; }
our_message() { our message message "${latency[@]}"; }
our_write_bw() { our write-bw write-bw -s 65536 -n "$large" --warm-up "$((large / 10))" --in-flight "$in_flight"; }
# Writes over an unreliable connection: the example, whose server takes the port that it is told.
our_uchan() {
  port=$((port + 1))
  local -a server=("$build/examples/uchan" -d rxe0 -p "$port")
  local -a client=("${server[@]}" -c 127.0.0.1 -s 65536 -n "$large" -w "$((large / 10))" -t "$in_flight")
  serve_and_ask "$port" server client || die "$why"
  [[ $(<"$work/client") =~ ([0-9.]+)\ MB/s ]] || die "uchan says: $(<"$work/client")"
  note uchan "${BASH_REMATCH[1]}"
}
their_read() { perftest ib_read_lat 8 -n "$iterations"; }
their_write_lat() { perftest ib_write_lat 8 -n "$iterations"; }
their_send_lat() { perftest ib_send_lat 8 -n "$iterations"; }
their_write_bw() { perftest ib_write_bw 65536 -n "$large" -t "$in_flight" --report_gbits; }
their_uchan() { as=ib_write_bw_uc perftest ib_write_bw 65536 -c UC -n "$large" -t "$in_flight" --report_gbits; }

for ((round = 1; round <= rounds; ++round)); do
  echo "bench: round $round of $rounds"
  pair our_read their_read
  pair our_pingpong their_write_lat
  pair our_write bare
  pair our_message their_send_lat
  pair our_write_bw their_write_bw
  pair our_uchan their_uchan
done
