#!/bin/bash
# Shows what there is to know about this instance, and stays for people who look around.
#@settings
show() {
    printf '\n== %s\n' "$*"
    timeout 60 "$@" 2>&1 || echo "(ended with $?)"
}
if [[ ${1:-} == before ]]; then
    show id
    show cat "$viewbase/config/etc/flux/system/hostlist" "$viewbase/config/etc/flux/config/broker.toml"
    show cat /etc/hosts /etc/resolv.conf
    show ls -l "$viewbase/config/curve"
    exit 0
fi
# Brokers that are missing after this time are what one wants to see.
timeout 60 flux overlay status --wait=full --timeout=30s >/dev/null 2>&1 || true
show flux overlay status
show flux version
show flux uptime
show flux resource list
show flux resource status
show flux module list
show flux config get
show flux jobs -a
show flux dmesg
printf '\n== The diagnostics are done: this instance stays up.\n'
exec sleep infinity
