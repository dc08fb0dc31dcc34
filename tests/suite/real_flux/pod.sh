# Makes a pod without a kubelet, inside of a world: pod.sh STAGE ...
set -eu
case $1 in
attach) # attach NETNS BRIDGE ADDRESS ROUTER: a network namespace with eth0, behind a port of the bridge
  ip netns add "$2"
  ip link add "v$2" type veth peer name eth0 netns "$2"
  ip link set "v$2" master "$3" up
  # Otherwise, nobody can listen at an IPv6 address for a second.
  case $4 in *:*) nodad=nodad ;; *) nodad= ;; esac
  ip -n "$2" addr add "$4" dev eth0 $nodad
  ip -n "$2" link set eth0 up
  ip -n "$2" link set lo up
  ip -n "$2" route add default via "$5"
  ;;
start) # start SCRIPT NETNS LOG ARGUMENTS of boot: becomes the process whose other namespaces are the pod's; boot ends the
  # line that says which it is
  exec 3>&1
  printf %s $$ >&3
  script=$2 netns=$3
  exec > "$4" 2>&1
  shift 4
  exec nsenter --net="/run/netns/$netns" unshare --mount --uts --pid --fork --kill-child bash "$script" boot "$@"
  ;;
boot) # boot ROOT OPT HOST [SOURCE TARGET]... -- COMMAND...: process 1 of the pod
  root=$2 opt=$3 host=$4
  shift 4
  mount -t tmpfs pod "$root"
  mkdir -p "$root/etc" "$root/proc" "$root/dev" "$root/sys" "$root/tmp" "$root/run" "$root/var/tmp" "$root/root" "$root/opt" "$root/.host"
  chmod 1777 "$root/tmp" "$root/var/tmp"
  for d in bin sbin lib lib32 lib64 libx32 usr; do
    if [ -L "/$d" ]; then
      cp -P "/$d" "$root/$d"
    elif [ -d "/$d" ]; then
      mkdir "$root/$d"
      mount --rbind "/$d" "$root/$d"
      mount -o remount,bind,ro "$root/$d"
    fi
  done
  for f in passwd group nsswitch.conf ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime; do
    [ ! -e "/etc/$f" ] || cp -r --preserve=links "/etc/$f" "$root/etc/"
  done
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  mount -t proc proc "$root/proc"
  for d in "$opt"/*; do
    mkdir "$root/opt/${d##*/}"
    mount --rbind "$d" "$root/opt/${d##*/}"
  done
  while [ "$1" != -- ]; do
    if [ -d "$1" ]; then
      mkdir -p "$root$2"
    else
      mkdir -p "$root${2%/*}"
      touch "$root$2"
    fi
    mount --bind "$1" "$root$2"
    shift 2
  done
  shift
  echo "$host" > /proc/sys/kernel/hostname
  cd "$root"
  pivot_root . .host
  cd /
  umount -l /.host
  rmdir /.host
  echo >&3
  exec 3>&-
  exec "$@"
  ;;
esac
