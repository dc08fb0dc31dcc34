
# Seconds without a sign of the instance after which a broker is started again whose parent was not cut off.
_silence=15
# The same of a broker that has not had one yet.
_joining=60
# Seconds in which a broker finds a parent again by itself that was cut off: its connection is held, and its jobs.
_grace=5

# ZeroMQ learns that a connection is dead only from whoever answers its packets. If nobody does, the broker keeps its
# socket, and waits as long as it lives.

# Whether a broker answers at an endpoint such as tcp://lake-0.lake:8050: it greets every new connection at once (0xff
# first, by ZMTP). That the connection is accepted proves nothing: agents accept it for a lead that is cut off.
_greets() {
    if [[ ! $1 =~ ^tcp://\[?([^]]+)\]?:([0-9]+)$ ]]; then return 1; fi
    LC_ALL=C timeout 3 "$BASH" -c 'exec 3<>"/dev/tcp/$0/$1" && read -r -N1 -u3 byte && [[ $byte == $'"'\xff'"' ]]' \
        "${BASH_REMATCH[@]:1}" >/dev/null 2>&1
}

# The same endpoint with an address in place of the name.
_by_address() {
    if [[ ! $1 =~ ^tcp://([^]]+):([0-9]+)$ ]]; then return 0; fi
    local address
    if read -r address _ < <(timeout 3 getent ahosts "${BASH_REMATCH[1]}" 2>/dev/null); then
        printf 'tcp://[%s]:%s' "$address" "${BASH_REMATCH[2]}"
    fi
}

# Ends the broker of process `$1`, to be started again, when its parent greets others and it has heard nothing for a time.
# A heartbeat of the instance is a sign, and so is an answer of the parent, which may itself be cut off from the lead.
_listen() {
    local beat last='' parent='' address='' greets='' nap=2 since=$SECONDS limit grace retry=0 cut signal
    # A broker that never had one may be joining slowly: it gets more time, and more whenever it is started again.
    limit=$((_joining * _delay)) grace=$limit
    rm -f "$viewbase/.heard"
    while sleep "$nap" && kill -0 "$1" 2>/dev/null; do
        nap=1
        if ! _socket || { [[ -z $parent ]] && ! parent=$(_flux getattr tbon.parent-endpoint); }; then
            since=$SECONDS
            continue
        fi
        beat=$(_flux module stats --parse=count heartbeat) || beat=
        if [[ -n $beat && $beat != "$last" ]] || _patience=2 _flux ping --count=1 upstream >/dev/null; then
            last=$beat greets='' nap=2 since=$SECONDS limit=$_silence grace=$_grace retry=${_retry:-0}
            touch "$viewbase/.heard" || true
            # Now, since the DNS may be lost when it is needed.
            if [[ -z $address ]]; then address=$(_by_address "$parent"); fi
        elif ! _greets "$address" && ! _greets "$parent"; then
            greets=''
        else
            cut=$((${greets:=$SECONDS} - since))
            cut=$((cut < retry ? cut : retry))
            if ((SECONDS - since >= limit && SECONDS - greets >= grace + cut)); then break; fi
        fi
    done
    if ! kill -0 "$1" 2>/dev/null; then return 0; fi
    _say "The broker has heard nothing for $((SECONDS - since)) s, and $parent answers others: it is started again."
    # As Flux itself does after minutes: the broker ends in order, and those that are connected through it.
    _flux python -c 'import flux
flux.Flux().rpc("overlay.disconnect-parent", {"reason": "it answers others"}, flags=flux.constants.FLUX_RPC_NORESPONSE)' || true
    for signal in TERM KILL; do
        for _ in {1..12}; do
            if ! kill -0 "$1" 2>/dev/null; then return 0; fi
            sleep 0.5
        done
        kill "-$signal" "$1" 2>/dev/null || true
    done
}
