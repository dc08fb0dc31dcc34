#!/bin/bash
# Runs a container beside Flux: prepares its environment and runs its command, anew while that fails, until the container
# that runs Flux has ended. It does not fail itself: how the pod ends is up to Flux alone.
#@settings
#@strict
#@signals
# A shell passes no signal on, and ends itself when what it started has ended.
_tell() {
    local pid children
    children=$(cat "/proc/$_main/task/$_main/children" 2>/dev/null || true)
    for pid in $children "$_main"; do kill "-$1" "$pid" 2>/dev/null || true; done
}

# Whether Flux has ended. A container that was killed, for want of memory for example, leaves no word: then its sign of
# life is missed, at so many looks.
_missed=0
_beat=
_is_over() {
    if [[ -e $_complete ]]; then return 0; fi
    local beat=''
    read -r beat 2>/dev/null <"$viewbase/.alive" || true
    if [[ ! -e $viewbase/.alive || $beat != "$_beat" ]]; then
        _beat=$beat
        _missed=0
    fi
    ((_missed++ >= 90))
}

# Waits until `_main` has ended, and leaves its exit code in `_status`. Once Flux has ended it may take so many seconds;
# then it is told to end, and is killed after 5 s. When the pod goes, Flux goes first if there is time for that: its jobs may
# need what runs here.
_attend() {
    local end='' killed='' last=''
    while kill -0 "$_main" 2>/dev/null; do
        if [[ -n $_terminating && -z $last ]]; then last=$((SECONDS + _for_flux)); fi
        if [[ -z $end ]] && { _is_over || [[ -n $last && (! -e $viewbase/.alive || $SECONDS -ge $last) ]]; }; then
            end=$((SECONDS + $1))
        fi
        if [[ -n $_terminating && -n $end && -z $killed ]]; then end=$SECONDS; fi
        if [[ -z $end ]]; then
            if [[ -n $_terminating ]]; then sleep 0.2; else _pause 1; fi
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
    if [[ $_status == 0 || -n $_terminating ]] || _is_over; then break; fi
    printf >&2 'Container %s ended with %s and is started again in %s s.\n' "$_name" "$_status" "$_delay"
    for ((_left = _delay; _left > 0; _left--)); do
        if _is_over; then break 2; fi
        _pause 1
    done
    _delay=$((_delay < 32 ? _delay * 2 : 60))
done
if [[ -n $_terminating ]]; then exit 143; fi
(
    trap 'wait; exit 143' TERM
    :
    #@kept
    #@post
) <&0 &
_main=$!
_attend 60
# A container that has ended keeps its pod from being ready, though Flux runs on.
until [[ -n $_terminating ]] || _is_over; do _pause 1; done
exit 0
