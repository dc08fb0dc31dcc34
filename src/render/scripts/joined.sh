# Asks Flux through the socket of this pod's broker.
_flux() { FLUX_URI=$_uri timeout 5 "${_as_flux[@]}" flux "$@" </dev/null 2>/dev/null; }

# Whether the broker has joined its instance. Its socket is there before that, so the broker itself is asked.
_joined() {
    for _uri in "$viewbase"/config/run/flux/local*; do
        if [[ ! -S $_uri ]]; then continue; fi
        _uri=local://$_uri
        # Such as " 05:12:30 run 3.5m,  owner flux,  depth 0,  size 4,  1 drained".
        _uptime=$(_flux uptime) || continue
        if [[ $_uptime =~ ^\ *[^\ ]+\ run\  ]]; then return 0; fi
    done
    return 1
}
