
# The ends of the tunnel: a program beside the broker that holds its connections to another cluster, so that they outlive the
# agents, which only relay. Where it does not run, they end in the agents.
_ends=/flux_operator_ends/tributary-ends
_ends_up=$configroot/run/flux/ends

# Keeps it running, with these words: brokers find it again by themselves.
_hold_ends() {
    local delay=1
    while kill -0 $$ 2>/dev/null; do
        "${_as_flux[@]}" "$_ends" "$@" --certificate "$configroot/curve/curve.cert" --hold "$_ends_hold" \
            --ready "$_ends_up" </dev/null || true
        sleep "$delay"
        delay=$((delay < 8 ? delay * 2 : 15))
    done
}

# Whether it runs.
_has_ends() { [[ -s $_ends_up ]] && kill -0 "$(<"$_ends_up")" 2>/dev/null; }

# Starts it, unless it is not there, or was built for another kind of machine.
_start_ends() {
    rm -f "$_ends_up"
    if ! "$_ends" check >/dev/null 2>&1; then
        _say "The ends of the tunnel do not run here: connections to other clusters end with their agents."
        return 0
    fi
    _hold_ends "$@" &
    # The user's shell may wait for what it has started itself.
    disown || true
    for _ in {1..30}; do
        if _has_ends; then return 0; fi
        sleep 0.1
    done
}
