#!/usr/bin/env bash
# Run the tests under coverage.py, and list the files of wbsp/ of which less than 80 % of the lines ran,
# the least covered first. Lines that a process started by a test runs count, too, unless it is killed.
#
#   scripts/coverage.sh                 all tests; they take longer than in scripts/test.sh
#   scripts/coverage.sh tests/core      these
#
# The list is also in build/coverage/list.md; build/coverage/index.html shows the lines that did not run.
source "$(dirname "$0")/common.sh"

LEAST=80

install test
"$python" -c 'import sys, coverage; sys.exit(coverage.version_info < (7, 10))' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check 'coverage>=7.10' ||
    fail "coverage.py cannot be installed, see above"
rm -rf build/coverage
mkdir -p build/coverage
export COVERAGE_FILE=$PWD/build/coverage/data # processes that tests start work in other folders
status=0
"$python" -m coverage run -m pytest -q -n 4 --dist loadscope --no-loadscope-reorder "$@" || status=$?
"$python" -m coverage combine --quiet || fail "no test ran code of wbsp/"
"$python" -m coverage html --quiet
"$python" -m coverage report --sort=cover --format=markdown |
    awk -F '|' -v least=$LEAST 'NR <= 2 || /TOTAL/ || $5 + 0 < least' | tee build/coverage/list.md
exit $status
