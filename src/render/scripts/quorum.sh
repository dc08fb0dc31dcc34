
# How many brokers the lead waits for: as many as are wanted by now, which may be fewer than when this was written. 0: the
# command has ended well, under a lead that was lost before it could say so.
_read_quorum() {
    local wanted
    if wanted=$(cat /flux_operator/quorum 2>/dev/null) && [[ $wanted =~ ^[0-9]+$ ]]; then _quorum=$wanted; fi
}

# Ends a broker that waits for more than are wanted by now: it is started again, and waits for those.
_follow_quorum() {
    local waits_for=$_quorum
    while sleep 5 && kill -0 "$1" 2>/dev/null; do
        if _joined; then return 0; fi
        _read_quorum
        if ((_quorum < waits_for)); then
            touch "$viewbase/.fewer"
            _signal "$1"
            return 0
        fi
    done
}
