# Sourced by scripts/run and scripts/test. `setup_venv ROOT EXTRA…` makes ROOT/.venv hold this package (editable) with
# at least the given extras, or returns at once when it already does.
#
# .venv/setup-stamp says what is installed: two lines naming the interpreter and the pyproject.toml it was made from,
# and one listing the extras. While a set-up runs it says "unfinished" instead, so one that was killed is redone from
# nothing. .venv/setup.log keeps pip's output of the last set-up.
#
#   PYTHON          the interpreter to use (default: python3)
#   SWITCHML_TORCH  the requirement to give pip for torch, e.g. "torch" or "torch==2.9.1" (default: the CPU build of
#                   $default_torch, because the default Linux wheel brings several GB of CUDA with it). A torch that is
#                   already in .venv is left as it is.

default_torch="2.13.0"
torch_cpu_index="https://download.pytorch.org/whl/cpu"

say() { printf 'setup: %s\n' "$*" >&2; }

setup_venv() {
    local root=$1 venv=$1/.venv
    shift
    local wanted="$*" python=${PYTHON:-python3} version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || {
        say "no working '$python' found: install Python 3.10 or newer, or set PYTHON to one"
        return 1
    }
    if [ "${version%%.*}" -lt 3 ] || { [ "${version%%.*}" -eq 3 ] && [ "${version#*.}" -lt 10 ]; }; then
        say "'$python' is Python $version, but 3.10 or newer is needed: install one, or set PYTHON to it"
        return 1
    fi

    local made_by="Python $version for $root" made_from
    made_from="pyproject.toml $(cksum <"$root/pyproject.toml")"
    if _venv_is_ready; then return 0; fi

    # One set-up at a time. The lock lies outside .venv, which may be deleted below; pip inherits it, so that a pip
    # which outlives a killed script still keeps others out.
    if command -v flock >/dev/null; then
        exec 9>"$root/.venv.lock"
        if ! flock -n 9; then
            say "waiting for another set-up of $venv"
            flock 9
        fi
    fi
    local status=0
    if ! _venv_is_ready; then _make_venv || status=$?; fi
    exec 9>&-
    return $status
}

# The functions below share setup_venv's variables.

_read_stamp() {
    stamp_made_by='' stamp_made_from='' stamp_extras=''
    [ -f "$venv/setup-stamp" ] || return 0
    { read -r stamp_made_by; read -r stamp_made_from; read -r stamp_extras; } <"$venv/setup-stamp" || true
}

_venv_is_ready() {
    local stamp_made_by stamp_made_from stamp_extras extra
    _read_stamp
    [ "$stamp_made_by" = "$made_by" ] && [ "$stamp_made_from" = "$made_from" ] && [ -x "$venv/bin/python" ] || return 1
    for extra in $wanted; do
        case " $stamp_extras " in *" $extra "*) ;; *) return 1 ;; esac
    done
}

_make_venv() {
    local stamp_made_by stamp_made_from stamp_extras began=$SECONDS log=$venv/setup.log
    _read_stamp
    if [ ! -x "$venv/bin/python" ] || { [ -n "$stamp_made_by" ] && [ "$stamp_made_by" != "$made_by" ]; }; then
        # Nothing there, the rest of a killed set-up, or one for another interpreter or place.
        "$python" -c 'import venv, ensurepip' 2>/dev/null || {
            say "'$python' lacks the venv module: install it (on Debian and Ubuntu: apt install python3-venv)"
            return 1
        }
        say "making .venv with Python $version"
        mkdir -p "$venv"
        echo unfinished >"$venv/setup-stamp"
        rm -rf "$venv"/lib "$venv"/lib64 "$venv"/bin "$venv"/include "$venv"/share
        "$python" -m venv "$venv" >"$log" 2>&1 || { _failed "python -m venv failed"; return 1; }
        stamp_extras=''
    fi
    echo unfinished >"$venv/setup-stamp"

    # Extras that were there stay, so that scripts/run and scripts/test don't undo each other.
    local extras
    extras=$(printf '%s\n' $wanted $stamp_extras | sort -u | paste -s -d ' ' -)
    local arguments=(-e "$root[${extras// /,}]") torch=''
    if _wants_torch && ! _has_torch; then
        _choose_torch
    fi
    say "installing switchml[${extras// /,}]${torch:+ and $torch} (a minute or more the first time)"
    # The pip that Python brings takes twice as long to find what fits together. It does, where no newer one is in reach.
    _pip install --quiet --upgrade pip >"$log" 2>&1 || true
    # --no-compile: compiling every module of torch and SciPy takes longer than installing them, and few are ever used.
    if ! _pip install --no-compile "${arguments[@]}" >>"$log" 2>&1; then
        # pip ended by itself: nothing is half-written, and the next try may keep what is there.
        rm -f "$venv/setup-stamp"
        _failed "pip could not install it"
        return 1
    fi
    if ! _import_once >>"$log" 2>&1; then
        rm -f "$venv/setup-stamp"
        _failed "what pip installed can't be imported"
        return 1
    fi
    printf '%s\n' "$made_by" "$made_from" "$extras" >"$venv/setup-stamp.new"
    mv "$venv/setup-stamp.new" "$venv/setup-stamp"
    say "ready after $((SECONDS - began)) s"
}

_has_torch() { "$venv/bin/python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; }

_wants_torch() {
    case " $extras " in
        *" all "* | *" bench-codecs "* | *" dev "* | *" loading"* | *" torch"* | *" train "*) ;;
        *) return 1 ;;
    esac
}

_pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }

_choose_torch() {
    torch=torch==$default_torch
    if [ -n "${SWITCHML_TORCH:-}" ]; then
        torch=$SWITCHML_TORCH
    elif [ "$(uname -s)" = Linux ]; then
        # Elsewhere the wheel on PyPI is the CPU build. On Linux: whatever pip is configured with may have it …
        if _pip install --dry-run --no-deps --ignore-installed "$torch+cpu" >/dev/null 2>&1; then
            torch=$torch+cpu
        # … or PyTorch's own index has. (pip itself would retry an index that it can't reach for minutes.)
        elif "$venv/bin/python" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' \
            "$torch_cpu_index/torch/" 2>/dev/null; then
            arguments+=(--extra-index-url "$torch_cpu_index")
        else
            say "no CPU build of torch in reach: taking PyPI's, several GB (SWITCHML_TORCH chooses another)"
        fi
    fi
    arguments+=("$torch")
}

# Import what is imported all the time, so that it is compiled (even where PYTHONDONTWRITEBYTECODE would make every
# later process compile it again) and so that a broken install shows here.
_import_once() (
    unset PYTHONDONTWRITEBYTECODE
    export TORCH_DEVICE_BACKEND_AUTOLOAD=0  # that would import our own torch backend, whose faults are not pip's
    modules="grpc, numba, psutil, rich.console, scapy.all, simpy, zmq"
    case " $extras " in *" dev "*) modules="$modules, hypothesis, pytest, xdist.plugin" ;; esac
    local torch=pass
    if _has_torch; then
        torch="import torch._dynamo, torch.distributed, torch.nn.parallel, torch.utils.data"
    fi
    "$venv/bin/python" -c "$torch" &
    "$venv/bin/python" -c "import $modules" && wait $!
)

_failed() {
    say "$1; the end of $log:"
    # "Location … is ignored" is pip's remark on an index that lacks one package: no reason for anything.
    grep -v '^WARNING: Location .* is ignored' "$log" | tail -n 20 >&2
}
