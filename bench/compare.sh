#!/usr/bin/env bash
# Measures the soft NIC beside UCX (over posix shared memory), libfabric (fi_pingpong over shm), memcpy and bare
# exchanges of cache lines, and the key-value store beside Redis and memcached on Unix sockets, in interleaved rounds of
# one run; calls below a microsecond in slices (bench/slices.sh). Prints the medians of their ratios with the targets,
# and writes them with plots and the environment. What they mean: docs/benchmarks/README.md.
# usage: bench/compare.sh [--rounds N] [--build DIR] [--out DIR] [--json FILE] [--groups NAMES] [--no-packages]
#   --rounds N      rounds, each of which measures everything once (default 5)
#   --build DIR     release build to use and to make where there is none (default build-bench)
#   --out DIR       where compare.md and its plots go (default docs/benchmarks)
#   --json FILE     the rows as JSON: name, ours, peer, ratio, target, met, unit
#   --groups NAMES  only these of slices, message, rate, physical, bulk, connections, idle, kv-get, kv-put, kv-batch,
#                   kv-bulk, kv-memory, kv-held, mesh, mesh-exchange, mesh-bulk, mesh-batch, mesh-poll,
#                   mesh-bring-up, 8-bytes to 1048576-bytes and mesh-processes, by commas
# Without the privilege for physical addresses (CAP_SYS_ADMIN) the group `physical` is left out, which the table says.
# Ends with 0 when everything was measured, whether the targets are met or not; 4 when a peer's tool could not be had or
# failed, which the table says, with the rest of it whole; 2 for usage, and 1 when ours failed: the table then has what
# was measured before.
set -euo pipefail
caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=bench/common.sh
source bench/common.sh

rounds=5 build=build-bench out=$PWD/docs/benchmarks json='' groups='' packages=1
parse_options 'rounds build out json groups' "$@"
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || bad_usage
[[ $out == /* ]] || out=$caller/$out
[[ -z $json || $json == /* ]] || json=$caller/$json

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  # Without a peer, or plots, the rest is still worth having; the table says what is missing.
  if ! install_packages bench ucx libfabric redis matplotlib mpi pmix; then
    install_packages bench || exit $?
    for set in ucx libfabric redis matplotlib mpi pmix; do install_packages "$set" || true; done
  fi
fi
build_release src/programs/verbena-perf src/programs/verbena-kv bench/peer_client
# Where MPI and PMIx are there; the table says what is missing.
for program in mesh_sweep mpi_alltoall bring_up; do
  if ninja -C "$build" -t query "bench/$program" >/dev/null 2>&1; then build_release "bench/$program"; fi
done

# Both sides of everything have these two, the client the first: one cpu of each of two cores.
read -r client_cpu server_cpu siblings < <(python3 bench/compare_table.py --cpus) || true
[[ -n ${server_cpu:-} ]] || die 'two cpus are needed, and this process may use one'
[[ -z $siblings ]] || echo 'bench: both cpus are threads of one core, which share its caches: not what two cores do' >&2
taskset -cp "$client_cpu,$server_cpu" $$ >/dev/null

work=$(mktemp -d)
kv=$build/src/programs/verbena-kv
kv_keys=100000 kv_seconds=0.25  # Keys that there are, and how long each figure of the store is measured.
slices=()  # A file for each round.
figures=$work/group port=$((20000 + RANDOM % 10000)) repeated=0 left_out=0
clean_up() {
  local pid
  for pid in $(jobs -p); do kill "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
# write_table NOTE: of what is in $work/figures.
write_table() {
  figures=$work/figures
  note cpus "\"client on $client_cpu, server on $server_cpu${siblings:+: threads of one core, which share its caches}\""
  note rounds "$rounds"
  note moved "\"cache-line transfers in $repeated attempts; $left_out groups left out of a round\""
  [[ -z $1 ]] || note broken "\"$1\""
  "$(table_python)" bench/compare_table.py "$figures" --out "$out" ${json:+--json "$json"} \
    ${slices[@]+--slices "${slices[@]}"}
}

# When ours fails the script ends where that is; the rounds before are kept.
at_exit() {
  local status=$?
  if ((status == 1)) && [[ -s $work/figures ]]; then write_table "in round $round, by a failure of ours" || true; fi
  clean_up
  exit "$status"
}
trap at_exit EXIT

# A port of its own for each: the one before is in TIME_WAIT.
next_port() {
  port=$((port + 1))
  while grep -qs "$(printf ':%04X ' "$port")" /proc/net/tcp /proc/net/tcp6; do port=$((port + 1)); done
}

missing() {
  echo "bench: round $round: $1 is missing: $2" >&2
  note "$1" "$(python3 bench/peers.py missing "$2")"
}

# peer NAME OPERATIONS TOOL PACKAGE: notes what a peer's tool measures, run as the words of the arrays `server` and
# `client`.
peer() {
  if ! command -v "$3" >/dev/null; then
    missing "$1" "$3 is not installed (apt-get install $4)"
  elif ! serve_and_ask "$port" server client; then
    missing "$1" "$why"
  elif ! python3 bench/peers.py "$3" "${1#*:}" "$2" "$work/client" >"$work/one" 2>"$work/error"; then
    missing "$1" "$(<"$work/error")"
  else
    note "$1" "$(<"$work/one")"
  fi
}

# What runs on the second cpu during the groups of the store: pid by name, and which have their keys.
declare -A serving=() filled=()

# stop_servers PREFIX: those whose names begin with it.
stop_servers() {
  local name
  for name in "${!serving[@]}"; do [[ $name != "$1"* ]] || stop_server "$name"; done
}

# stop_server NAME
stop_server() {
  kill "${serving[$1]}" 2>/dev/null || true
  wait "${serving[$1]}" 2>/dev/null || true
  unset "serving[$1]" "filled[$1]"
}

# await_server NAME TEST...: until the words of TEST succeed. 1: it ended, or took 60 s, and `why` says so.
await_server() {
  local tries
  why=''
  for ((tries = 0; tries < 6000; ++tries)); do
    if "${@:2}"; then return 0; fi
    kill -0 "${serving[$1]}" 2>/dev/null || break
    sleep 0.01
  done
  why="$1 does not serve: $(tail -n 1 "$work/$1.log")"
  stop_server "$1"
  return 1
}

listens_at() { grep -qs " 00010000 .* $1\$" /proc/net/unix; }

# serve_peer NAME COMMAND...: on the socket $work/NAME, unless it runs already.
serve_peer() {
  [[ -z ${serving[$1]:-} ]] || return 0
  rm -f "$work/$1"
  taskset -c "$server_cpu" "${@:2}" >"$work/$1.log" 2>&1 &
  serving[$1]=$!
  await_server "$1" listens_at "$work/$1"
}

# socket_peer PEER-CALL:BYTES: notes what peer_client measures of it, by 32 where the call ends so. Its server has the
# settings that serve such a client best: no file, no network, one thread; memcached answers a whole pipeline at once.
socket_peer() {
  local name=${1%%-*} call=${1#*-} tool=memcached batch=1
  local -a settings
  call=${call%:*}
  if [[ $call == *32 ]]; then batch=32 call=${call%32}; fi
  if [[ $name == redis ]]; then
    tool=redis-server settings=(--port 0 --unixsocket "$work/redis" --save '' --appendonly no --dir "$work")
  else
    settings=(-s "$work/memcached" -m 1024 -t 1 -R 1000)
    [[ $(id -u) != 0 ]] || settings+=(-u root)
  fi
  if ! command -v "$tool" >/dev/null; then
    missing "$1" "$tool is not installed (apt-get install $tool)"
  elif ! serve_peer "$name" "$tool" "${settings[@]}"; then
    missing "$1" "$why"
  elif ! taskset -c "$client_cpu" timeout -k 5 120 "$build/bench/peer_client" "$name" "$work/$name" "$call" \
    "$kv_seconds" "${1#*:}" "$kv_keys" "$batch" ${filled[$name]:+filled} >"$work/one" 2>"$work/error"; then
    missing "$1" "$(tail -n 1 "$work/error")"
  else
    filled[$name]=1
    note "$1" "$(<"$work/one")"
  fi
}

# kv_bench NAME VALUE_BYTES KEYS ARGUMENT...: notes what verbena-kv bench measures of a server for such values.
kv_bench() {
  local server=kv-$2 most=$kv_keys
  local -a settings=(-m 1024) words
  # What is replaced rests: at some GiB/s a small store would be full before that ends.
  (($2 < 65536)) || settings=(-m 2048 --grace-ms 20 --lease-kib 65536) most=64
  [[ $1 != kv-memory:* ]] || server='kv-memory'
  if [[ -z ${serving[$server]:-} ]]; then
    # One at a time: the first has the core. And that of kv-memory has no keys yet.
    stop_servers kv-
    rm -f "$work/port"
    "$kv" serve -p 0 --port-file "$work/port" "${settings[@]}" >"$work/$server.log" 2>&1 &
    serving[$server]=$!
    await_server "$server" test -s "$work/port" || die "$why"
    # Where another server has claimed it, client and server would share a core, and each wait for the scheduler.
    grep -q "poller cores: $server_cpu\($\|;\)" "$work/$server.log" ||
      die "the store does not have cpu $server_cpu, is another server running?: $(tail -n 1 "$work/$server.log")"
  fi
  words=(bench -p "$(<"$work/port")" --value-size "$2" --rounds 1 --json)
  if [[ $server != kv-memory && -z ${filled[$server]:-} ]]; then
    timeout -k 5 120 "$kv" "${words[@]}" --keys "$most" --count 1 --no-erase >"$work/one" ||
      die "verbena-kv bench stores no $most keys"
    filled[$server]=1
  fi
  [[ $server == kv-memory ]] || words+=(--no-fill --no-erase)
  timeout -k 5 120 "$kv" "${words[@]}" --seconds "$kv_seconds" --keys "$3" "${@:4}" >"$work/one" ||
    die "verbena-kv bench for $1 failed"
  note "$1" "$(<"$work/one")"
}

# held NAME SERVER VALUE_BYTES: notes how much of an empty server's 64 MiB are keys and values when it is full, and what
# memory its process then has.
held() {
  local server=held-$2 mib=64 at resident
  local -a settings=(-m "$mib" -t 1 -o slab_automove=1 -s "$work/$server")
  stop_servers ''
  if [[ $2 == verbena ]]; then
    rm -f "$work/port"
    "$kv" serve -p 0 --port-file "$work/port" -m "$mib" >"$work/$server.log" 2>&1 &
    serving[$server]=$!
    await_server "$server" test -s "$work/port" || die "$why"
    at=$(<"$work/port")
  else
    [[ $(id -u) != 0 ]] || settings+=(-u root)
    if ! command -v "$2" >/dev/null; then
      missing "$1" "$2 is not installed (apt-get install $2)"
      return
    elif ! serve_peer "$server" "$2" "${settings[@]}"; then
      missing "$1" "$why"
      return
    fi
    at=$work/$server
  fi
  if timeout -k 5 120 "$build/bench/peer_client" "$2" "$at" held "$3" "$mib" >"$work/one" 2>"$work/error"; then
    resident=$(awk '/^Rss:/ { print $2 }' "/proc/${serving[$server]}/smaps_rollup")
    note "$1" "$(sed "s/}\$/,\"resident_kib\":$resident}/" "$work/one")"
  elif [[ $2 == verbena ]]; then
    die "$(tail -n 1 "$work/error")"
  else
    missing "$1" "$(tail -n 1 "$work/error")"
  fi
  stop_server "$server"
}

# mesh NAME ARGUMENT...: notes what verbena-perf measures of a mesh.
mesh() {
  perf mesh "${@:2}"
  note "$1" "$(<"$work/one")"
}

# launched NAME PROCESSES PROGRAM ARGUMENT...: leaves what so many processes of bench/PROGRAM that mpirun starts print
# in $work/client. Open MPI asks for the two variables of root. 1: it is missing, and noted so.
launched() {
  local program=$build/bench/$3
  if ! command -v mpirun >/dev/null; then
    missing "$1" 'mpirun is not installed (apt-get install openmpi-bin)'
  elif [[ ! -x $program ]]; then
    missing "$1" "$program is not built: the packages of MPI or PMIx were not there when $build was configured"
  elif ! OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 120 mpirun --oversubscribe \
    --bind-to none --mca pml ob1 --mca btl self,vader -np "$2" "$program" "${@:4}" >"$work/client" 2>"$work/error"; then
    missing "$1" "$3: $(tail -n 1 "$work/error")"
  else
    return 0
  fi
  return 1
}

# bring_up NAME HOW PROCESSES: notes how long it takes.
bring_up() {
  launched "$1" "$3" bring_up "$2" || return 0
  if python3 bench/peers.py bring_up "$3" 1 "$work/client" >"$work/one" 2>"$work/error"; then
    note "$1" "$(<"$work/one")"
  else
    missing "$1" "$(<"$work/error")"
  fi
}

# measure KIND:BYTES: notes the figure of that name. Of the group `group`.
measure() {
  local kind=${1%:*} bytes=${1#*:} operations most=$((1 << 33))
  local -a server client tool
  # A tenth of a second or so, at most 8 GiB; less for the curves, which no target hangs on.
  case $kind in
    *read* | *write | *_get | *_bw | *-bw*) operations=4000000 ;;
    *) operations=400000 ;;
  esac
  [[ $group != *-bytes ]] || operations=$((operations / 4)) most=$((1 << 30))
  ((operations * bytes <= most)) || operations=$((most / bytes))
  local -a amount=(-s "$bytes" -n "$operations" --warm-up "$((operations / 10))")
  # Of an exchange of four.
  local exchanges=$((bytes < 4096 ? 20000 : 2000))
  local -a rounds_of=(-s "$bytes" -n "$exchanges" --warm-up "$((exchanges / 10))")
  next_port
  case $kind in
    plain-*) ours "$1" "${kind#plain-}" "${amount[@]}" ;;
    pingpong | message | read | write | pa-read | pa-write) ours "$1" "$kind" "${amount[@]}" ;;
    memcpy)
      perf memcpy "${amount[@]}" --cpu "$client_cpu"
      note "$1" "$(<"$work/one")" ;;
    message-bw) ours "$1" message-bw "${amount[@]}" ;;
    connections-*) ours "$1" message-bw "${amount[@]}" --connections "${kind#*-}" ;;
    idle)
      # Woken by each message, awake, and left alone for most of the time.
      local woken awake
      perf message -s "$bytes" -n 500 --warm-up 20 --idle-us 1000 --local
      woken=$(<"$work/one")
      perf message -s "$bytes" -n 500 --warm-up 20 --local
      awake=$(<"$work/one")
      perf message -s "$bytes" -n 2 --warm-up 0 --idle-us 500000 --local
      note "$1" "{\"woken\":$woken,\"awake\":$awake,\"idle\":$(<"$work/one")}" ;;
    wake)
      perf wake -n 500 --warm-up 20 --idle-us 1000 --cpu "$client_cpu"
      note "$1" "$(<"$work/one")" ;;
    ucp_*)
      tool=(env UCX_TLS=posix UCX_LOG_LEVEL=info ucx_perftest -p "$port")
      server=("${tool[@]}")
      client=("${tool[@]}" -t "$kind" -s "$bytes" -n "$operations" -w "$((operations / 10))" -f -v 127.0.0.1)
      peer "$1" "$operations" ucx_perftest ucx-utils ;;
    fi_pingpong)
      tool=(fi_pingpong -p shm -e rdm -I "$operations" -S "$bytes")
      server=("${tool[@]}" -B "$port")
      client=("${tool[@]}" -P "$port" 127.0.0.1)
      peer "$1" "$operations" fi_pingpong libfabric-bin ;;
    # Four processes on two cpus: who waits yields, as with Open MPI.
    mesh-ping-pong) mesh "$1" --pattern ping-pong "${amount[@]}" ;;
    mesh-exchange) mesh "$1" --pattern exchange -N 4 --yield "${rounds_of[@]}" ;;
    mesh-stream) mesh "$1" --pattern stream --depth 256 --operations 256 "${amount[@]}" ;;
    mesh-batched) mesh "$1" --pattern stream --depth 256 --operations 256 --batch 32 "${amount[@]}" ;;
    mesh-poll)
      mesh "$1" --pattern poll -N $((bytes + 1)) -n 400000 --warm-up 40000 --clock-every 100 --cpu "$client_cpu" ;;
    mesh-join) mesh "$1" --pattern join -N "$bytes" -s 4096 ;;
    mesh-sweep)
      rm -rf "$work/sweep"
      mkdir "$work/sweep"
      if taskset -c "$client_cpu" timeout -k 5 120 "$build/bench/mesh_sweep" "$bytes" "$work/sweep" >"$work/one" \
        2>"$work/error"; then
        note "$1" "$(<"$work/one")"
      else
        missing "$1" "mesh_sweep: $(tail -n 1 "$work/error")"
      fi ;;
    mpi-alltoall)
      if launched "$1" 4 mpi_alltoall "$bytes" "$exchanges" $((exchanges / 10)); then
        note "$1" "$(<"$work/client")"
      fi ;;
    bring-up-*) bring_up "$1" "${kind#bring-up-}" "$bytes" ;;
    # One outstanding: keys that stay in the caches (keys.sh has the others), a reading of the clock for a hundred.
    kv-known) kv_bench "$1" "$bytes" 1000 --lookup one-sided --read-percent 100 --clock-every 100 ;;
    kv-index)
      kv_bench "$1" "$bytes" 1000 --lookup one-sided --known-locations 0 --read-percent 100 --clock-every 100 ;;
    kv-message) kv_bench "$1" "$bytes" 1000 --lookup message --read-percent 100 --clock-every 100 ;;
    kv-put) kv_bench "$1" "$bytes" 1000 --read-percent 0 --clock-every 100 ;;
    kv-gets-one-sided) kv_bench "$1" "$bytes" "$kv_keys" --lookup one-sided --read-percent 100 --batch 32 ;;
    kv-gets-message) kv_bench "$1" "$bytes" "$kv_keys" --lookup message --read-percent 100 --batch 32 ;;
    kv-puts) kv_bench "$1" "$bytes" "$kv_keys" --read-percent 0 --batch 32 ;;
    kv-get-one) kv_bench "$1" "$bytes" 1 --read-percent 100 ;;
    kv-get-many) kv_bench "$1" "$bytes" 64 --read-percent 100 ;;
    kv-put-one) kv_bench "$1" "$bytes" 1 --read-percent 0 ;;
    kv-put-many) kv_bench "$1" "$bytes" 64 --read-percent 0 ;;
    kv-memory) kv_bench "$1" "$bytes" "$kv_keys" --count 1 ;;
    held-*) held "$1" "${kind#held-}" "$bytes" ;;
    redis-* | memcached-*) socket_peer "$1" ;;
    *) die "$1: measure does not know how" ;;
  esac
}

# measure_slices: what a round has of the calls below a microsecond.
measure_slices() {
  stop_servers ''
  bash bench/slices.sh --no-packages --build "$build" --rotations 40 --json "$work/slices.$round" >"$work/one" ||
    die 'bench/slices.sh failed'
  slices+=("$work/slices.$round")
}

# Times a bare cache-line transfer, for the range from `near` to `far` ns.
look() {
  perf line -n 20000
  [[ $(<"$work/one") =~ \"median_ns\":([0-9]+) ]] || die "verbena-perf line says: $(<"$work/one")"
  ((BASH_REMATCH[1] >= near)) || near=${BASH_REMATCH[1]}
  ((BASH_REMATCH[1] <= far)) || far=${BASH_REMATCH[1]}
}

# measure_group NAME FIGURE...: measures the figures between bare cache-line transfers. A virtual machine's cores
# move, within seconds, between places where a transfer takes 40 ns and where it takes 260: then the group is measured
# again, and left out of the round where that never helps.
measure_group() {
  local group=$1 tries most=12 near far i
  local -a names=("${@:2}") order=()
  [[ $group == kv-* ]] || stop_servers ''
  # The curves, which no target hangs on, are looked at before and after.
  [[ $group != *-bytes && $group != mesh-processes ]] || most=4
  # Who goes first changes: a round's second half may be slower than its first.
  for i in "${!names[@]}"; do
    if ((round % 2)); then order+=("${names[i]}"); else order=("${names[i]}" "${order[@]}"); fi
  done
  for ((tries = 0; tries < most; ++tries)); do
    : >"$figures"
    near=1000000 far=0
    look
    for i in "${!order[@]}"; do
      measure "${order[i]}"
      # A count is the same wherever the cores are.
      [[ $group != kv-held ]] || continue
      if [[ $group == *-bytes || $group == mesh-processes ]] && ((i + 1 < ${#order[@]})); then continue; fi
      look
      if ((4 * far > 5 * near)); then
        repeated=$((repeated + 1))
        continue 2
      fi
    done
    cat "$figures" >>"$work/figures"
    steady[$group]=1
    return
  done
  left_out=$((left_out + 1))
}

declare -A steady=()
plan=$(python3 bench/compare_table.py --plan ${groups:+--groups "$groups"}) || bad_usage
if grep -q '^physical ' <<<"$plan" &&
  ! timeout -k 5 120 "$build/src/programs/verbena-perf" pa-read --local -n 1 >/dev/null 2>"$work/error"; then
  grep -q CAP_SYS_ADMIN "$work/error" || die "verbena-perf pa-read failed: $(<"$work/error")"
  echo "skipped \"physical: $(tail -n 1 "$work/error" | tr -d '"\\')\"" >>"$work/figures"
  plan=$(sed '/^physical /d' <<<"$plan")
fi
for ((round = 1; round <= rounds; ++round)); do
  echo "bench: round $round of $rounds" >&2
  while read -ra words <&3 && ((${#words[@]})); do
    if [[ ${words[0]} == slices ]]; then measure_slices; else measure_group "${words[@]}"; fi
  done 3<<<"$plan"
done

figures=$work/figures round=$rounds
while read -ra words <&3 && ((${#words[@]})); do
  [[ ${words[0]} == slices || -n ${steady[${words[0]}]:-} ]] ||
    missing "group-${words[0]}" 'cache-line transfers moved in every attempt'
done 3<<<"$plan"
status=0
write_table '' || status=$?
trap clean_up EXIT
exit "$status"
