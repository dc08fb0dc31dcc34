#!/bin/bash
# Runs a container beside Flux: prepares its environment and runs its command, anew while that fails, until the container
# that runs Flux has ended. It does not fail itself: how the pod ends is up to Flux alone.
#@settings
#@strict
#@signals
# What it started is told as well: a shell passes no signal on.
_tell() {
    local pid children
    children=$(cat "/proc/$_main/task/$_main/children" 2>/dev/null || true)
    for pid in "$_main" $children; do kill "-$1" "$pid" 2>/dev/null || true; done
}

# Waits until `_main` has ended, and leaves its exit code in `_status`. Once Flux has ended it may take so many seconds;
# then, or when the pod goes, it is told to end, and is killed after 5 s.
_attend() {
    local end='' killed=''
    while kill -0 "$_main" 2>/dev/null; do
        if [[ -e $_complete && -z $end ]]; then end=$((SECONDS + $1)); fi
        if [[ -n $_terminating && -z $killed ]]; then end=$SECONDS; fi
        if [[ -z $end ]]; then
            _pause 1
            continue
        fi
        if [[ -z $killed ]] && ((SECONDS >= end)); then
            killed=$((SECONDS + 5))
            _tell TERM
        elif [[ -n $killed ]] && ((SECONDS >= killed)); then
            _tell KILL
        fi
        sleep 0.1
    done
    _status=0
    wait "$_main" || _status=$?
}

_delay=1
while [[ -z $_terminating ]]; do
    (
        trap - TERM
        #@init
        #@environment
        #@servicePre
        #@pre
        #@socket
        #@script
        #@command
    ) <&0 &
    _main=$!
    _attend 0
    if [[ $_status == 0 || -e $_complete || -n $_terminating ]]; then break; fi
    printf >&2 'Container %s ended with %s and is started again in %s s.\n' "$_name" "$_status" "$_delay"
    for ((_left = _delay; _left > 0; _left--)); do
        if [[ -e $_complete ]]; then break 2; fi
        _pause 1
    done
    _delay=$((_delay < 32 ? _delay * 2 : 60))
done
if [[ -n $_terminating ]]; then exit 143; fi
(
    trap - TERM
    :
    #@post
) <&0 &
_main=$!
_attend 60
# A container that has ended keeps its pod from being ready, though Flux runs on.
until [[ -e $_complete || -n $_terminating ]]; do _pause 1; done
exit 0
