# Init of a test's world: the first process of its namespaces. world.sh DIRECTORY BRIDGE...
# Bridge number n has the address 10.n.0.1/24. Nothing is forwarded between bridges: only a process of the world that
# listens on one and connects to another joins them.
set -eu
directory=$1
shift
mount -t proc proc /proc
mount -t tmpfs run /run
mkdir /run/netns
echo 0 > /proc/sys/net/ipv4/ip_forward
ip link set lo up
n=0
for bridge in "$@"; do
  n=$((n + 1))
  ip link add "$bridge" type bridge
  ip addr add "10.$n.0.1/24" dev "$bridge"
  ip link set "$bridge" up
done
echo ready
# The test holds the other end. However it ends, this reads the end of the file, and ends all other processes of the
# namespace; if this process is killed, the kernel does.
while read -r _; do :; done
kill -KILL -1 2> /dev/null || true
rm -rf -- "$directory"
