#!/usr/bin/env bash
# Shows the key-value store at work, on any Linux machine: builds it, starts a server on the software NIC, loads a
# directory tree from one process, verifies it from another, measures from a third, and stops the server.
# usage: scripts/demo.sh [--dir DIR] [--seconds S] [--build DIR] [--kv PROGRAM] [--device D] [--socket] [--no-packages]
#   --dir DIR      the tree (default /usr/include)
#   --seconds S    seconds of each measurement (default 2)
#   --build DIR    where to build (default build-demo)
#   --kv PROGRAM   a verbena-kv that is built already
#   --device D     the NIC: an RDMA device, or soft (default)
#   --socket       connect by a TCP exchange instead of RDMA CM
#   --no-packages  trust that the packages are there
# Ends with 0 when every step succeeded, 1 when one failed, 2 for wrong usage, 3 when packages must be installed by
# hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dir=/usr/include seconds=2 build=build-demo kv='' device=soft packages=1
transport=()
usage() { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
while (($#)); do
  case $1 in
    --dir | --seconds | --build | --kv | --device)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    --socket) transport=(-S) ;;
    --no-packages) packages=0 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
[[ $seconds =~ ^[0-9]+(\.[0-9]+)?$ ]] || { usage >&2; exit 2; }
transport+=(-d "$device")

step() { echo; echo "== $*"; }
die() { echo "demo: failed: $*" >&2; exit 1; }

work='' server=''
clean_up() {
  if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
  if [[ -n $work ]]; then rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source scripts/packages.sh
  install_packages demo || exit $?
fi
# shellcheck source=scripts/cache.sh
source scripts/cache.sh
use_cache
[[ -d $dir ]] || die "$dir is not a directory; name another with --dir"

work=$(mktemp -d)
log=$work/build.log
# Runs a step of the build, which ends when it makes no progress (scripts/progress.py). It prints a line in five
# seconds; what the step printed is shown when it fails.
building() {
  local line next=$((SECONDS + 3))
  python3 scripts/progress.py "$@" </dev/null 2>&1 | tee "$log" |
    while IFS= read -r line; do
      if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] && ((SECONDS >= next)); then
        echo "   ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
        next=$((SECONDS + 5))
      fi
    done || { tail -n 40 "$log" >&2; die "$*"; }
}
if [[ -z $kv ]]; then
  step "Building verbena-kv (release) in $build"
  if [[ ! -f $build/build.ninja ]]; then
    echo '   configuring'
    building meson setup "$build" . --buildtype=release -Dprograms=enabled -Dtests=disabled -Dbenchmarks=disabled \
      -Dexamples=disabled
  fi
  building ninja -C "$build" src/programs/verbena-kv
  kv=$build/src/programs/verbena-kv
fi
"$kv" --version

# Memory for the tree twice over, because items have headers and size classes; and room for the measurements.
read -r files bytes largest < <(find -H "$dir" -type f -printf '%s\n' 2>/dev/null |
  awk '{ ++n; sum += $1; if ($1 > most) most = $1 } END { printf "%d %.0f %.0f\n", n, sum, most }')
((files > 0)) || die "$dir has no files; name another with --dir"
mib=$((1 << 20))
memory=$((2 * bytes / mib + 1024))
value=$((largest / mib + 1 > 64 ? largest / mib + 1 : 64))

nic="the RDMA device $device" needs='a network card that reads and writes memory'
if [[ $device == soft ]]; then nic="Verbena's software NIC" needs='no RDMA hardware needed'; fi
step "Starting a server: process 1, $memory MiB, $needs"
mkfifo "$work/server"
"$kv" serve "${transport[@]}" -p 0 -m "$memory" --max-value-mib "$value" --grace-ms 100 >"$work/server" &
server=$!
exec {from_server}<"$work/server"
IFS= read -r -t 600 -u "$from_server" line || die 'the server did not get ready; its message is above'
echo "$line"
port=$(sed -E 's/.*serving on [^;]*:([0-9]+);.*/\1/' <<<"$line")
[[ $port =~ ^[0-9]+$ ]] || die "the server's first line names no port: $line"

# Runs a client, each of whose operations has a deadline; its output is shown, and kept in $work/$1.
client() {
  local name=$1
  shift
  "$kv" "$1" "${transport[@]}" "${@:2}" -p "$port" | tee "$work/$name" || die "verbena-kv $*"
}

step "Loading $dir: process 2 puts $files files ($((bytes / mib)) MiB, the largest $((largest / 1024)) KiB)"
client load load "$dir"

step 'Verifying: process 3 gets every file back, and compares it byte by byte with the one on disk'
client verify verify "$dir"

step 'Measuring: process 4 puts and gets 64-byte values, one at a time'
client latency bench --seconds "$seconds"
step 'Measuring: the same with 32 in flight'
client rate bench --seconds "$seconds" --depth 32
step 'Measuring: 1 MiB values, one at a time'
client bandwidth bench --seconds "$seconds" --value-size 1M

step 'Stopping the server with SIGTERM'
kill -TERM "$server"
stopped=no
# Ends when the server has closed its output, which is when it is gone, or with a line that is 30 s late.
while IFS= read -r -t 30 -u "$from_server" line; do
  echo "$line"
  if [[ $line == 'verbena-kv: stopped' ]]; then stopped=yes; fi
done
[[ $stopped == yes ]] || die 'the server did not stop within 30 s of SIGTERM'
status=0
wait "$server" || status=$?
server=''
((status == 0)) || die "the server ended with $status"

p50() { sed -nE "s/^  $2  .* p50 ([^,(]*[^,( ]).*/\1/p" "$work/$1"; }
rate() { sed -nE 's/^  all  .*, ([0-9]+) ops\/s.*/\1/p' "$work/$1"; }
of() { sed -nE "s/.*; $1 ([0-9.]+ [KMGT]iB\/s).*/\1/p" "$work/bandwidth"; }
privilege=''
if [[ $device == soft ]]; then privilege=': no RDMA hardware, kernel module or privilege took part'; fi
step 'What you saw'
cat <<END
A server and client processes shared memory through $nic$privilege.
One client stored $files files ($((bytes / mib)) MiB) under their paths; another read them all back and found every
byte as it is on disk.
Latency of a 64-byte value, from call to return (medians): $(p50 latency get) for a get, $(p50 latency put) for a put.
With 32 in flight: $(rate rate) operations a second. 1 MiB values: get $(of get), put $(of put).
The server then stopped cleanly on SIGTERM.
END
