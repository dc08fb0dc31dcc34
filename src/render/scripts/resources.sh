    # The spec names no cores: Flux counts those it finds here, and takes the other pods to be alike.
    _found=(--local)
    if ((_gpus > 0)) && _cores=$(flux R encode --local | flux R decode --count=core); then
        # It finds GPUs only if it was built for their kind; the spec names them.
        _found=("--cores=0-$((_cores - 1))" "--gpus=0-$((_gpus - 1))")
    fi
    if flux R encode --hosts="$(cat "$configroot/etc/flux/system/hostlist")" "${_found[@]}" >"$configroot/R.new"; then
        mv -f "$configroot/R.new" "$configroot/etc/flux/system/R"
    fi
