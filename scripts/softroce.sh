#!/usr/bin/env bash
# Runs a command on real verbs without RDMA hardware: boots Debian's kernel with Soft-RoCE in an emulated machine (qemu,
# no KVM) on this machine's own files, which are read-only in there; see docs/softroce.md.
# usage: scripts/softroce.sh [--numa | --peer COMMAND | --pair] [--timeout S] [--results DIR] [--build DIR]
#                            [--no-packages] [--] [COMMAND...]
#   --numa         two NUMA nodes of 2 GiB and one cpu each, instead of one node of 4 GiB with two cpus
#   --peer COMMAND two machines of one cpu with a wire between them: COMMAND, for a shell, runs in the second, 10.0.0.2.
#                  It loses its power when the first makes the file /results/cut-power, else when the first ends
#   --pair         --peer with the peer that the suites for two machines need, which run without COMMAND
#   --timeout S    seconds that the machine may run (default 1200)
#   --results DIR  what the command wrote to /results ($VERBENA_RESULTS in there) is kept in DIR
#   --build DIR    the build whose suites run without COMMAND (default: plain in $VERBENA_BUILD_ROOT, build-test)
#   --no-packages  trust that the packages are there
#   COMMAND        run as root in the caller's directory with VERBENA_* and GTEST_* of the environment; its output comes
#                  as it is made, stdout and stderr in one. Default: the list in scripts/softroce/suites.sh
# Ends as COMMAND did (128+N for signal N); with 2 for wrong usage, 77 and a reason when this machine lacks something,
# 124 after the deadline, 125 when the emulated machine failed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
PATH=$PATH:/usr/sbin:/sbin

usage() { sed -n '4,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
say() { echo "softroce: $*" >&2; }
skip() { say "skipped: $*"; exit 77; }

build_root=$(realpath -m "${VERBENA_BUILD_ROOT:-$root/build-test}")
numa=0 pair=0 peer='' timeout=1200 results='' build=$build_root/plain packages=1
while (($#)); do
  case $1 in
    --timeout | --results | --build | --peer)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    --numa) numa=1 ;;
    --pair) pair=1 ;;
    --no-packages) packages=0 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    -*) usage >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
[[ $timeout =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }
build=$(realpath -m "$build")
command=("$@")
if ((${#command[@]} == 0)); then
  command=("$here/softroce/suites.sh" "$build")
  if ((pair)); then command+=(pair); fi
fi
if ((pair)) && [[ -z $peer ]]; then
  # Each waits for who joins, or connects.
  printf -v peer 'export VERBENA_NIC=rxe0; %q member 10.0.0.1:7480 10.0.0.2:7480 & exec %q peer 10.0.0.2 7471' \
    "$build/test/mesh/test_mesh" "$build/test/channel/test_peer_death"
fi
if [[ -n $peer ]] && ((numa)); then usage >&2; exit 2; fi

work='' machine=0 peer_machine=0 follower=0 watcher=0
# shellcheck disable=SC2317
clean_up() {
  local process
  for process in "$follower" "$watcher"; do
    if ((process)); then kill -TERM "$process" 2>/dev/null || true; fi
  done
  # `timeout` hands the signal on to qemu, and kills it when that does not help.
  for process in "$machine" "$peer_machine"; do
    if ((process)) && kill -TERM "$process" 2>/dev/null; then wait "$process" || true; fi
  done
  if [[ -n $work ]]; then rm -rf "$work"; fi
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
work=$(mktemp -d)

[[ $(uname -m) == x86_64 ]] || skip "the machine is emulated for x86-64 only, and this is $(uname -m)"
command -v apt-get >/dev/null || skip 'the kernel comes from Debian, by apt-get, which is not there'
if ((packages)); then
  # shellcheck source=scripts/packages.sh
  source "$here/packages.sh"
  install_packages softroce >&2 || skip 'its packages are not all there'
fi
for tool in qemu-system-x86_64 busybox cpio depmod modprobe ip rdma; do
  command -v "$tool" >/dev/null || skip "$tool is not there (the package set softroce of scripts/packages.sh has it)"
done

# Modules of the initramfs, with what they depend on. crc32_generic is what rxe asks for by name when a link is added.
modules=(virtio_pci virtio_console virtio_net 9p 9pnet_virtio rdma_rxe rdma_ucm ib_uverbs dummy)
optional_modules=(crc32_generic)

# Unpacks the kernel package $1 into the directory $2: vmlinuz, and an initramfs of busybox, modules and our init.
unpack_kernel() {
  local tree=$work/kernel files=$work/initramfs version module path
  dpkg -x "$1" "$tree"
  version=$(basename "$tree"/lib/modules/*)
  depmod -b "$tree" "$version"
  mkdir -p "$files"/{bin,modules}
  cp "$(command -v busybox)" "$files/bin/busybox"
  for module in "${modules[@]}"; do
    modprobe -d "$tree" -S "$version" --show-depends "$module"
  done >"$work/order"
  for module in "${optional_modules[@]}"; do
    modprobe -d "$tree" -S "$version" --show-depends "$module" >>"$work/order" 2>/dev/null || true
  done
  awk '/^insmod/ && !seen[$2]++ { print $2 }' "$work/order" | while read -r path; do
    module=$(basename "$path")
    module=${module%%.ko*}.ko
    case $path in
      *.xz) xz -dc "$path" >"$files/modules/$module" ;;
      *.zst) zstd -qdc "$path" >"$files/modules/$module" ;;
      *) cp "$path" "$files/modules/$module" ;;
    esac
    echo "$module" >>"$files/modules/order"
  done
  cp "$here/softroce/init.sh" "$files/init"
  chmod +x "$files/init"
  (cd "$files" && find . | cpio -o -H newc --quiet | gzip -1) >"$2/initramfs"
  cp "$tree/boot/vmlinuz-$version" "$2/vmlinuz"
  rm -rf "$tree" "$files"
}

# Downloads the newest kernel package into $1. Nothing is installed.
download_kernel() {
  (cd "$1" && timeout -k 10 600 apt-get download -q -o APT::Sandbox::User=root "$2=$3") >"$work/download.log" 2>&1
}

# Makes $kernel (a directory with vmlinuz and initramfs) in the cache, unless it is there for the newest kernel and for
# these scripts. One run at a time.
prepare_kernel() {
  local cache=$build_root/softroce lock package='' version='' key deb
  mkdir -p "$cache"
  exec {lock}>"$cache/lock"
  flock -w 900 "$lock" || skip "another run holds $cache/lock"
  if command -v apt-cache >/dev/null; then
    package=$(apt-cache depends linux-image-amd64 2>/dev/null |
      sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
    version=$(apt-cache policy "${package:-none}" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep -v none || true)
  fi
  deb=$cache/${package}_${version//:/%3a}_amd64.deb
  if [[ -z $version ]]; then
    # The package lists may be gone since: the kernel of an earlier run is as good.
    deb=$(find "$cache" -name 'linux-image-*.deb' | sort -V | tail -n 1)
    [[ -n $deb ]] || skip 'apt knows no linux-image-amd64 here (Debian has it; apt-get update fetches the lists)'
  elif [[ ! -f $deb ]]; then
    say "downloading $package $version"
    mkdir "$work/download"
    if download_kernel "$work/download" "$package" "$version"; then
      find "$cache" -name 'linux-image-*.deb' -delete
      mv "$work"/download/*.deb "$deb"
    else
      deb=$(find "$cache" -name 'linux-image-*.deb' | sort -V | tail -n 1)
      [[ -n $deb ]] || skip "apt-get download $package failed: $(tail -n 1 "$work/download.log")"
    fi
  fi
  key=$(cat "${BASH_SOURCE[0]}" "$here/softroce/init.sh" <(basename "$deb") | sha256sum | cut -c 1-16)
  kernel=$cache/kernel-$key
  if [[ ! -d $kernel ]]; then
    say "making an initramfs from $(basename "$deb")"
    rm -rf "$cache"/kernel-* "$cache/new"
    mkdir "$cache/new"
    unpack_kernel "$deb" "$cache/new"
    mv "$cache/new" "$kernel"
  fi
  exec {lock}>&-
}

# Writes what a machine shall do to the directory $1, which it sees as /job: its number $2, the command with its
# surroundings, and the directories below /tmp and /run that it must see although those are its own in there.
write_job() {
  local job=$1 name path
  mkdir "$job"
  echo "$2" >"$job/number"
  shift 2
  cp "$here/softroce/machine.sh" "$job/machine.sh"
  {
    while read -r name; do
      case $name in VERBENA_RESULTS) ;; VERBENA_* | GTEST_*) printf 'export %s=%q\n' "$name" "${!name}" ;; esac
    done < <(compgen -e)
    printf 'cd -- %q || exit 126\nexec' "$PWD"
    printf ' %q' "$@"
    echo
  } >"$job/command.sh"
  for path in "$PWD" "$root" "$build" "$build_root" "$(dirname "$(realpath -m "$1")")"; do
    case $path in /tmp/* | /run/*) if [[ -d $path ]]; then echo "$path"; fi ;; esac
  done | sort -u >"$job/directories"
}

# start_machine NAME RESULTS OPTION...: starts a machine on the job $work/NAME.job with further options of qemu, and
# leaves what it says in $work/NAME.*; its process is $started.
start_machine() {
  local name=$work/$1 results=$2
  shift 2
  : >"$name.output"
  timeout --foreground -k 10 "$timeout" qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
    -accel tcg,thread=multi -cpu max -pidfile "$name.pid" \
    -kernel "$kernel/vmlinuz" -initrd "$kernel/initramfs" \
    -append 'console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init' -serial "file:$name.console" \
    -device virtio-serial-pci -chardev "file,id=output,path=$name.output" -device virtserialport,chardev=output,nr=1 \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=job,path=$name.job,security_model=none,multidevs=remap" \
    -device virtio-9p-pci,fsdev=job,mount_tag=job \
    -fsdev "local,id=results,path=$results,security_model=none,multidevs=remap" \
    -device virtio-9p-pci,fsdev=results,mount_tag=results "$@" </dev/null >"$name.qemu" 2>&1 &
  started=$!
}

# The second machine, and the wire to it. Its power goes when the first one asks for that.
start_peer() {
  local tries
  write_job "$work/peer.job" 2 bash -c "$peer"
  mkdir "$work/peer.results"
  for ((tries = 0; tries < 100; ++tries)); do
    if [[ -S $work/wire ]]; then break; fi
    sleep 0.1
  done
  start_machine peer "$work/peer.results" -smp 1 -m 1G -device virtio-net-pci,netdev=wire,mac=52:54:00:00:00:02 \
    -netdev "stream,id=wire,server=off,addr.type=unix,addr.path=$work/wire"
  peer_machine=$started
  {
    while [[ ! -e $results/cut-power ]]; do sleep 0.1; done
    # As sudden as pulling the plug: qemu asks nobody in there.
    kill -TERM "$(cat "$work/peer.pid")"
  } &
  watcher=$!
}

# What there is to know of the machine $1 that did not come to its end.
tell_of() {
  sed "s/^/softroce: $1: qemu: /" "$work/$1.qemu"
  # The kernel is quiet unless something is wrong, and the first complaint tells most.
  head -n 40 "$work/$1.console" 2>/dev/null | tr -d '\r' | sed "s/^/softroce: $1: kernel: /"
}

prepare_kernel
if [[ -n $results ]]; then
  mkdir -p "$results"
  results=$(realpath "$results")
else
  results=$work/results
  mkdir "$results"
fi
rm -f "$results/cut-power"
write_job "$work/machine.job" 1 "${command[@]}"
options=(-smp 2 -m 4G)
if ((numa)); then
  # shellcheck disable=SC2054
  options+=(-object memory-backend-ram,id=m0,size=2G -object memory-backend-ram,id=m1,size=2G
    -numa node,cpus=0,memdev=m0 -numa node,cpus=1,memdev=m1)
fi
if [[ -n $peer ]]; then
  # shellcheck disable=SC2054
  options=(-smp 1 -m 1G -device virtio-net-pci,netdev=wire,mac=52:54:00:00:00:01
    -netdev "stream,id=wire,server=on,addr.type=unix,addr.path=$work/wire")
fi
start_machine machine "$results" "${options[@]}"
machine=$started
if [[ -n $peer ]]; then start_peer; fi
tail -n +1 -s 0.1 -f --pid="$machine" "$work/machine.output" &
follower=$!
code=0 begin=$SECONDS
wait "$machine" || code=$?
machine=0
wait "$follower" || true
follower=0

status=$(cat "$work/machine.job/status" 2>/dev/null || true)
if [[ -n $peer && $status != 0 ]]; then
  tell_of peer >&2
  tail -n 40 "$work/peer.output" | sed 's/^/softroce: peer: /' >&2
fi
if [[ $status =~ ^[0-9]+$ ]]; then exit "$status"; fi
tell_of machine >&2
last=$(tail -n 1 "$work/machine.output")
if ((code != 0 && SECONDS - begin >= timeout)); then
  say "killed after $timeout s; the last line was: ${last:-(none)}"
  exit 124
fi
say "the machine ended (qemu: $code) before the command did; the last line was: ${last:-(none)}"
exit 125
