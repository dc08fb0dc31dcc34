#!/bin/bash
# Brings Flux and its configuration to the volume that all containers of the pod share. Safe to run again: files are
# replaced, never added to.
#@settings
set -euo pipefail

viewroot=$viewbase/view
configroot=$viewbase/config
rm -f "$viewbase/flux-operator-complete.txt"

# The broker's user may be another one than ours, and it must own its run and state directories.
(umask 000 && mkdir -p "$configroot"/etc/flux/system/cron.d "$configroot"/etc/flux/config "$configroot"/etc/curve \
    "$configroot"/curve "$configroot"/run "$configroot"/var/lib)

place() {
    cp -f "/flux_operator/$1" "$2.new"
    chmod 0644 "$2.new"
    mv -f "$2.new" "$2"
}
place hostlist "$configroot/etc/flux/system/hostlist"
place R "$configroot/etc/flux/system/R"
place broker.toml "$configroot/etc/flux/config/broker.toml"
#@ipv6
echo "broker.toml:"
cat "$configroot/etc/flux/config/broker.toml"

if [[ ! -e $viewbase/flux-operator-done.txt ]]; then
    mkdir -p "$viewroot" "$viewbase/software"
    #@view
fi
touch "$viewbase/flux-operator-done.txt"
