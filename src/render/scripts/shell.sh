# Connects a person, or a command, to the broker of this pod.
#@settings
# What the pod's own script has written for whoever comes later: PATH, libraries, the environment of the spec.
if [[ -r $viewbase/flux-view.sh ]]; then . "$viewbase/flux-view.sh"; fi
# Each container of the pod writes that file, with its own paths.
#@paths
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$viewbase/view/lib
#@environment
for _uri in "$viewbase"/config/run/flux/local*; do
    if [[ -S $_uri ]]; then export FLUX_URI=local://$_uri; fi
done
if [[ -z ${FLUX_URI-} ]]; then
    echo "the broker of this pod has no socket yet: agentctl why says what it waits for" >&2
    exit 1
fi
#@user
if [[ $# == 0 ]]; then set -- bash; fi
exec "${_as_flux[@]}" "$@"
