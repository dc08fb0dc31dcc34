# The broker, and the agent that dials it, are at the address of the cluster's first family.
_addresses() {
    local family=v4
    if [[ $(<"$cfg/broker.toml") == *$'\nenable_ipv6 = true\n'* ]]; then family=v6; fi
    getent "ahosts$family" "$1" 2>/dev/null || getent ahosts "$1" 2>/dev/null
}
if [[ $HOSTNAME == "$mainHost" ]]; then
    if read -r _address _ < <(_addresses "$HOSTNAME"); then
        if [[ $_address == *:* ]]; then _address=[$_address]; fi
        _start_ends lead --listen "$_address:$_ends_port" --broker "$_address:$_broker_port"
    else
        _say "getent knows no address of this pod: connections to other clusters end with their agents."
    fi
fi
