#!/usr/bin/env bash
# usage: suites.sh BUILD
# The suites that run in the machine of scripts/softroce.sh, one after the other. A suite leaves its output in
# /results/NAME.log, its status in /results/NAME.status and a GoogleTest executable its cases in /results/NAME.xml;
# scripts/run_tests.py counts them. Ends with 1 when one failed, 77 when none ran.
set -uo pipefail
build=${1:?suites.sh needs a build directory}
results=${VERBENA_RESULTS:?suites.sh runs in the machine of scripts/softroce.sh}

device_active() {
  ibv_devices
  rdma link show rxe0/1
  rdma link show rxe0/1 | grep -q 'state ACTIVE'
}

# Between two processes; GID index 1 is the RoCE v2 address.
pingpong() {
  ibv_rc_pingpong -d rxe0 -g 1 -n 100 &
  local server=$! tries
  # The server prints nothing when it listens: the client is sent until one is let in.
  for ((tries = 0; tries < 20; ++tries)); do
    if ibv_rc_pingpong -d rxe0 -g 1 -n 100 127.0.0.1; then
      wait "$server"
      return
    fi
    kill -0 "$server" || break
    sleep 0.5
  done
  kill "$server"
  return 1
}

# A GoogleTest executable below the build directory.
gtest() {
  local executable=$build/$1
  shift
  if [[ ! -x $executable ]]; then
    echo "$executable is not built"
    return 77
  fi
  "$executable" --gtest_output="xml:$results/$name.xml" "$@"
}

ran=0 failed=0
# suite NAME SECONDS COMMAND...
suite() {
  local name=$1 seconds=$2 status=0
  shift 2
  echo "== $name"
  : >"$results/$name.log"
  export -f device_active pingpong gtest
  export build results name
  timeout -k 5 "$seconds" bash -c '"$@"' "$name" "$@" 2>&1 | tee "$results/$name.log" || status=$?
  echo "$status" >"$results/$name.status"
  case $status in
    0) ran=1 ;;
    77) echo "== $name: skipped" ;;
    *) ran=1 failed=1; echo "== $name: failed ($status)" ;;
  esac
}

# The list. A suite on real verbs is one line:
#   suite NAME SECONDS env VERBENA_NIC=rxe0 bash -c 'gtest test/DIRECTORY/EXECUTABLE'
suite device 30 device_active
suite pingpong 60 pingpong

((failed)) && exit 1
((ran)) || exit 77
