#!/usr/bin/env bash
# The tests that need PyTorch, which scripts/test.sh leaves out where it is not installed. Installs the
# wheel for CPUs into .venv: the usual one brings CUDA along, some gigabytes.
# WBSP_TORCH: another wheel, as arguments of pip.
source "$(dirname "$0")/common.sh"

install test
"$python" -c 'import torch' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check \
        ${WBSP_TORCH:-torch --index-url https://download.pytorch.org/whl/cpu} ||
    fail "PyTorch cannot be installed, see above; name another wheel: WBSP_TORCH=torch==2.13.0+cpu $0"
"$python" -m pytest -q -k torch tests/replica tests/worker/test_callback.py "$@"
