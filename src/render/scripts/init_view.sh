    found=
    for view in /opt/views/._view/*/; do
        if [[ -d $view ]]; then
            cp -R "$view." "$viewroot/"
            found=1
        fi
    done
    if [[ -z $found ]]; then
        echo "this image has no Flux view under /opt/views/._view: choose another flux.container.image" >&2
        exit 1
    fi
    if [[ -d /opt/software ]]; then cp -R /opt/software/. "$viewbase/software/"; fi

    # The application's own python stays the one on PATH; the view's is found below lib.
    for root in "$viewroot"/lib/python3*; do
        python=$viewroot/bin/${root##*/}
        if [[ -f $python ]]; then
            rm -rf "$viewroot/bin/python" "$viewroot/bin/python3"
            ln -sfn "$python" "$viewroot/lib/python"
            ln -sfn "$python" "$viewroot/lib/python3"
        fi
    done
