#!/usr/bin/env bash
# usage: softroce_rounds.sh BUILD ROUNDS ITERATIONS
# The rounds of bench/softroce.sh, in the emulated machine: notes a name and a JSON value a line in /results/figures.
# Both sides of every pair have cpu 0 for the client and cpu 1 for the server, rxe0, GID index 1 and the port's MTU, 8 B
# or 64 KiB, and as many operations.
set -euo pipefail
build=${1:?} rounds=${2:?} iterations=${3:?}
results=${VERBENA_RESULTS:?softroce_rounds.sh runs in the machine of scripts/softroce.sh}
perf=$build/src/programs/verbena-perf
large=$((iterations / 2)) in_flight=32 port=18600

die() { echo "bench: $*" >&2; exit 1; }
note() { echo "$1 $2" >>"$results/figures"; }

# ours NAME ARGUMENT...: verbena-perf; --local pins the client to cpu 0 and the server to cpu 1.
ours() {
  timeout -k 5 120 "$perf" "${@:2}" --local -d rxe0 --timeout-ms 30000 --json >/tmp/one ||
    die "verbena-perf ${*:2} failed"
  note "$1" "$(</tmp/one)"
}

# perftest NAME BYTES ARGUMENT...: a program of perftest and its server.
perftest() {
  local name=$1 bytes=$2 tries server line hex
  shift 2
  port=$((port + 1))  # A port of its own: the one before is in TIME_WAIT.
  hex=$(printf ':%04X ' "$port")
  taskset -c 1 timeout -k 5 120 "$name" -d rxe0 -x 1 -p "$port" -s "$bytes" -F "$@" >/tmp/server 2>&1 &
  server=$!
  # It does not say when it listens.
  for ((tries = 0; tries < 400; ++tries)); do
    if grep -q "$hex.* 0A " /proc/net/tcp /proc/net/tcp6; then break; fi
    sleep 0.05
  done
  taskset -c 0 timeout -k 5 120 "$name" -d rxe0 -x 1 -p "$port" -s "$bytes" -F "$@" 127.0.0.1 >/tmp/client 2>&1 ||
    { cat /tmp/client /tmp/server >&2; die "$name failed"; }
  wait "$server" || die "the server of $name failed"
  line=$(grep -E "^ *$bytes +[0-9]+ " /tmp/client | tail -n 1) || die "$name says: $(</tmp/client)"
  read -ra line <<<"$line"
  note "$name" "[$(IFS=,; echo "${line[*]}")]"
}

bare() {
  timeout -k 5 120 taskset -c 0 "$build/bench/bare_write" rxe0 8 "$iterations" >/tmp/one || die 'bare_write failed'
  note bare_write "$(</tmp/one)"
}

# Who goes first changes: a round's second half may be slower than its first.
pair() {
  if ((round % 2)); then $1; $2; else $2; $1; fi
}
latency=(-s 8 -n "$iterations" --warm-up "$((iterations / 10))")
our_read() { ours read read "${latency[@]}"; }
our_write() { ours write write "${latency[@]}"; }
our_pingpong() { ours pingpong pingpong "${latency[@]}"; }
our_message() { ours message message "${latency[@]}"; }
our_write_bw() { ours write-bw write-bw -s 65536 -n "$large" --warm-up "$((large / 10))" --in-flight "$in_flight"; }
their_read() { perftest ib_read_lat 8 -n "$iterations"; }
their_write_lat() { perftest ib_write_lat 8 -n "$iterations"; }
their_send_lat() { perftest ib_send_lat 8 -n "$iterations"; }
their_write_bw() { perftest ib_write_bw 65536 -n "$large" -t "$in_flight" --report_gbits; }

for ((round = 1; round <= rounds; ++round)); do
  echo "bench: round $round of $rounds"
  pair our_read their_read
  pair our_pingpong their_write_lat
  pair our_write bare
  pair our_message their_send_lat
  pair our_write_bw their_write_bw
done
