# What the benchmark scripts share. To be sourced at the root of the tree: source bench/common.sh
# Before it measures, a script sets `build`, `work` (a directory of its own) and `figures` (the file of its notes).

die() { echo "bench: $*" >&2; exit 1; }

# The comment at the head of the script that runs.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; }
bad_usage() { usage >&2; exit 2; }

# parse_options "NAME..." "$@": sets the variable NAME to VALUE at `--NAME VALUE`, and packages=0 at --no-packages.
parse_options() {
  local names=" $1 "
  shift
  while (($#)); do
    case $1 in
      --no-packages) packages=0 ;;
      -h | --help) usage; exit 0 ;;
      --*)
        [[ $names == *" ${1#--} "* && -n ${2:-} ]] || bad_usage
        declare -g "${1#--}=$2"
        shift ;;
      *) bad_usage ;;
    esac
    shift
  done
}

# build_release TARGET...: in `build`, which is made where there is none.
build_release() {
  if [[ ! -f $build/build.ninja ]]; then
    meson setup "$build" . --buildtype=release -Dtests=disabled -Dexamples=disabled -Dprograms=enabled \
      -Dbenchmarks=enabled >/dev/null || die "$build does not configure; see $build/meson-logs/meson-log.txt"
  fi
  ninja -C "$build" "$@" >&2 || die "$build does not build"
}

# The interpreter for a table with plots: Debian's has Debian's matplotlib, which another `python3` in front may lack.
table_python() {
  local each
  for each in python3 /usr/bin/python3; do
    if "$each" -c 'import matplotlib' 2>/dev/null; then echo "$each"; return; fi
  done
  echo python3
}

# note NAME JSON
note() { echo "$1 $2" >>"$figures"; }

# perf ARGUMENT...: leaves what verbena-perf measures in $work/one, as JSON.
perf() {
  timeout -k 5 120 "$build/src/programs/verbena-perf" "$@" --json >"$work/one" || die "verbena-perf $* failed"
}

# ours NAME ARGUMENT...: notes the same of a test between a client on the first cpu and a server on the second.
ours() {
  perf "${@:2}" --local
  note "$1" "$(<"$work/one")"
}

# await_listener PORT PID: until PID, which does not say when, listens at the TCP port. 1: it ended, or took 20 s.
await_listener() {
  local hex tries
  hex=$(printf ':%04X ' "$1")
  for ((tries = 0; tries < 2000; ++tries)); do
    if grep -qs "$hex.* 0A " /proc/net/tcp /proc/net/tcp6; then return 0; fi
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.01
  done
  return 1
}

# serve_and_ask PORT SERVER CLIENT: runs the words of the array SERVER on cpu `server_cpu`, and those of CLIENT on
# `client_cpu` once the server listens at PORT; their outputs are $work/server and $work/client. 1: one of them failed,
# and `why` says so.
serve_and_ask() {
  local -n serve=$2 ask=$3
  local pid
  why=''
  taskset -c "$server_cpu" timeout -k 5 120 "${serve[@]}" >"$work/server" 2>&1 &
  pid=$!
  : >"$work/client"
  if ! await_listener "$1" "$pid"; then
    why="${serve[*]}: does not listen"
  elif ! taskset -c "$client_cpu" timeout -k 5 120 "${ask[@]}" >"$work/client" 2>&1; then
    why="${ask[*]}: failed"
  fi
  if [[ -n $why ]]; then kill "$pid" 2>/dev/null || true; fi
  if wait "$pid"; then :; else why=${why:-"${serve[*]}: ended with $?"}; fi
  [[ -z $why ]] && return 0
  why+=": $(tail -n 1 "$work/client") $(tail -n 1 "$work/server")"
  return 1
}
