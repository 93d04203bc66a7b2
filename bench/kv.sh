#!/usr/bin/env bash
# Measures the key-value store beside a bare cache-line transfer, memcpy and memcached on a Unix socket, in interleaved
# rounds of one run, and prints the medians of their ratios with the targets.
# usage: bench/kv.sh [--rounds N] [--seconds S] [--build DIR] [--no-packages]
#   --rounds N   rounds, each of which measures everything once (default 5)
#   --seconds S  seconds of each measurement in a round (default 1)
#   --build DIR  release build to use and to make where there is none (default build-bench)
# Ends with 0 when everything was measured, whether the targets are met or not; they depend on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=bench/common.sh
source bench/common.sh

rounds=5 seconds=1 build=build-bench packages=1
parse_options 'rounds seconds build' "$@"
[[ $rounds =~ ^[1-9][0-9]*$ && $seconds =~ ^[0-9]+(\.[0-9]+)?$ ]] || bad_usage

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  install_packages bench || exit $?
fi
build_release src/programs/verbena-kv bench/peer_client bench/peer_loss
kv=$build/src/programs/verbena-kv

work=$(mktemp -d)
figures=$work/figures
pids=()
clean_up() {
  local pid
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean_up EXIT

# Starts `$kv serve "$@"`: sets server, port and start_ms (from before the fork to the line that says ready).
start_server() {
  local line begin=${EPOCHREALTIME/[.,]/}
  rm -f "$work/out"
  mkfifo "$work/out"
  "$kv" serve -p 0 "$@" >"$work/out" &
  server=$!
  pids+=("$server")
  exec {from_server}<"$work/out"
  IFS= read -r -t 60 -u "$from_server" line || die 'the server did not get ready; its message is above'
  start_ms=$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))
  port=$(sed -E 's/.*serving on [^;]*:([0-9]+);.*/\1/' <<<"$line")
}

stop_server() {
  local line
  kill -TERM "$server"
  while IFS= read -r -t 20 -u "$from_server" line; do :; done
  exec {from_server}<&-
  wait "$server" || die "the server ended with $?"
}

# User and system time of a process so far, in ticks of 1/CLK_TCK s.
cpu_ticks() { sed -E 's/.*\) //' "/proc/$1/stat" | cut -d' ' -f12,13 | tr ' ' '+' | bc_less; }
bc_less() { local sum; IFS= read -r sum; echo $((sum)); }

bench() { timeout -k 5 120 "$kv" bench -p "$port" --rounds 1 --json --seconds "$seconds" "${@:2}" >"$work/one" ||
  die "verbena-kv bench ${*:2} failed"; note "$1" "$(<"$work/one")"; }

if command -v memcached >/dev/null; then
  user=()
  [[ $(id -u) == 0 ]] && user=(-u root)
  memcached "${user[@]}" -s "$work/memcached" -m 256 -t 1 &
  pids+=($!)
  disown  # It is killed in the end, and nobody need hear of that.
  memcached_ready() { [[ -S $work/memcached ]]; }
  for ((i = 0; i < 2000; ++i)); do
    # Asking costs a millisecond or so, which is wait enough.
    if "$build/bench/peer_client" memcached "$work/memcached" get 0.001 64 10000 1 >/dev/null 2>&1; then break; fi
  done
  memcached_ready || die 'memcached did not get ready'
else
  echo 'bench: memcached is left out: it is not installed (apt-get install memcached)' >&2
fi

for ((round = 1; round <= rounds; ++round)); do
  echo "bench: round $round of $rounds" >&2
  start_server -m 1024
  note start_ms "$start_ms"
  bench get --value-size 64 --read-percent 100
  bench put --value-size 64 --read-percent 0
  bench get32 --value-size 64 --read-percent 100 --depth 32
  bench put32 --value-size 64 --read-percent 0 --depth 32
  stop_server
  if [[ -S $work/memcached ]]; then
    for call in get set; do
      timeout -k 5 120 "$build/bench/peer_client" memcached "$work/memcached" "$call" "$seconds" 64 10000 1 \
        >"$work/one" || die 'the memcached client failed'
      note "memcached_$call" "$(<"$work/one")"
    done
  fi
  # Freed memory rests for the grace period: at some GiB/s a store that small would be full before it ends.
  start_server -m 2048 --grace-ms 20 --lease-kib 65536
  bench get1m --value-size 1M --read-percent 100
  bench put1m --value-size 1M --read-percent 0
  stop_server
  start_server -m 64
  disown "$server"
  timeout -k 5 60 "$build/bench/peer_loss" "$port" "$server" >"$work/one" || die 'peer_loss failed'
  exec {from_server}<&-
  note peer_loss_ms "$(<"$work/one")"
done

# Idle: clients that are connected and ask nothing.
clients=4 idle_seconds=3
start_server -m 1024
for ((i = 0; i < clients; ++i)); do
  mkfifo "$work/in$i" "$work/answer$i"
  exec {to_client}<>"$work/in$i" {from_client}<>"$work/answer$i"
  "$kv" shell -p "$port" <"$work/in$i" >"$work/answer$i" &
  idle[i]=$!
  pids+=($!)
  disown
  echo stats >&"$to_client"
  IFS= read -r -t 20 -u "$from_client" _ || die 'an idle client does not answer'
done
sleep 0.5  # Let what follows the last answer settle; the measurement below is of idleness.
before=$(cpu_ticks "$server") client_before=$(cpu_ticks "${idle[0]}")
sleep "$idle_seconds"
percent() { python3 -c "print(100 * ($1) / $(getconf CLK_TCK) / $idle_seconds)"; }
note idle_server_percent "$(percent "$(cpu_ticks "$server") - $before")"
note idle_client_percent "$(percent "$(cpu_ticks "${idle[0]}") - $client_before")"
for pid in "${idle[@]}"; do kill -KILL "$pid"; done
stop_server

python3 bench/kv_table.py "$figures"
