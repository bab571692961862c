#!/usr/bin/env bash
# The tests of the laboratory, and its types. Arguments are pytest's.
source "$(dirname "$0")/../scripts/common.sh"

install test
# What it needs beside wbsp.
if [ ! .venv/wbsp-lab -nt lab/pyproject.toml ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile --editable lab ||
        fail "the installation failed, see above"
    touch .venv/wbsp-lab
fi
status=0
"$python" -m ruff check lab || status=$?
"$python" -m mypy --config-file lab/pyproject.toml || status=$?
MYPYPATH=lab "$python" -m mypy --config-file lab/pyproject.toml --package rivals --package beside ||
    status=$?
"$python" -m pytest -q -n 2 --dist loadscope --durations=10 "$@" lab/tests || status=$?
exit $status
