# The broker, and the agent that dials it, are at the IPv4 address where there is one.
_addresses() { getent ahostsv4 "$1" 2>/dev/null || getent ahosts "$1" 2>/dev/null; }
if [[ $HOSTNAME == "$mainHost" ]] && read -r _address _ < <(_addresses "$HOSTNAME"); then
    if [[ $_address == *:* ]]; then _address=[$_address]; fi
    _start_ends lead --listen "$_address:$_ends_port" --broker "$_address:$_broker_port"
fi
