#!/bin/bash
# Starts the broker of this pod. The first pod of a root leads: it runs the user's command, and its exit code is the
# command's. All others follow, as long as they live.
#@settings
#@strict
#@signals
_finished() { touch "$viewbase/flux-operator-complete.txt" || true; }
trap _finished EXIT
rm -f "$viewbase/flux-operator-complete.txt"

_say() { if [[ -z $_quiet ]]; then printf '%s\n' "$*"; fi; }
fluxuser=$(id -un 2>/dev/null || id -u)
fluxuid=$(id -u)

#@init
#@user
#@environment
#@hostname
cfg=$configroot/etc/flux/config
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
#@munge
#@pre
#@owner
#@following
#@ends
#@queue
#@role
