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
_patience=
# What it started is told as well: a shell passes no signal on.
_tell() {
    local pid children
    children=$(cat "/proc/$_main/task/$_main/children" 2>/dev/null || true)
    for pid in "$_main" $children; do kill "-$1" "$pid" 2>/dev/null || true; done
}
while kill -0 "$_main" 2>/dev/null; do
    if [[ -e $_complete ]]; then _over=1; fi
    if [[ -z $_over && -z $_terminating ]]; then
        _pause 1
        continue
    fi
    if [[ -z $_patience ]]; then
        _patience=$((SECONDS + 5))
        _tell TERM
    elif ((SECONDS >= _patience)); then
        _tell KILL
    fi
    sleep 0.1
done
_status=0
wait "$_main" || _status=$?
if [[ -n $_terminating ]]; then exit 143; fi
if [[ -n $_over ]]; then exit 0; fi
exit "$_status"
