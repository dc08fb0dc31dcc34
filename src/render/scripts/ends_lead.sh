if [[ $HOSTNAME == "$mainHost" ]] && read -r _address _ < <(getent ahosts "$HOSTNAME" 2>/dev/null); then
    if [[ $_address == *:* ]]; then _address=[$_address]; fi
    _start_ends lead --listen "$_address:$_ends_port" --broker "$_address:$_broker_port"
fi
