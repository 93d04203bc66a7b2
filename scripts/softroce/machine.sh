# shellcheck shell=bash
# Process 1 of the machine of scripts/softroce.sh, on the host's files: sets Soft-RoCE up, runs /job/command.sh and
# leaves its status in /job/status. What goes wrong before the command is said on the console.
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
export VERBENA_RESULTS=/results

ln -sfn /proc/self/fd /dev/fd
ln -sfn /proc/self/fd/0 /dev/stdin
ln -sfn /proc/self/fd/1 /dev/stdout
ln -sfn /proc/self/fd/2 /dev/stderr
mkdir -p /dev/shm /dev/pts /dev/hugepages
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t hugetlbfs hugetlbfs /dev/hugepages
# 64 MiB a node.
for pages in /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages; do echo 32 >"$pages"; done

echo softroce >/proc/sys/kernel/hostname
ip link set lo up
# With a second machine there is a wire to it.
netdev=eth0
if [[ ! -e /sys/class/net/eth0 ]]; then
  netdev=d0
  ip link add d0 type dummy
fi
ip addr add "10.0.0.$(cat /job/number)/24" dev "$netdev"
ip link set "$netdev" up
rdma link add rxe0 type rxe netdev "$netdev"

ulimit -l unlimited
ulimit -n 65536
# The port can be opened once, and a command may open /dev/stderr: a pipe it is for the command.
exec {output}> >(exec cat >/dev/vport0p1)
copier=$!
status=0
bash /job/command.sh <&- </dev/null >&"$output" 2>&1 {output}>&- || status=$?
exec {output}>&-
# A process that the command left behind may hold the pipe: what it prints from here on is not waited for.
timeout 2 tail -s 0.1 -f --pid="$copier" /dev/null || true
# The write is answered by the loop of qemu that also takes the output, in this order.
echo "$status" >/job/status
sync
busybox poweroff -f
