if [[ $HOSTNAME == $_gateways ]]; then
    # The program is static: it finds the lead by the getent of the image.
    if command -v getent >/dev/null; then
        _start_ends burst --listen "127.0.0.1:$_ends_port" --lead "$_lead" --host "$HOSTNAME"
    else
        _say "This image has no getent for the end of the tunnel: connections to other clusters end with their agents."
    fi
fi

# Where the broker finds its parent in the other cluster: at the end in this pod, if there is one.
_find_ends() {
    local text way=tcp://$_lead here=tcp://127.0.0.1:$_ends_port
    text=$(<"$cfg/broker.toml")
    text=${text//"$here"/"$way"}
    if _has_ends; then text=${text//"$way"/"$here"}; fi
    printf '%s\n' "$text" >"$configroot/.broker.toml" || return 0
    chmod 0644 "$configroot/.broker.toml" && mv -f "$configroot/.broker.toml" "$cfg/broker.toml" || true
}
