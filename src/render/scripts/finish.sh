#!/bin/bash
# Runs the command of the instance; without a command, Flux runs this when it is shut down. If the instance ends well, the
# other pods of this cluster may complete with their brokers: those of a pod that was lost, or of an instance that failed,
# never do.
#@settings
_status=0
if (($# > 0)); then
    _child=
    trap '[[ -z $_child ]] || kill -TERM "$_child" 2>/dev/null || true' TERM
    # In the background, a program would ignore SIGINT and SIGQUIT, and so would all that it starts.
    (
        trap - INT QUIT
        case $(type -t "$1") in
        function | builtin) "$@" ;;
        *) exec "$@" ;;
        esac
    ) <&0 &
    _child=$!
    while :; do
        _status=0
        wait "$_child" || _status=$?
        # A signal ends `wait` before the command.
        if ! kill -0 "$_child" 2>/dev/null; then break; fi
    done
elif [[ -e $_stopped ]]; then
    # The pod is stopped: another one leads after it.
    exit 0
fi
if ((_status == 0)); then
    flux exec -r "$_ranks" touch "$_ended" >/dev/null 2>&1 &
    _child=$!
    # Who does not answer is not waited for: its pod is deleted with the others.
    for ((_left = 50; _left > 0; _left--)); do
        if ! kill -0 "$_child" 2>/dev/null; then break; fi
        sleep 0.1
    done
    kill -KILL "$_child" 2>/dev/null || true
fi
exit "$_status"
