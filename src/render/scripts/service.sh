#!/bin/sh
# Runs the command of a container of spec.services. Such images need not have bash.
#@settings
#@strict
terminating=
child=
terminate() {
    terminating=1
    if [ -n "$child" ]; then
        for pid in $(cat "/proc/$child/task/$child/children" 2>/dev/null || true) "$child"; do
            kill -TERM "$pid" 2>/dev/null || true
        done
    fi
}
# Images name other signals, too: see signals.sh.
trap terminate TERM INT QUIT USR1
#@init
#@servicePre
#@script
if [ -n "$terminating" ]; then exit 143; fi
(
    trap 'wait; exit 143' TERM
    :
    #@command
    #@kept
    #@post
    #@ended
) <&0 &
child=$!
if [ -n "$terminating" ]; then terminate; fi
while :; do
    status=0
    wait "$child" || status=$?
    if ! kill -0 "$child" 2>/dev/null; then break; fi
done
if [ -n "$terminating" ]; then exit 143; fi
exit "$status"
