#!/usr/bin/env bash
# usage: suites.sh BUILD [pair]      (pair: those for two machines, scripts/softroce.sh --pair)
# The suites that run in the machine of scripts/softroce.sh, one after the other; the list is at the end. A suite leaves
# its output in /results/NAME.log, its status in NAME.status (77: skipped, by its last line) and, if it is a GoogleTest
# executable, its cases in NAME.xml; scripts/run_tests.py counts them. Ends with 1 when one failed, 77 when none ran.
set -uo pipefail
build=${1:?suites.sh needs a build directory}
export build here
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${VERBENA_RESULTS:?suites.sh runs in the machine of scripts/softroce.sh}
export VERBENA_NIC=${VERBENA_NIC:-rxe0}

device_is_active() {
  local link
  ibv_devices
  link=$(rdma link show rxe0/1)
  echo "$link"
  [[ $link == *'state ACTIVE'* ]]
}

# 100 messages between two processes; GID index 1 is the RoCE v2 address.
pingpong() {
  ibv_rc_pingpong -d rxe0 -g 1 -n 100 &
  local server=$! tries
  # The server does not say when it listens: clients are sent until one is let in.
  for ((tries = 0; tries < 50; ++tries)); do
    if ibv_rc_pingpong -d rxe0 -g 1 -n 100 127.0.0.1; then
      wait "$server"
      return
    fi
    kill -0 "$server" || return 1
    sleep 0.5
  done
  kill "$server"
  return 1
}

# What a newcomer runs first: it must find the device, and say that programs take it.
info() {
  local text
  [[ -x $build/src/programs/verbena-info ]] || { echo 'verbena-info is not built'; return 77; }
  text=$("$build/src/programs/verbena-info") || return
  echo "$text"
  grep -q "^NIC  *$VERBENA_NIC: " <<<"$text" && grep -qi 'atomic' <<<"$text"
}

# says TEXT COMMAND...: the command ends with 3, within a time, and its message has TEXT, whatever the case.
says() {
  local text status=0
  text=$(timeout 30 "${@:2}" 2>&1) || status=$?
  echo "$status: $text"
  [[ $status == 3 ]] && grep -qi -- "$1" <<<"$text" && return
  echo "failed: expected 3 and '$1' of ${*:2}"
  return 1
}

export -f says

# What can be wrong with a device, an address or a limit has its own message.
errors() {
  local kv=$build/src/programs/verbena-kv server failures=0
  [[ -x $kv ]] || { echo 'verbena-kv is not built'; return 77; }
  says "this host has: $VERBENA_NIC" "$kv" put -d nope x y || failures=1
  says 'not reached by an RDMA device' "$kv" put -d "$VERBENA_NIC" -a 127.0.0.1 x y || failures=1
  says 'no GID at index 200' "$kv" put -d "$VERBENA_NIC" --gid-index 200 x y || failures=1
  says 'is not a device name: write soft, a device' "$kv" put -d "$VERBENA_NIC:x" x y || failures=1
  says 'nothing listens' "$kv" put -d "$VERBENA_NIC" x y || failures=1
  says 'timed out' "$kv" put -a 10.0.0.77 --timeout-ms 2000 x y || failures=1
  # Root without the right to lock as much as it likes.
  says 'memlock' bash -c "ulimit -l 1024; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
    '$kv' serve -d '$VERBENA_NIC' -p 0 -m 64" || failures=1
  "$kv" serve -S -d "$VERBENA_NIC" -p 7470 -m 16 --max-value-mib 1 --port-file /tmp/errors.port &
  server=$!
  # The file is there once clients may come.
  timeout 30 bash -c 'until [[ -s /tmp/errors.port ]]; do kill -0 "$1" || exit 1; sleep 0.1; done' _ "$server" ||
    failures=1
  says 'choose the same kind' "$kv" put -d soft x y || failures=1
  kill "$server"
  wait "$server"
  ip link set d0 down
  says 'port 1 of .* is down' "$kv" put -d "$VERBENA_NIC" x y || failures=1
  ip link set d0 up
  return "$failures"
}

# The main job on the device. The tree is one of a few megabytes.
demo() {
  [[ -x $build/src/programs/verbena-kv ]] || { echo 'verbena-kv is not built'; return 77; }
  "$here/../demo.sh" --no-packages --kv "$build/src/programs/verbena-kv" --dir "$here/../../src" --seconds 1 \
    --device "$VERBENA_NIC"
}

examples() { python3 "$here/../../test/consumers/consumers.py" built "$build"; }

ran=0 failed=0 group=each
# group NAME: the suites that follow are of this group. VERBENA_GROUPS names those that run; empty: all.
group() { group=$1; }

# suite NAME COMMAND...: ended when it makes no progress, which on an emulated machine takes its time.
suite() {
  [[ -z ${VERBENA_GROUPS:-} || " $VERBENA_GROUPS " == *" $group "* ]] || return 0
  local name=$1 log=$results/$1.log status=0 process
  shift
  echo "== $name"
  VERBENA_PATIENCE_S=600 "$here/../progress.py" "$@" >"$log" 2>&1 </dev/null &
  process=$!
  # Not a pipe: a process that the suite left behind would keep it open.
  tail -n +1 -s 0.1 -f --pid="$process" "$log"
  wait "$process" || status=$?
  echo "$status" >"$results/$name.status"
  case $status in
    0) ran=1; echo "== $name: passed" ;;
    77) echo "== $name: skipped" ;;
    *) ran=1 failed=1; echo "== $name: failed ($status)" ;;
  esac
}

# check NAME FUNCTION
check() {
  export -f "${2?}"
  suite "$1" bash -c "$2"
}

# gtest NAME EXECUTABLE [ARGUMENT...]: the executable is named from the build directory. Only tests of programs
# may be missing: their libraries are optional. An executable that moved must move here too.
gtest() {
  local name=$1 executable=$build/$2 status=1
  if [[ -x $executable ]]; then
    suite "$name" "$executable" "--gtest_output=xml:$results/$name.xml" "${@:3}"
  else
    [[ $2 != test/programs/* ]] || status=77
    suite "$name" bash -c "echo '$2 is not built'; exit $status"
  fi
}

if [[ ${2:-} == pair ]]; then
  check device device_is_active
  VERBENA_OWN_HOST=10.0.0.1 VERBENA_PEER_HOST=10.0.0.2 gtest mesh_pair test/mesh/test_mesh \
    --gtest_filter='TwoHosts.*'
  # The last one: the other machine loses its power.
  VERBENA_PEER_HOST=10.0.0.2 gtest host_death test/channel/test_peer_death --gtest_filter='HostDeath.*'
  ((failed)) && exit 1
  ((ran)) || exit 77
  exit 0
fi

# The list. First one suite of each kind, for every run; the groups after them are parts of the daily set
# (scripts/daily.py).
group each
check device device_is_active
check pingpong pingpong
check info info
check errors errors
# The NIC seam, on the device; on the soft NIC it is the host's. What it does, and what it refuses.
operations='Nics/Opcode.*verbs*:Nics/RemoteErrors.*verbs*:Nics/MwType2.*verbs*:Nics/Keys.*verbs*'
gtest verbs_operations test/nic/test_nic_conformance --gtest_filter="$operations"
# The layers above the seam, on the device as on the soft NIC.
gtest engine test/engine/test_engine
gtest link test/link/test_link
gtest node test/node/test_node
gtest cxx test/api/cxx/test_cxx
# What allocates. Of a store's clients each registers its memory anew, which takes long here.
gtest sealed test/sealed/test_sealed
# Peers that are killed, and the link that goes down and comes up again.
VERBENA_NETDEV=d0 gtest peer_death test/channel/test_peer_death --gtest_filter=-HostDeath.*
# The store: a server and four clients, each a process.
check demo demo

group nic
# Hugepages and, with --numa, two nodes. What is left out zeroes gigabytes, which takes minutes on an emulated cpu, or
# computes with topologies of its own.
gtest host test/host/test_host --gtest_filter=-ArenaTest.IsPresentAndWritableAllOver:\
ArenaTest.HugepagesThatAreNotThereTakeNothingFromOtherThreads:Placement.KeepsItsRulesEverywhere
gtest verbs_conformance test/nic/test_nic_conformance --gtest_filter="*verbs*-$operations"
# verbena-perf between two processes on the device. The rest is the same on every NIC.
VERBENA_PROGRAM=$build/src/programs/verbena-perf gtest perf test/programs/test_programs_perf \
  --gtest_filter='PerfRun.EveryTestAndSize:PerfRun.WithoutThePrivilege*'

group layers
gtest channel test/channel/test_channel
gtest physical test/session/test_physical
gtest mesh test/mesh/test_mesh
# RDMALib's interface over it.
gtest nova test/compat/test_nova
# The C API, and what ends under its calls.
gtest c test/api/c/test_c
gtest c_faults test/api/c/test_c_faults
gtest c_fork test/api/c/test_c_fork
# Posting is a system call there.
gtest c_cancel test/api/c/test_c_cancel
# Segments and the operations that own them. Nothing can be held or late on purpose there.
gtest typed test/api/cxx/test_typed
gtest queue_pair test/api/cxx/test_queue_pair
# What is left behind.
gtest growth test/sealed/test_growth

group store
# The store in both modes of connection. Not the budgets of large values, which the soft NIC shows, nor maps, which
# clients in processes are.
VERBENA_BOOTSTRAP=cm gtest kv_cm test/kv/test_kv \
  --gtest_filter='-KvBudget.ALarge*:KvTest.SeveralClientsBehaveLikeMaps'
VERBENA_BOOTSTRAP=cm gtest kv_process_cm test/kv/test_kv_process
# Clients that try what they must not, and histories of concurrent ones.
gtest kv_hostile test/kv/test_kv_hostile
gtest kv_linear test/kv/test_kv_linear
# Only how connections begin and end differs in socket mode.
VERBENA_BOOTSTRAP=socket gtest kv_process_socket test/kv/test_kv_process --gtest_filter='*Ends*:*KilledServer*'
# The examples as they were built outside of the tree: they take the device by themselves.
check examples examples

((failed)) && exit 1
((ran)) || exit 77
