    # Without a command, `flux shutdown` ends the instance. Flux runs what is pushed here before its brokers leave.
    rm -f "$_stopped"
    _tell_stopped() { touch "$_stopped"; }
    _before_end=_tell_stopped
    _on_shutdown() {
        until _joined; do
            sleep 1
            if ! kill -0 $$ 2>/dev/null; then return 0; fi
        done
        if _flux admin cleanup-push "/bin/bash /flux_operator/finish.sh"; then
            _say "This instance runs until \`flux shutdown\`."
        fi
    }
    _on_shutdown &
