# Sourced by the scripts beside it: the virtual environment, and three processes that live and die
# together. Works with the bash 3.2 of macOS.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
pids=() # what was started and has not ended; `names` and `logs` have the same indices
names=()
logs=()
unfinished= # a folder that must not stay if the script ends now
# The installation leaves it to the first import of a module to compile it, once and for all.
export PYTHONDONTWRITEBYTECODE=

trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# install [EXTRA]: make .venv and install wbsp[EXTRA] into it, unless that was done before.
install() {
    local host=${PYTHON:-python3} stamp=.venv/wbsp-${1:-plain}
    [ "$stamp" -nt pyproject.toml ] && return
    if [ ! -e .venv ]; then
        echo "making the virtual environment .venv"
        "$host" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
            fail "$host is not Python 3.10 or newer; install one, and name it: PYTHON=python3.12 $0"
        unfinished=.venv
        "$host" -m venv .venv || fail "$host cannot make a virtual environment; on Debian and" \
            "Ubuntu: apt install python3-venv"
        unfinished=
    fi
    "$python" -m pip --version >/dev/null 2>&1 || fail ".venv is not complete; remove it" \
        "(rm -r .venv) and start again"
    echo "installing wbsp${1:+[$1]} into .venv; TensorFlow is large: the first time takes minutes"
    # Most modules of TensorFlow, JAX and Ray are never imported; compiling all takes half a minute.
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --editable ".${1:+[$1]}" ||
        fail "the installation failed, see above; where this Python is too new for TensorFlow:" \
            "rm -r .venv, and name an older one: PYTHON=python3.12 $0"
    touch "$stamp"
    echo "installed after $SECONDS s"
}

# start NAME LOG FLAG...: one process of the launcher; LOG "-" is the terminal. It gets a process
# group of its own, because a Ctrl-C that came both from the terminal and from `stop` would be two,
# and the second one means "at once".
start() {
    local name=$1 log=$2
    shift 2
    set -- "$python" -c 'import os, sys; os.setpgrp(); os.execv(sys.argv[1], sys.argv[1:])' \
        "$python" -u runcifar10gpu.py "$@"
    if [ "$log" = - ]; then "$@" </dev/null & else "$@" </dev/null >"$log" 2>&1 & fi
    pids+=($!)
    names+=("$name")
    logs+=("$log")
}

# await: return when everything has ended well; the first that fails ends the script.
await() {
    local i status
    while [ ${#pids[@]} -gt 0 ]; do
        sleep 0.2
        for i in "${!pids[@]}"; do
            kill -0 "${pids[i]}" 2>/dev/null && continue
            status=0
            wait "${pids[i]}" || status=$?
            unset "pids[i]"
            [ $status -eq 0 ] && continue
            [ "${logs[i]}" = - ] || tail -n 3 "${logs[i]}" >&2
            fail "${names[i]} ended with exit code $status"
        done
    done
}

# stop: called when the script ends, for any reason; ends what still runs, in good order if it can.
stop() {
    [ -z "$unfinished" ] || rm -rf "$unfinished"
    [ ${#pids[@]} -gt 0 ] || return 0
    local patience=$((SECONDS + 30))
    trap 'patience=0' HUP INT TERM
    echo "stopping; Ctrl-C again to end at once" >&2
    kill "${pids[@]}" 2>/dev/null || true
    while [ $SECONDS -lt $patience ] && kill -0 "${pids[@]}" 2>/dev/null; do sleep 0.2 || true; done
    kill -KILL "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
}

# gpus: their indices, comma-separated, from CUDA_VISIBLE_DEVICES or else nvidia-smi; often none.
gpus() {
    echo "${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null |
        paste -s -d , -)}"
}

# train BASE_DIR FLAG_OF_WORKER_1 SERVER_FLAG...: a server and two workers, from start to end. The
# workers share out the GPUs.
train() {
    local base=$1 odd=$2 devices port
    shift 2
    IFS=', ' read -r -a devices <<<"$(gpus)"
    [ ${#devices[@]} -gt 0 ] || devices=('') # the CPU
    port=$("$python" -c 'import socket
print(socket.create_server(("localhost", 0)).getsockname()[1])')
    mkdir -p "runs/$base"
    CUDA_VISIBLE_DEVICES='' start "the server" - --job_name=ps --worker_num=2 "$@" \
        --base_dir="$base" --port_base="$port"
    CUDA_VISIBLE_DEVICES=${devices[0]} start "worker 0" "runs/$base/worker-0.log" \
        --job_name=worker --worker_index=0 --port_base="$port"
    CUDA_VISIBLE_DEVICES=${devices[1 % ${#devices[@]}]} start "worker 1" "runs/$base/worker-1.log" \
        --job_name=worker --worker_index=1 --port_base="$port" "$odd"
    await
}

# published H [SYNC] SERVER_FLAG...: the published CIFAR-10 experiment with the sleeps H.
published() {
    local sleeps=$1 sync=wbsp
    shift
    case ${1:--} in
        -*) ;;
        *) sync=$1 && shift ;;
    esac
    install "$([ -z "$(gpus)" ] || echo cuda)"
    train "$(echo "$sleeps" | tr H h)/$sync" --sleep_time=0 --heterogeneity="$sleeps" "$@"
}
