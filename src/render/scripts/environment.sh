#@settings
viewroot=$viewbase/view
configroot=$viewbase/config
fluxsocket=local://$configroot/run/flux/local
# Hooks that were written for the Flux Operator go by these, too, unless their container has its own.
: "${software:=$viewbase/software}" "${viewbin:=$viewroot/bin}" "${fluxpath:=$viewbin/flux}" \
    "${foundroot=}" "${pythonversion=}"

# A user without a home would write to the root of the file system.
if [[ ${HOME:-/} == / ]]; then
    export HOME=/home/flux-operator
    export USER=flux-operator
fi

#@view
# For people and programs that connect later. Several containers write these files at the same time.
_write() {
    cat >"$viewbase/.$1.$_container"
    chmod 0755 "$viewbase/.$1.$_container"
    mv -f "$viewbase/.$1.$_container" "$viewbase/$1"
}
_write flux-view.sh <<END
#!/bin/bash
export PATH=$(printf %q "$PATH")
export PYTHONPATH=$(printf %q "${PYTHONPATH:-}")
export LD_LIBRARY_PATH=$(printf %q "${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$viewroot/lib")
export fluxsocket=$(printf %q "$fluxsocket")
$_environment
END
_write load-fluxion.sh <<END
flux module remove sched-simple
flux module load sched-fluxion-resource
flux module load sched-fluxion-qmanager
END
_write flux-connect.sh <<END
#!/bin/bash
. $(printf %q "$viewbase/flux-view.sh")
flux proxy "\$fluxsocket" bash
END
