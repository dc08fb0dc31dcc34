#!/bin/bash
# Ready is a broker that has joined its instance. Its socket is there before that, so the broker itself is asked.
#@settings
for socket in "$viewbase"/config/run/flux/local*; do
    if [[ ! -S $socket ]]; then continue; fi
    # Such as " 05:12:30 run 3.5m,  owner flux,  depth 0,  size 4".
    uptime=$(FLUX_URI=local://$socket flux uptime 2>/dev/null) || continue
    if [[ $uptime =~ ^\ *[^\ ]+\ run\  ]]; then exit 0; fi
done
exit 1
