#!/bin/bash
# Serves the Flux RESTful API (https://github.com/flux-framework/flux-restful-api) for this instance, until it is told to end.
#@settings
set -eu -o pipefail
_fail() {
    printf '%s\n' "$1" >&2
    exit 1
}
: "${FLUX_USER:?}" "${FLUX_TOKEN:?}" "${FLUX_SECRET_KEY:?}"

# An image may have several: the one that knows Flux.
python=
for candidate in $(type -ap python3 python) "$viewbase"/view/bin/python3*; do
    if "$candidate" -c 'import flux' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
[[ -n $python ]] || _fail "The Flux RESTful API needs a python3 with the bindings of Flux (import flux); this image has none."

# It writes its database into its working directory, and begins anew with every instance.
place=$(mktemp -d)
kind=
if [[ $branch == main ]]; then
    if "$python" -c 'import flux_restful.cli' >/dev/null 2>&1; then
        kind=package
    else
        # Images of older servers.
        for folder in "$PWD" /code/.; do
            if [[ -f $folder/app/main.py ]]; then
                cp -R "$folder" "$place/server"
                kind=folder
                break
            fi
        done
    fi
fi
if [[ -z $kind ]]; then
    command -v git >/dev/null || _fail "The Flux RESTful API is not in this image, and git, which would fetch it, is not either."
    git clone --quiet --depth 1 --branch "$branch" https://github.com/flux-framework/flux-restful-api "$place/server"
    if [[ -d $place/server/flux_restful ]]; then
        kind=package
        needs=("$place/server")
    else
        kind=folder
        # Its way to hash passwords fails with later ones.
        needs=(--requirement "$place/server/requirements.txt" 'bcrypt<5')
    fi
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip --user >/dev/null
    "$python" -m pip install --quiet --no-cache-dir --disable-pip-version-check --target "$place/packages" "${needs[@]}"
    export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$place/packages
fi

export FLUX_REQUIRE_AUTH=true
export FLUX_NUMBER_NODES=$nodes
# What it signs the tokens with that it hands out: nobody else has to know.
FLUX_TOKEN_SIGNING_KEY=${FLUX_TOKEN_SIGNING_KEY:-$("$python" -c 'import secrets; print(secrets.token_hex(32))')}
export FLUX_TOKEN_SIGNING_KEY
if [[ $kind == package ]]; then
    cd "$place"
    database=("$python" -m flux_restful.cli)
    server=("$python" -m flux_restful.cli serve)
else
    cd "$place/server"
    database=("$python" app/db/init_db.py)
    server=("$python" -m uvicorn app.main:app)
    if [[ -f alembic.ini ]]; then
        "$python" -m alembic.config revision --autogenerate -m "Create initial tables"
        "$python" -m alembic.config upgrade head
    fi
fi
# The very first ones have no database: they know the one user of their environment.
if [[ $kind == package || -f app/db/init_db.py ]]; then
    "${database[@]}" init
    while read -r name password; do
        if [[ -n $name ]]; then "${database[@]}" add-user -- "$name" "$password"; fi
    done <<<"${FLUX_RESTFUL_USERS:-}"
fi
unset FLUX_RESTFUL_USERS
printf 'The Flux RESTful API listens on port %s; its user and token are in the Secret %s.\n' "$port" "$secret"
exec "${server[@]}" --host=0.0.0.0 "--port=$port"
