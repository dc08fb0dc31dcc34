if [[ $HOSTNAME == $_gateways ]]; then
    _start_ends burst --listen "127.0.0.1:$_ends_port" --lead "$_lead" --host "$HOSTNAME"
fi

# Where the broker finds its parent in the other cluster: at the end in this pod, if there is one.
_find_ends() {
    local text way=tcp://$_lead
    if _has_ends; then way=tcp://127.0.0.1:$_ends_port; fi
    text=$(<"/flux_operator/broker.toml")
    printf '%s\n' "${text//"tcp://$_lead"/"$way"}" >"$configroot/.broker.toml" || return 0
    chmod 0644 "$configroot/.broker.toml" && mv -f "$configroot/.broker.toml" "$cfg/broker.toml" || true
}
