# bash passes no signal on, and as process 1 it ignores SIGTERM: take it, and tell what runs.
_terminating=
_child=
_status=0
_before_end=:
_beside=
_terminate() {
    _terminating=1
    if [[ -n $_child ]]; then
        $_before_end
        _signal "$_child"
    fi
}
# Images may name another signal to be ended with (STOPSIGNAL). Not taken is what a terminal sends that somebody attaches: INT
# and QUIT by a key, WINCH with its size.
trap _terminate TERM USR1 RTMIN+3

# SIGTERM for a process; what /usr/bin/time runs instead of it, because that passes nothing on.
_signal() {
    local pid timed=
    if [[ $(cat "/proc/$1/comm" 2>/dev/null) == time ]]; then
        timed=$(cat "/proc/$1/task/$1/children" 2>/dev/null || true)
    fi
    for pid in ${timed:-$1}; do kill -TERM "$pid" 2>/dev/null || true; done
}

# In the background, a program would ignore SIGINT and SIGQUIT, and so would all that it starts.
_exec() {
    trap - INT QUIT
    case $(type -t "$1") in
    function | builtin) "$@" ;;
    *) exec "$@" ;;
    esac
}

# Runs a command to its end, also if a signal comes, and leaves its exit code in `_status`. What `_beside` names goes on
# beside it, and is given its process.
_run() {
    _status=143
    if [[ -n $_terminating ]]; then return 0; fi
    _exec "$@" <&0 &
    _child=$!
    if [[ -n $_beside ]]; then $_beside "$_child" & fi
    if [[ -n $_terminating ]]; then _signal "$_child"; fi
    _await "$_child"
    _child=
}

# Waits for a process to end, and leaves its exit code in `_status`.
_await() {
    while :; do
        _status=0
        wait "$1" || _status=$?
        # A signal ends `wait` before the process.
        if ! kill -0 "$1" 2>/dev/null; then break; fi
    done
}

# Sleeps so many seconds, or until SIGTERM.
_pause() {
    if [[ -n $_terminating ]]; then return 0; fi
    sleep "$1" &
    _child=$!
    if [[ -n $_terminating ]]; then _signal "$_child"; fi
    wait "$_child" || true
    _child=
}
