_leaving="tributary: $HOSTNAME is leaving"

# Asks until there is an answer, whichever, and leaves it in `_said`: a node that jobs keep busy, or a lead that many ask,
# may need more than one attempt.
_answer() {
    local end=$((SECONDS + 15)) status left _patience
    end=$((end < deadline ? end : deadline))
    while :; do
        status=0 left=$((deadline - SECONDS))
        _patience=$((left > 5 ? 5 : left > 1 ? left : 1))
        _said=$(_flux "$@") || status=$?
        # 124: it took too long.
        if ((status != 124 || SECONDS >= end)) || ! kill -0 "$_child" 2>/dev/null; then return "$status"; fi
    done
}

# Lets no more jobs start on this broker, nor on those that reach the instance through it, and waits until none runs there
# or the time is up. Who cannot be asked is not waited for: then the instance has ended, or it is out of reach.
_leave() {
    local deadline=$((SECONDS + _drain_seconds)) rank line ranks='' _said
    if ! _socket || ! _answer uptime || ! _runs "$_said" || ! rank=$(_flux getattr rank); then
        _insist "$_child" &
        return 0
    fi
    # A rank that has just come may be about to take jobs again, which would undo what follows: unless its instance ends now.
    while kill -0 "$_returning" 2>/dev/null && kill -0 "$_child" 2>/dev/null && ((SECONDS < deadline)); do sleep 1; done
    while read -r line; do
        if [[ $line =~ ^[^0-9]*([0-9]+)\ [^:]+:\ (full|partial|degraded) ]]; then ranks+=,${BASH_REMATCH[1]}; fi
    done < <(_flux overlay status "--rank=$rank" || true)
    ranks=${ranks#,}
    ranks=${ranks:-$rank}
    _answer resource drain --update "$ranks" "$_leaving" || return 0
    _say "Leaving: no more jobs start on rank $ranks, and those that run have $_drain_seconds s."
    while ((SECONDS < deadline)) && kill -0 "$_child" 2>/dev/null; do
        _answer resource drain -n -o '{state}' -i "$ranks" || break
        if [[ $_said != *draining* ]]; then break; fi
        sleep 1
    done
}

# A broker that is just loading its modules drops a signal: it is told again until it has ended, or joined and heard it.
_insist() {
    local heard=
    trap - TERM
    while [[ -z $heard ]] && sleep 2 && kill -0 "$1" 2>/dev/null; do
        if _joined; then heard=1; fi
        _signal "$1"
    done
}

# A rank that has left takes jobs again when it is back. What others have drained stays so.
_return() {
    local rank reason began=$SECONDS
    until _joined; do
        # A job may wait for this rank. One that takes long asks its lead less often.
        sleep $((SECONDS - began > 15 ? 2 : 0)).3
        if ! kill -0 $$; then return 0; fi
    done
    if [[ $_uptime != *drained* ]] || ! rank=$(_flux getattr rank); then return 0; fi
    reason=$(_flux resource drain -n -o '{reason}' -i "$rank") || return 0
    if [[ $reason == "tributary: "* ]]; then _flux resource undrain "$rank" || true; fi
}
