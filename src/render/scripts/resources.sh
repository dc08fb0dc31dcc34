    # The spec names no cores: Flux counts those it finds here, and takes the other pods to be alike.
    if flux R encode --hosts="$(cat "$configroot/etc/flux/system/hostlist")" --local >"$configroot/R.new"; then
        mv -f "$configroot/R.new" "$configroot/etc/flux/system/R"
    fi
