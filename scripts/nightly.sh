#!/usr/bin/env bash
# All that is too long for every commit: one line a part, with its time and result; what it says is in
# nightly/PART.log. The exit code is not zero if a part failed.
#
#   scripts/nightly.sh              all parts
#   scripts/nightly.sh kills ray    these
#
# WBSP_NIGHT: seconds after which a part is ended and has failed (default: 14400). WBSP_MINUTES: of the
# part endurance (default: 60). WBSP_RUNS: of the simulation (default: 20000). WBSP_SHARED_RUNS: of the
# part shared (default: 200).
source "$(dirname "$0")/common.sh"

PARTS="simulation kills shared long cuts ssh ray slurm endurance imagenet gpu lab claims properties docs coverage"

# Each part: can_PART says in a line why it cannot run here, or nothing; run_PART runs it.
tests() { "$python" -m pytest -q --timeout=0 -p no:cacheprovider "$@"; }

run_simulation() {
    "$python" tests/simulation --runs="${WBSP_RUNS:-20000}" &&
        WBSP_SITE_RUNS=5000 tests tests/simulation/test_site_seeds.py
}
run_kills() {
    WBSP_KILLS=50 tests -n 2 tests/faults/test_server_kills.py tests/faults/test_standby.py \
        tests/faults/test_shards.py tests/faults/test_sparse_kills.py &&
        WBSP_KILLS=10 tests -n 2 tests/faults/test_sites.py tests/faults/test_shared_sites.py &&
        WBSP_KILLS=1 tests -n 2 tests/faults/test_death_points.py
}
run_shared() {
    WBSP_SHARED_RUNS=${WBSP_SHARED_RUNS:-200} tests -n 2 tests/faults/test_shared_runs.py
}
run_long() {
    WBSP_LONG=1 tests -m long &&
        WBSP_LONG=1 tests tests/faults/test_reattach.py tests/simulation/test_shared_data.py \
            tests/simulate/nodes/test_virtual_shared_sites.py &&
        tests -k torch tests/replica tests/worker
}
run_cuts() {
    WBSP_CUTS=1 tests -n 4 tests/faults/test_partitions.py &&
        WBSP_CUTS=1 tests -n 2 tests/faults/test_site_cuts.py
}
run_ssh() { WBSP_SSH=1 tests tests/run/test_run_hosts.py; }
run_ray() { WBSP_RAY=1 tests tests/ray; }
run_slurm() { WBSP_SLURM=1 tests tests/deploy/test_slurm.py; }
run_endurance() { WBSP_MINUTES=${WBSP_MINUTES:-60} tests tests/faults/test_endurance.py; }
run_imagenet() { WBSP_IMAGENET=1 tests tests/test_imagenet_launcher.py; }
run_gpu() { WBSP_BENCHMARKS=1 tests tests/test_gpu_check.py; }
run_lab() { WBSP_BENCHMARKS=1 WBSP_REPORTS=1 WBSP_LONG=1 lab/test.sh --timeout=0 -p no:cacheprovider; }
run_claims() { WBSP_CLAIMS=1 tests -n 2 tests/test_claims.py; }
run_properties() {
    tests --hypothesis-profile=night -n 3 tests/sync tests/wire tests/core/test_store.py
}

run_docs() {
    WBSP_DOCS=1 tests tests/test_pages.py tests/test_site.py tests/test_docs.py \
        tests/test_first_training.py tests/watch/test_trackers.py
}

run_coverage() { scripts/coverage.sh; }

can_lab() {
    [ -d lab ] || echo "this checkout has no lab/"
}
can_docs() {
    "$python" -c 'import mkdocstrings' 2>/dev/null || echo "mkdocs is not installed: pip install -e '.[docs]'"
}
can_cuts() {
    [ "$(id -u)" = 0 ] || echo "it needs root, for network namespaces"
}
can_ssh() {
    if [ "$(id -u)" != 0 ]; then echo "it needs root, for network namespaces"
    elif [ ! -x /usr/sbin/sshd ]; then
        echo "there is no sshd; on Debian: python tests/helpers/ssh_hosts.py --install"
    fi
}
can_slurm() {
    if [ "$(id -u)" != 0 ]; then echo "it needs root"
    elif ! command -v slurmctld >/dev/null; then
        echo "there is no Slurm; on Debian: python tests/helpers/slurm.py --install"
    fi
}
can_ray() {
    "$python" -c 'import ray' 2>/dev/null || echo "Ray is not installed: pip install 'ray[default]'"
}

for part in "$@"; do
    case " $PARTS " in *" $part "*) ;; *) fail "there is no part $part; there are: $PARTS" ;; esac
done
install test
mkdir -p nightly
status=0
for part in ${@:-$PARTS}; do
    why=
    if declare -F "can_$part" >/dev/null; then why=$("can_$part"); fi
    if [ -n "$why" ]; then
        printf '%-12s %8s  not here: %s\n' "$part" - "$why"
        continue
    fi
    begin=$SECONDS result=0
    # a shell of its own, so that a part that hangs can be ended with all that it has started
    export -f tests "run_$part"
    python=$python timeout --kill-after=30 "${WBSP_NIGHT:-14400}" bash -c "run_$part" \
        >"nightly/$part.log" 2>&1 </dev/null || result=$?
    case $result in
        0) word="passed: $(tail -n 1 "nightly/$part.log")" ;;
        124 | 137) word="FAILED: not done after ${WBSP_NIGHT:-14400} s; see nightly/$part.log" status=1 ;;
        *) word="FAILED with $result; see nightly/$part.log" status=1 ;;
    esac
    printf '%-12s %7ds  %s\n' "$part" $((SECONDS - begin)) "$word"
done
exit $status
