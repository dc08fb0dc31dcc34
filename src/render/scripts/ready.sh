#!/bin/bash
# The startup probe: whether the broker has joined its instance, which asks the lead as well. With the word `still` it is the
# readiness probe: whether the broker is a part of it still, which the broker alone knows.
#@settings
#@paths
#@user
#@joined
if [[ ${1:-} == still ]]; then
    _patience=8
    _has_place
else
    _joined
fi
