# What Flux and its jobs write belongs to their user. Volumes may refuse to change owners.
_own() {
    if [[ $(id -u) == 0 ]]; then
        chown -R "$fluxuid:$fluxgid" "$@" || _say "Failed to make $fluxuser the owner of $*."
    fi
}
HOME=$(sed -n "s/^$fluxuser:\([^:]*:\)\{4\}\([^:]*\):.*/\2/p" /etc/passwd)
export HOME=${HOME:-/home/flux-operator} USER=$fluxuser LOGNAME=$fluxuser
if [[ ! -d $HOME ]]; then mkdir -p "$HOME" && _own "$HOME"; fi
_own "$configroot/curve/curve.cert" "$configroot/run/flux" "$STATE_DIR" ${_new_output:+"$FLUX_OUTPUT_DIR"}
# A directory that was there may be a volume: what others have in it stays theirs.
if ! "${_as_flux[@]}" test -w "$FLUX_OUTPUT_DIR"; then chown "$fluxuid:$fluxgid" "$FLUX_OUTPUT_DIR" || true; fi
if ! "${_as_flux[@]}" test -w "$PWD"; then
    if [[ $PWD == / ]]; then cd "$HOME" || exit; else chown "$fluxuid:$fluxgid" "$PWD" || true; fi
fi
_say "Flux runs as $fluxuser ($fluxuid), in $PWD"
