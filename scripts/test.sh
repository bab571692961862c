#!/usr/bin/env bash
# Everything that must hold before a commit: ruff, the type checker, then all tests, the slow ones
# included.
source "$(dirname "$0")/common.sh"

install test
status=0
"$python" -m ruff check . || status=$?
"$python" -m mypy &
types=$!
# Beside it, one process compiles the tests and what they import; otherwise each of the five below
# would.
"$python" -m pytest -q --collect-only >/dev/null || true
wait $types || status=$?
"$python" -m pytest -q -n 5 --dist loadscope --no-loadscope-reorder --durations=10 || status=$?
exit $status
