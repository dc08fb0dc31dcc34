
# Keeps the program running that tells the agent of this cluster what the queue asks for.
_tell_queue() {
    local began code delay=1
    while kill -0 $$ 2>/dev/null; do
        began=$SECONDS
        code=0
        "${_as_flux[@]}" flux python /flux_operator/tell-queue.py "$_queue_port" "$configroot" </dev/null || code=$?
        # One that was killed says nothing of the image.
        if ((code < 128)) &&
            ! "${_as_flux[@]}" flux python -c 'import flux.job, flux.resource' </dev/null >/dev/null 2>&1; then
            _say "No Python here knows Flux (import flux): bursts on demand do not hear of the queue."
            return 0
        fi
        if ((SECONDS - began > 60)); then delay=1; fi
        sleep "$delay"
        delay=$((delay < 4 ? delay * 2 : 4))
    done
}
if [[ $HOSTNAME == "$mainHost" ]]; then
    _tell_queue &
    # The user's shell may wait for what it has started itself.
    disown || true
fi
