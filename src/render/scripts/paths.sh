# `commands.init` and `commands.pre` may have said where Flux is. Others may write there, but not as this user.
{
    if [[ -O /proc/self/fd/9 ]]; then
        while IFS='=' read -r _name _value; do
            case $_name in PATH | LD_LIBRARY_PATH | PYTHONPATH) export "$_name=$_value" ;; esac
        done <&9
    fi
} 2>/dev/null 9<"$viewbase/config/run/flux/paths" || true
