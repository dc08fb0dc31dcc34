    _beside=_follow_quorum
    _last=${#brokerOptions[@]}
    while :; do
        rm -f "$viewbase/.fewer"
        _read_quorum
        if ((_quorum == 0)); then break; fi
        brokerOptions[_last]=-Sbroker.quorum=$_quorum
        #@start
        if [[ ! -e $viewbase/.fewer ]]; then break; fi
        _say "Fewer brokers are wanted by now: Flux is started again, and waits for those."
    done
    _beside=
