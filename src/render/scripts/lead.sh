    #@batch
    #@archive
    #@resources
    #@brokerPre
    #@diagnose
    #@shutdown
    #@start
    #@finished
    #@archived
    if [[ -n $_terminating ]]; then _end 143; fi
    _result=$_status
    #@post
    if ((_result != 0)); then
        _say "The command ended with exit code $_result."
        (printf 'The command ended with exit code %s.\n' "$_result" >/dev/termination-log) 2>/dev/null || true
    fi
    # These two mean that the pod was stopped, and it would be started again: a command that ends so has failed.
    if ((_result == 137 || _result == 143)); then _result=1; fi
    _end "$_result"
