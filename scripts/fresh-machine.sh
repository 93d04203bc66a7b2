#!/usr/bin/env bash
# Runs the README's commands on a machine with nothing but its base system: a Debian made by debootstrap, in a chroot.
# usage: scripts/fresh-machine.sh [--root DIR] [--suite NAME] [--keep] [--user] [--] [COMMAND...]
#   --root DIR    the chroot (default /var/tmp/verbena-fresh-NAME); each run makes it anew from DIR.base.tar, which the
#                 first one makes: packages of an earlier run would hide what is missing
#   --suite NAME  Debian's suite (default bookworm)
#   --keep        go on in the chroot as the last run left it
#   --user        run COMMAND as an ordinary user, without sudo (packages must be there by then: with --keep)
#   COMMAND       run in a fresh clone of HEAD (default: scripts/demo.sh, then scripts/test.sh)
# Needs root, debootstrap and git here; git is not needed in there. VERBENA_MIRROR names another mirror, VERBENA_CACHE
# the compilers' cache that the chroot shares (scripts/cache.sh; default: it has none).
# Ends as COMMAND did, with 2 for wrong usage, 77 and a reason when this machine cannot have such a chroot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=
suite=bookworm
user=root
keep=0
while (($#)); do
  case $1 in
    --root) root=${2:?--root needs a directory}; shift ;;
    --suite) suite=${2:?--suite needs a name}; shift ;;
    --keep) keep=1 ;;
    --user) user=tester ;;
    -h | --help) sed -n '2,13s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; break ;;
    -*) sed -n '3s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
skip() { echo "fresh-machine: skipped: $*"; exit 77; }
[[ $(id -u) == 0 ]] || skip 'it takes root, for chroot and mount'
unshare --mount true 2>/dev/null || skip 'this user may not mount'
# shellcheck source=scripts/packages.sh
source scripts/packages.sh
install_packages fresh >&2 || skip 'its packages are not all there'

root=${root:-/var/tmp/verbena-fresh-$suite}
base=$root.base.tar
mirror=${VERBENA_MIRROR:-http://deb.debian.org/debian}

# A chroot whose mounts are still there may be in use, and through them deleting would reach this machine's /dev.
delete_root() {
  if grep -q " $root/" /proc/self/mounts; then
    echo "fresh-machine: something is mounted below $root: another run uses it, or one that was killed left it." >&2
    echo "fresh-machine: unmount it, or name another directory with --root" >&2
    exit 77
  fi
  rm -rf --one-file-system "${root:?}"
}

# The base system alone, as a tarball that no run changes.
make_base() {
  delete_root
  echo "fresh-machine: debootstrap --variant=minbase $suite $root"
  debootstrap --variant=minbase "$suite" "$root" "$mirror" || skip "debootstrap ended with $?; is $mirror reachable?"
  if [[ $suite == bookworm ]]; then
    # As an installed system has it; Clang 19 came with an update.
    {
      echo "deb $mirror $suite main"
      echo "deb $mirror $suite-updates main"
      echo "deb ${mirror%/debian}/debian-security $suite-security main"
    } >"$root/etc/apt/sources.list"
  fi
  chroot "$root" useradd --create-home tester
  # Whole or not at all: a run that is killed leaves no half of it under this name.
  tar -C "$root" --numeric-owner --xattrs -cf "$base.part" .
  mv "$base.part" "$base"
}

[[ -f $base ]] || make_base
if ((!keep)) || [[ ! -x $root/usr/bin/apt-get ]]; then
  delete_root
  mkdir -p "$root"
  tar -C "$root" --numeric-owner --xattrs -xpf "$base"
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
  mount "${@:1:$#-1}" "$root/${!#}" || skip "mounting ${!#} is not possible here"
  mounted+=("$root/${!#}")
}
add_mount -t proc proc proc
add_mount -t sysfs -o ro sysfs sys
add_mount --bind /dev dev
add_mount --bind /dev/pts dev/pts
add_mount -t tmpfs tmpfs dev/shm
if [[ -d ${VERBENA_CACHE:-} ]]; then add_mount --bind "$VERBENA_CACHE" root/.cache/verbena; fi
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
    chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb VERBENA_FRESH=1 \
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
