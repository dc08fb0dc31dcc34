    _beside=_follow_quorum
    _last=${#brokerOptions[@]}
    while :; do
        rm -f "$viewbase/.fewer"
        #@nodes
        _read_quorum
        if ((_quorum == 0)); then break; fi
        # Flux waits for all by itself, and before 0.51 took another form of this.
        unset 'brokerOptions[_last]'
        if ((_quorum != _all)); then brokerOptions[_last]=-Sbroker.quorum=$_quorum; fi
        #@start
        if [[ ! -e $viewbase/.fewer ]]; then break; fi
        _say "Fewer brokers are wanted by now: Flux is started again, and waits for those."
    done
    _beside=
