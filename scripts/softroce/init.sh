#!/bin/busybox sh
# shellcheck shell=dash
# Process 1 of the initramfs of scripts/softroce.sh: makes a root of the host's files and goes there. The root is a
# tmpfs with each top directory of the host bound into it, so that /results and the like can be made; /tmp, /run and
# the kernel's own are the machine's.
bb=/bin/busybox
$bb mkdir -p /proc /sys /dev /host /job /new
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do $bb insmod "/modules/$module"; done </modules/order
options=trans=virtio,version=9p2000.L,msize=512000
# Nobody writes what is read-only here while the machine runs, or a stale page is theirs; the others are not cached.
$bb mount -t 9p -o $options,cache=loose,ro host /host
$bb mount -t 9p -o $options,cache=none job /job

$bb mount -t tmpfs -o mode=755 tmpfs /new
for path in /host/*; do
  name=${path#/host/}
  case $name in dev | proc | sys | tmp | run | job | results) continue ;; esac
  if [ -h "$path" ]; then
    $bb cp -d "$path" "/new/$name"
  elif [ -d "$path" ]; then
    $bb mkdir "/new/$name"
    $bb mount --bind "$path" "/new/$name"
  fi
done
for name in dev proc sys tmp run job results; do $bb mkdir "/new/$name"; done
$bb mount -t tmpfs -o mode=1777 tmpfs /new/tmp
$bb mount -t tmpfs -o mode=755 tmpfs /new/run
while read -r path; do
  $bb mkdir -p "/new$path"
  $bb mount --bind "/host$path" "/new$path"
done </job/directories
$bb mount -t 9p -o $options,cache=none results /new/results
for name in dev proc sys job; do $bb mount --move /$name /new/$name; done
exec $bb switch_root /new /bin/bash /job/machine.sh
