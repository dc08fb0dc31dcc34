    # Flux writes the archive on its way down, beside the one that is there: that stays whole until the new one is.
    #@mkdir
    rm -f "$_dump"
    if [[ -e $_archive ]]; then brokerOptions+=("-Scontent.restore=$_archive"); fi
    brokerOptions+=("-Scontent.dump=$_dump")
