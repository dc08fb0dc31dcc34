    # If the command has failed too, its exit code does not tell whether the archive is whole.
    if [[ -s $_dump ]] && { ((_status == 0)) || tar -tf "$_dump" >/dev/null 2>&1 || ! command -v tar >/dev/null; }; then
        mv -f "$_dump" "$_archive"
    else
        echo "Flux has written no archive: $_archive stays as it was." >&2
    fi
