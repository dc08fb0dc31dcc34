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
        _last_words "The command ended with exit code $_result."
    fi
    # A command that ends so has failed.
    if _is_replaced "$_result"; then _result=1; fi
    _end "$_result"
