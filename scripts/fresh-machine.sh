#!/usr/bin/env bash
# Runs the README's commands on a machine with nothing but its base system: a Debian made by debootstrap, in a chroot.
# usage: scripts/fresh-machine.sh [--root DIR] [--suite NAME] [--user] [--] [COMMAND...]
#   --root DIR    the chroot (default /var/tmp/verbena-fresh); made when it is not there, kept for the next run
#   --suite NAME  Debian's suite (default bookworm)
#   --user        run COMMAND as an ordinary user, without sudo (packages must be there by then)
#   COMMAND       run in a fresh clone of HEAD (default: scripts/demo.sh, then scripts/test.sh)
# Needs root, debootstrap and git here; git is not needed in there. VERBENA_MIRROR names another mirror.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=/var/tmp/verbena-fresh
suite=bookworm
user=root
while (($#)); do
  case $1 in
    --root) root=${2:?--root needs a directory}; shift ;;
    --suite) suite=${2:?--suite needs a name}; shift ;;
    --user) user=tester ;;
    -h | --help) sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; break ;;
    -*) sed -n '3s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
[[ $(id -u) == 0 ]] || { echo 'fresh-machine: needs root, for chroot and mount' >&2; exit 3; }
for tool in debootstrap git; do
  command -v "$tool" >/dev/null || { echo "fresh-machine: install $tool: apt-get install $tool" >&2; exit 3; }
done

mirror=${VERBENA_MIRROR:-http://deb.debian.org/debian}
# debootstrap leaves its own directory in there when it did not get to its end.
if [[ ! -x $root/usr/bin/apt-get || -d $root/debootstrap ]]; then
  echo "fresh-machine: debootstrap --variant=minbase $suite $root"
  debootstrap --variant=minbase "$suite" "$root" "$mirror"
fi
if [[ ! -f $root/etc/verbena-fresh ]]; then
  if [[ $suite == bookworm ]]; then
    # As an installed system has it; Clang 19 came with an update.
    {
      echo "deb $mirror $suite main"
      echo "deb $mirror $suite-updates main"
      echo "deb ${mirror%/debian}/debian-security $suite-security main"
    } >"$root/etc/apt/sources.list"
  fi
  chroot "$root" useradd --create-home tester
  touch "$root/etc/verbena-fresh"
fi

mounted=()
unmount() {
  local i
  # Last mounted first. Only what this run mounted: another run may share the directory.
  for ((i = ${#mounted[@]} - 1; i >= 0; --i)); do
    umount -l "${mounted[i]}" || true
  done
}
trap unmount EXIT
add_mount() {
  mountpoint -q "$root/${!#}" && return 0
  mkdir -p "$root/${!#}"
  mount "${@:1:$#-1}" "$root/${!#}"
  mounted+=("$root/${!#}")
}
add_mount -t proc proc proc
add_mount -t sysfs -o ro sysfs sys
add_mount --bind /dev dev
add_mount --bind /dev/pts dev/pts
add_mount -t tmpfs tmpfs dev/shm
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/hosts "$root/etc/hosts"

# HEAD as a fresh clone has it, and nothing of this working tree.
work=home/tester/verbena
rm -rf "${root:?}/$work"
git clone -q --no-hardlinks . "$root/$work"
rm -rf "$root/$work/.git"
chroot "$root" chown -R tester:tester "/$work"

inside() {
  echo "fresh-machine: as $user: $*"
  if [[ $user == root ]]; then
    chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
      bash -c 'cd "/$0" && "$@"' "$work" "$@"
  else
    chroot --userspec=tester:tester "$root" env -i HOME=/home/tester PATH=/usr/bin:/bin TERM=dumb \
      bash -c 'cd "/$0" && "$@"' "$work" "$@"
  fi </dev/null
}
if (($#)); then
  inside "$@"
else
  inside scripts/demo.sh
  inside scripts/test.sh
fi
