#!/usr/bin/env bash
# The tests that need PyTorch, which scripts/test.sh leaves out where it is not installed; it is some
# gigabytes, with what it brings along. WBSP_TORCH: another wheel, as arguments of pip.
source "$(dirname "$0")/common.sh"

install test
"$python" -c 'import torch' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check ${WBSP_TORCH:-torch} ||
    fail "PyTorch cannot be installed, see above; name another wheel: WBSP_TORCH=torch==2.13.0 $0"
"$python" -m pytest -q -k torch tests/replica tests/worker/keras "$@"
