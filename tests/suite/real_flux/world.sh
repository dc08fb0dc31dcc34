# Init of a test's world: the first process of its namespaces. world.sh BRIDGE...
# Bridge number n has the address 10.n.0.1/24. Nothing is forwarded between bridges: only a process of the world that
# listens on one and connects to another joins them.
set -eu
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
# The test holds the other end. However it ends, this reads the end of the file; and with the first process of a pid
# namespace the kernel ends all others.
while read -r _; do :; done
