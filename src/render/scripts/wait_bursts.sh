#!/bin/bash
# Waits until brokers of bursts have joined, then becomes the command it is given.
#@settings
joined() {
    local ranks range count=0 first last
    ranks=$(flux resource list -s up -no '{ranks}' 2>/dev/null) || ranks=
    for range in ${ranks//[][,]/ }; do
        first=${range%-*}
        last=${range#*-}
        if ((first < first_rank)); then first=$first_rank; fi
        if ((last >= first)); then count=$((count + last - first + 1)); fi
    done
    echo "$count"
}
count=$(joined)
while ((count < wanted)); do
    if ((timeout > 0 && SECONDS >= timeout)); then
        echo "$count of $wanted brokers of bursts have joined within $timeout s: going on without the others." >&2
        # A command for the nodes of all clusters is one for those that are there.
        for ((i = 1; i < $#; i++)); do
            if [[ -n $all && "${*:i:2}" == "-N $all" ]]; then
                set -- "${@:1:i}" "$((own + count))" "${@:i+2}"
                break
            fi
        done
        break
    fi
    sleep 1
    count=$(joined)
done
exec "$@"
