# Flux was built for /opt/software. Links suffice, and nothing is copied a second time.
export PATH=$PATH:$viewroot/bin
mkdir -p /opt/software || true
for _entry in "$viewbase"/software/*; do
    if [[ -e $_entry && ! -e /opt/software/${_entry##*/} ]]; then
        ln -sfn "$_entry" "/opt/software/${_entry##*/}" || true
    fi
done
_found=
for _entry in "$viewroot"/lib/python3*; do
    if [[ -d $_entry && ! -L $_entry ]]; then _found=$_entry; fi
done
: "${foundroot:=$_found}" "${pythonversion:=$viewroot/bin/${_found##*/}}"
_python_path=${_python_path:-${_found:+$_found/site-packages}}
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$_python_path
#@scheduler
