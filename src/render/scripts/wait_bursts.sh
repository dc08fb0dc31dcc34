#!/bin/bash
# Waits until brokers of bursts have joined, then becomes the command. Usage: wait-bursts.sh NODES COMMAND...: NODES is the
# number after its -N, or empty.
#@settings
nodes=$1
shift
# What is wanted by now: brokers of bursts, and nodes of the command, here and there.
read_wanted() {
    local lines here=$own
    { mapfile -t lines </flux_operator/quorum; } 2>/dev/null || return 0
    if [[ ${lines[1]-} =~ ^[0-9]+$ ]]; then wanted=${lines[1]}; fi
    if [[ ${lines[2]-} =~ ^[0-9]+\ [0-9]+$ ]]; then read -r here bursts <<<"${lines[2]}"; fi
    # The brokers of a root that grows may wait in a queue.
    if ((here < own)); then own=$here; fi
}
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
read_wanted
count=$(joined)
while ((count < wanted)); do
    if ((timeout > 0 && SECONDS >= timeout)); then
        echo "$count of $wanted brokers of bursts have joined within $timeout s: going on without the others." >&2
        if [[ -n $fewer ]] && ((count < bursts)); then bursts=$count; fi
        break
    fi
    sleep 1
    read_wanted
    count=$(joined)
done
# If fewer nodes are there than the command asks for, it asks for those.
if [[ -n $nodes ]] && ((own + bursts < nodes)); then
    for ((i = 1; i < $#; i++)); do
        if [[ "${*:i:2}" == "-N $nodes" ]]; then
            set -- "${@:1:i}" "$((own + bursts))" "${@:i+2}"
            break
        fi
    done
fi
exec "$@"
