#!/bin/bash
# The startup probe: whether the broker has joined its instance, which asks the lead as well. With the word `still` it is the
# readiness probe: whether the broker is a part of it still, which the broker alone knows.
#@settings
# `commands.init` and `commands.pre` may have said where Flux is. Others may write there, but not as this user.
{
    if [[ -O /proc/self/fd/9 ]]; then
        while IFS='=' read -r _name _value; do
            case $_name in PATH | LD_LIBRARY_PATH | PYTHONPATH) export "$_name=$_value" ;; esac
        done <&9
    fi
} 9<"$viewbase/config/run/flux/paths" 2>/dev/null || true
#@user
#@joined
if [[ ${1:-} == still ]]; then
    _patience=8
    _has_place
else
    _joined
fi
