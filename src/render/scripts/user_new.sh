if ! id -u "$fluxuser" >/dev/null 2>&1; then
    if [[ ! -w /etc/passwd ]]; then
        echo "there is no user $fluxuser in the image, and only root can make one: leave out fluxUser, or add it" >&2
        exit 1
    fi
    echo "$fluxuser:x:$fluxuid:$fluxuid::/home/$fluxuser:/bin/bash" >>/etc/passwd
    if ! grep -q "^[^:]*:[^:]*:$fluxuid:" /etc/group; then echo "$fluxuser:x:$fluxuid:" >>/etc/group; fi
fi
if ! _find_flux_user || ! "${_as_flux[@]}" true; then
    echo "failed to become user $fluxuser: the container needs setpriv or chroot, and the capabilities SETUID and SETGID" >&2
    exit 1
fi
