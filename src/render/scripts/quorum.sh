
# What is wanted by now, which may be fewer than when this was written: how many brokers the lead waits for, and how many nodes
# the command asks for. 0: the command has ended well, under a lead that was lost before it could say so.
_read_quorum() {
    local lines
    { mapfile -t lines </flux_operator/quorum; } 2>/dev/null || return 0
    if [[ ${lines[0]-} =~ ^[0-9]+$ ]]; then _quorum=${lines[0]}; fi
    # Never more than at the start: new brokers of a root that grows may still wait in a queue.
    if [[ ${lines[2]-} =~ ^[0-9]+\ [0-9]+$ ]] && ((${lines[2]/ /+} < ${_nodes-0})); then _nodes=$((${lines[2]/ /+})); fi
}

# Ends a broker that waits for more than are wanted by now, or whose command would: it is started again, and waits for those.
_follow_quorum() {
    local waits_for=$_quorum asks_for=${_nodes-0}
    while sleep 5 && kill -0 "$1" 2>/dev/null; do
        if _joined; then return 0; fi
        _read_quorum
        if ((_quorum < waits_for || ${_nodes-0} < asks_for)); then
            touch "$viewbase/.fewer"
            _signal "$1"
            return 0
        fi
    done
}
