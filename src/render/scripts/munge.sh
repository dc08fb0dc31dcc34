# munged takes a key that only its user can read. Images without it have no use for the key.
if command -v munged >/dev/null; then
    mkdir -p /run/munge && chmod 0755 /run/munge
    (umask 077 && cp -f /etc/munge/munge.key /run/munge/munge.key)
    munged --force --key-file=/run/munge/munge.key || _say "munged did not start."
fi
