#!/bin/bash
# Starts the broker of this pod. The first pod of a root leads: it runs the user's command, and its exit code is the
# command's. All others follow, as long as they live.
#@settings
#@strict
#@signals
#@hostname
_complete=$viewbase/flux-operator-complete.txt
rm -f "$_complete"

# Containers beside this one learn from it that the run is over, and the pod not only stopped.
_finished() { if [[ -z $_terminating && (-z $_restarts || $1 == 0) ]]; then touch "$_complete" || true; fi; }
# These mean that the pod was stopped, or that its container never started: it would be replaced.
_is_replaced() { (($1 == 128 || $1 == 137 || $1 == 143)); }
_last_words() { (printf '%s\n' "$1" >/dev/termination-log) 2>/dev/null || true; }
# Only the lead decides how the run ends: any other pod that fails, before its broker starts for example, is replaced.
_exited() {
    _finished "$1"
    if (($1 == 0)) || [[ -n $_terminating ]]; then return 0; fi
    if [[ $HOSTNAME == "${mainHost-}" ]]; then
        if _is_replaced "$1"; then exit 1; fi
        return 0
    fi
    printf >&2 'This pod failed with exit code %s; another one takes its place.\n' "$1"
    _last_words "This pod failed with exit code $1; another one takes its place."
    exit 143
}
trap '_exited "$?"' EXIT
_end() {
    # The user's shell may have a trap of its own for the end.
    _finished "$1"
    exit "$1"
}

# What the user's shell may have changed. It may add options of the broker as to a text: bash adds them to the first one.
_restore() {
    local words
    trap _terminate TERM
    IFS=$' \t\n'
    if [[ ${brokerOptions-} == "${_option- }"[[:space:]]* || ${brokerOptions-} == *[[:space:]]"${_option- }" ]]; then
        read -r -d '' -a words <<<"$brokerOptions" || true
        brokerOptions=("${words[0]}" "${brokerOptions[@]:1}" "${words[@]:1}")
        _option=${brokerOptions[0]}
    fi
}

# Runs the user's shell by itself, also if a signal comes: its `exit` and `wait` are its own. Its exit code is left in
# `_aside`.
_run_aside() {
    local status=$_status
    "$@" <&0 &
    _await "$!"
    _aside=$_status
    _status=$status
}

_say() { if [[ -z $_quiet ]]; then printf '%s\n' "$*"; fi; }
fluxuser=$(id -un 2>/dev/null || id -u)
fluxuid=$(id -u)

#@init
#@user
#@environment
cfg=$configroot/etc/flux/config
: "${workdir:=$PWD}" "${hosts:=$(cat "$configroot/etc/flux/system/hostlist" 2>/dev/null || true)}"
_say "I am $HOSTNAME, user $fluxuser ($fluxuid), in $PWD"

# Flux refuses a certificate that is not its own or that others may read.
mkdir -p "$configroot/curve"
(umask 077 && cp -f /flux_operator_curve/curve.cert "$configroot/curve/.curve.cert")
chmod 0600 "$configroot/curve/.curve.cert"
mv -f "$configroot/curve/.curve.cert" "$configroot/curve/curve.cert"

export STATE_DIR=$configroot/var/lib/flux
#@output
mkdir -p "$configroot/run/flux" "$STATE_DIR" "$FLUX_OUTPUT_DIR"
#@script
#@options
_option=${brokerOptions[0]}
#@munge
#@pre
#@owner
# For the probes, which see the environment of the image only.
rm -f "$configroot/run/flux/paths" || true
printf '%s\n' "PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}" "PYTHONPATH=${PYTHONPATH-}" >"$configroot/run/flux/paths" || true
#@following
#@ends
#@queue
#@role
