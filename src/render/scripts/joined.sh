# Asks Flux through the socket of this pod's broker.
_flux() { FLUX_URI=$_uri timeout "${_patience:-5}" "${_as_flux[@]}" flux "$@" </dev/null 2>/dev/null; }

# The socket of this pod's broker.
_socket() {
    for _uri in "$viewbase"/config/run/flux/local*; do
        if [[ -S $_uri ]]; then
            _uri=local://$_uri
            return 0
        fi
    done
    return 1
}

# Whether the broker has joined its instance. Its socket is there before that, so the broker itself is asked.
_joined() {
    _socket && _uptime=$(_flux uptime) && _runs "$_uptime"
}

# Such as " 05:12:30 run 3.5m,  owner flux,  depth 0,  size 4,  1 drained".
_runs() { [[ $1 =~ ^\ *[^\ ]+\ run\  ]]; }

# Whether the broker has a place in its instance: before that it loads no modules. A broker that lost it ends.
_has_place() { _socket && _flux module stats heartbeat >/dev/null; }
