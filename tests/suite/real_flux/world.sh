# Init of a test's world: the first process of its namespaces. world.sh DIRECTORY ADDRESS...
# Bridge number n, `brN`, has the n-th address. Nothing is forwarded between bridges: only a process of the world that
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
for address in "$@"; do
  n=$((n + 1))
  ip link add "br$n" type bridge
  case $address in *:*) nodad=nodad ;; *) nodad= ;; esac
  ip addr add "$address" dev "br$n" $nodad
  ip link set "br$n" up
done
echo ready
# The test holds the other end. However it ends, this reads the end of the file, and ends all other processes of the
# namespace; if this process is killed, the kernel does.
while read -r _; do :; done
kill -KILL -1 2> /dev/null || true
rm -rf -- "$directory"
