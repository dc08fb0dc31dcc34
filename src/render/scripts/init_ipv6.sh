
# Flux speaks IPv4 unless it is told otherwise. Names of brokers lead to addresses of the cluster's first family, and in this
# file the kubelet writes the pod's address of that family first.
while read -r address names; do
    if [[ " ${names//$'\t'/ } " != *" $HOSTNAME "* ]]; then continue; fi
    if [[ $address != *:* ]]; then break; fi
    while IFS= read -r line; do
        if [[ $line == 'default_bind = '* ]]; then
            printf '%s\n' 'enable_ipv6 = true' 'default_bind = "tcp://*:%p"'
        else
            printf '%s\n' "$line"
        fi
    done <"/flux_operator/broker.toml" >"$configroot/etc/flux/config/broker.toml"
    break
done </etc/hosts
