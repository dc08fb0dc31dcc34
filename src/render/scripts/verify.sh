# All CPUs of the node: how much of them the container may use is its owner's choice.
_cpus=0
if IFS=, read -ra _ranges </sys/devices/system/cpu/online; then
    for _range in "${_ranges[@]}"; do _cpus=$((_cpus + ${_range#*-} - ${_range%-*} + 1)); done
fi
_few=
if ((_cpus > 0 && _cpus < _cores)); then
    _few="the node of $HOSTNAME has $_cpus CPUs, and R says $_cores cores"
    _say "No jobs start on this broker: $_few."
    # Flux runs this before the broker takes jobs. The reason of a person stays.
    mkdir -p "$configroot/etc/flux/few/rc1.d"
    cat >"$configroot/etc/flux/few/rc1.d/drain" <<END
#!/bin/bash
rank=\$(flux getattr rank)
reason=\$(flux resource drain -n -o '{reason}' -i "\$rank")
if [[ -z \$reason || \$reason == "tributary: "* ]]; then flux resource drain --force "\$rank" "tributary: $_few"; fi
exit 0
END
    chmod -R a+rX,u+x "$configroot/etc/flux/few"
    export FLUX_RC_EXTRA=${FLUX_RC_EXTRA:+$FLUX_RC_EXTRA:}$configroot/etc/flux/few
fi
