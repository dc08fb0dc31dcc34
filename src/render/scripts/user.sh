# The user that Flux runs as. Only root can become another one.
_as_flux=(env)
_find_flux_user() {
    local group groups=
    fluxuid=$(id -u "$fluxuser") && fluxgid=$(id -g "$fluxuser") || return 1
    if [[ $(id -u) != 0 || $fluxuid == 0 ]]; then return 0; fi
    # The groups of the pod's volumes stay.
    for group in $(id -G "$fluxuser") $(id -G); do
        if [[ $group != 0 ]]; then groups+=,$group; fi
    done
    if command -v setpriv >/dev/null; then
        _as_flux=(setpriv "--reuid=$fluxuid" "--regid=$fluxgid" "--groups=${groups#,}")
    else
        _as_flux=(chroot "--userspec=$fluxuid:$fluxgid" "--groups=${groups#,}" --skip-chdir /)
    fi
}
