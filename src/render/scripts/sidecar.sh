#!/bin/bash
# Runs a container beside Flux: prepares its environment and runs its command, anew while that fails. It is a sidecar of
# Kubernetes, which tells it to end when the container that runs Flux has ended for good.
#@settings
#@strict
#@signals
# Servers know these as the signal that ends them.
trap _terminate INT QUIT
# A shell passes no signal on, and ends itself when what it started has ended.
_tell() {
    local pid children
    children=$(cat "/proc/$_main/task/$_main/children" 2>/dev/null || true)
    for pid in $children "$_main"; do kill "-$1" "$pid" 2>/dev/null || true; done
}

# Waits until `_main` has ended, and leaves its exit code in `_status`. From SIGTERM on it may take so many seconds; then it
# is told to end, and is killed after 5 s.
_attend() {
    local end='' killed=''
    while kill -0 "$_main" 2>/dev/null; do
        if [[ -z $_terminating ]]; then
            _pause 1
            continue
        fi
        end=${end:-$((SECONDS + $1))}
        if [[ -z $killed ]] && ((SECONDS >= end)); then
            killed=$((SECONDS + 5))
            _tell TERM
        elif [[ -n $killed ]] && ((SECONDS >= killed)); then
            _tell KILL
        fi
        sleep 0.1
    done
    _await "$_main"
}

#@open
_delay=1
while [[ -z $_terminating ]]; do
    (
        trap 'wait; exit 143' TERM
        #@init
        #@environment
        #@servicePre
        #@pre
        #@socket
        #@script
        #@keep
        #@command
    ) <&0 &
    _main=$!
    _attend 0
    if [[ $_status == 0 || -n $_terminating ]]; then break; fi
    printf >&2 'Container %s ended with %s and is started again in %s s.\n' "$_name" "$_status" "$_delay"
    _pause "$_delay"
    _delay=$((_delay < 32 ? _delay * 2 : 60))
done
# The pod is stopped: nothing has ended that something comes after.
if [[ -n $_terminating && ! -e $viewbase/flux-operator-complete.txt ]]; then exit 143; fi
(
    trap 'wait; exit 143' TERM
    :
    #@kept
    #@post
) <&0 &
_main=$!
_attend 60
# It would be started again.
while [[ -z $_terminating ]]; do _pause 60; done
exit 0
