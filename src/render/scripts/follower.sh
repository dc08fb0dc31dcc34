    #@workerPre
    # A node that is cut off may take a part of the DNS with it: a question that is lost costs 1 s, and the whole names of
    # brokers are not asked for with every search domain first.
    export RES_OPTIONS=${RES_OPTIONS:-ndots:1 timeout:1 attempts:2}
    _delay=1
    _posted=
    #@listen
    #@watch
    while [[ -z $_terminating ]]; do
        #@begin
        #@unfinished
        #@return
        #@start
        #@returned
        if [[ -n $_terminating ]]; then break; fi
        # The instance has ended, or let this broker go.
        if [[ $_status == 0 && -z $_posted ]]; then
            _posted=1
            #@post
        fi
        #@complete
        #@finished
        #@again
        _say "The broker ended with $_status and is started again in $_delay s."
        _pause "$_delay"
        _delay=$((_delay < 8 ? _delay * 2 : 15))
    done
    #@end
