"""Every synchronization model over real processes: three unequal workers, a death and a return; and
every rule of a worker with Keras."""

import json
from concurrent.futures import ThreadPoolExecutor

import forked
import pytest
from conservation import IntegerRun, assert_conserved
from integer_replica import read_result
from jobs import PLAIN, ROOT, Jobs, until

from wbsp.sync import MODELS, with_batch_size

# Options for a run of seconds, where the default is meant for longer runs.
OPTIONS = {"adsp": "period=1", "dssp": "s_u=6", "ssp": "s=5", "localsgd": "tau=3",
           "elasticbsp": "r=3", "decoupled": "tau=3"}
REJECTING = "ksync", "msync", "rennala", "ringmaster"  # what comes late or stale
# The others hold when they have made so many steps, of which worker 2 must have made five by then
# whatever its model has it wait for: 12 of theirs in the time of one, on a busy machine.
HOLD, STEPS_OF_OTHERS = 60, 80
AT_ONCE = 5  # clusters side by side: what takes long is waiting until a death is noticed


def survives(sync: str, folder) -> None:
    """Worker 2 is killed, lost, and restarted; the others continue, and all end in good order."""
    folder.mkdir()
    flags = [*PLAIN, *([f"--sync_option={OPTIONS[sync]}"] if sync in OPTIONS else [])]
    with Jobs(folder) as jobs:
        server = jobs.server(*flags, sync=sync, workers=3)
        doomed = jobs.integer_worker(server.address, 2, die_at=5, seconds=0.04)
        others = [jobs.integer_worker(server.address, worker, hold_at=HOLD,
                                      steps=STEPS_OF_OTHERS, seconds=seconds)
                  for worker, seconds in enumerate([0.01, 0.02])]
        doomed.ends()
        server.until("worker 2 was lost")
        back = jobs.integer_worker(server.address, 2, steps=12, seconds=0.04, seed=1)
        until(lambda: len(server.find("worker 2 joined")) == 2, "worker 2 to return")
        (jobs.folder / "go").touch()
        for job in (*others, back, server):
            job.ends_well()
        accepts, rejects = server.events("accept"), server.events("reject")
    returned = [event["t"] for event in server.events("join") if event["worker"] == 2][1]
    assert contributors(sync, accepts, rejects, returned) == {0, 1, 2}, "all contribute"
    for worker, steps in enumerate([STEPS_OF_OTHERS, STEPS_OF_OTHERS, 12]):
        assert read_result(folder, worker)["steps"] == steps
    assert_conserved(IntegerRun.of_processes(server.folder, folder))


def contributors(sync: str, accepts, rejects, since: float = 0.0) -> set[int]:
    """Workers whose pushes were accepted; under models that may reject all pushes of the slowest
    workers, all workers that pushed."""
    counted = [*accepts, *rejects] if sync in REJECTING else accepts
    return {event["worker"] for event in counted if event["t"] > since}


def live_and_die(models, folder) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {sync: pool.submit(survives, sync, folder / sync) for sync in models}
    failed = {sync: error for sync, run in runs.items() if (error := run.exception())}
    assert not failed, failed


@pytest.mark.slow
def test_a_third_of_the_models_survive_a_death_and_a_return(tmp_path):
    live_and_die([*MODELS][::3], tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_the_other_models_survive_a_death_and_a_return(tmp_path):
    live_and_die([sync for place, sync in enumerate(MODELS) if place % 3], tmp_path)


OFTEN = "auto",  # the others at night; pcc is that of most tests with Keras


def one_of_each_rule() -> list:
    """A model for each rule that workers follow; a worker knows only the rule of its model."""
    rules = {model(**with_batch_size(model, 128, {})).rule: sync
             for sync, model in reversed(MODELS.items())}
    return [sync if sync in OFTEN else pytest.param(sync, marks=pytest.mark.long)
            for sync in MODELS if sync in rules.values()]


# These, and the learning rate, are chosen such that every model learns; none is tuned for one. At
# twice the rate nbsync, whose updates are a version late, swings too far to predict its end.
STEPS = [160, 40]  # mini-batches of each worker
PAUSES = [0.0, 0.06]  # seconds before each
BATCH = 64


@pytest.mark.slow
@pytest.mark.parametrize("sync", one_of_each_rule())
def test_every_rule_trains_two_unequal_workers(sync, jobs):
    flags = [f"--sync_option={OPTIONS[sync]}"] if sync in OPTIONS else []
    server = jobs.server(*flags, sync=sync).listens()
    workers = [jobs.start(f"worker{index}", ROOT / "tests/helpers/keras_worker.py", json.dumps({
        "address": server.address, "worker": index, "steps": STEPS[index], "pause": PAUSES[index],
        "batch": BATCH}), fork=forked.KERAS) for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    results = [json.loads(job.find("^RESULT ")[0].partition(" ")[2]) for job in workers]
    contributed = contributors(sync, server.events("accept"), server.events("reject"))
    assert len({one["digest"] for one in results}) == 1, "all end with the same version"
    assert results[0]["accuracy"] >= 0.25, "ten classes: chance is 0.1; most reach 0.65"
    assert contributed == {0, 1}
