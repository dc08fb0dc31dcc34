#!/bin/bash
# Runs a container beside Flux: prepares its environment, then runs its command until it ends, or until the container
# that runs Flux has ended.
#@settings
#@strict
#@signals
#@init
#@environment
#@servicePre
#@pre
#@socket
#@script
if [[ -n $_terminating ]]; then exit 143; fi
(
    trap - TERM
    :
    #@command
    #@post
) <&0 &
_main=$!
_over=
while kill -0 "$_main" 2>/dev/null; do
    if [[ -e $_complete ]]; then _over=1; fi
    if [[ -n $_over || -n $_terminating ]]; then
        for pid in $(cat "/proc/$_main/task/$_main/children" 2>/dev/null || true) "$_main"; do _signal "$pid"; done
        break
    fi
    _pause 1
done
_status=0
wait "$_main" || _status=$?
if [[ -n $_terminating ]]; then exit 143; fi
if [[ -n $_over ]]; then exit 0; fi
exit "$_status"
