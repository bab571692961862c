"""Fits on shared data at two sites: the server above sets the epochs' ends, which worker validates,
and the end of the run."""

import json

import forked
import numpy as np
import pytest
from counting_worker import Plan
from jobs import ROOT

pytestmark = pytest.mark.slow

WORKER = ROOT / "tests/helpers/counting_worker.py"
N, BATCH, EPOCHS = 300, 10, 3
SECONDS = (0.01, 0.03), (0.02, 0.05)  # of a step


@pytest.fixture
def fits(jobs):
    """Starts the server above, two sites and a fit for each of their workers."""
    def start(above="pcc", inside="asp", each=2, **plan):
        top = jobs.server("--base_dir=top", workers=2, sync=above).listens()
        sites, workers = [], []
        for site in range(2):
            server = jobs.server(f"--upstream={top.address}", f"--site={site}",
                                 f"--base_dir=site{site}", workers=each, sync=inside).listens()
            folder = jobs.folder / f"site{site}"
            folder.mkdir()
            sites.append(server)
            for worker in range(each):
                told = {"n": N, "batch": BATCH, "epochs": EPOCHS,
                        "seconds": SECONDS[site][worker], **plan.get(f"{site}{worker}", {}),
                        **{name: value for name, value in plan.items() if name.isidentifier()}}
                workers.append(jobs.start(
                    f"worker{site}{worker}", WORKER,
                    Plan(server.address, worker, str(folder), hold_at=1, **told).text,
                    fork=forked.KERAS))
        for server in sites:  # none trains all before the others are there
            for worker in range(each):
                server.until(f"worker {worker} joined")
        for site in range(2):
            (jobs.folder / f"site{site}" / "go").touch()
        return top, sites, workers
    return start


def end_well(top, sites, workers):
    for job in (*workers, *sites, top):
        job.ends_well()


def finals(jobs):
    return {np.load(path).tobytes() for path in jobs.folder.glob("site?/final-?.npy")}


def epochs(job):
    """The logs of a worker's epochs."""
    return [json.loads(line[line.index("{"):]) for line in job.find("^epoch ")]


@pytest.mark.parametrize("each", [1, pytest.param(2, marks=pytest.mark.long)])
def test_one_worker_of_all_sites_validates_an_epoch_for_all(jobs, fits, each):
    top, sites, workers = fits(validate=True, each=each)
    end_well(top, sites, workers)
    assert len(finals(jobs)) == 1
    measured = {event["epoch"]: event["values"]["val_loss"] for event in top.events("measured")}
    assert len(top.events("measured")) == len(measured) and EPOCHS - 1 in measured
    for job in workers:
        told = {logs["val_epoch"] - 1: logs["val_loss"] for logs in epochs(job)
                if "val_epoch" in logs}
        assert told.items() <= measured.items()
    assert any("val_epoch" in logs for job in workers for logs in epochs(job))


@pytest.mark.long
def test_where_all_wait_for_a_validation_all_sites_have_the_results_of_each_epoch(jobs, fits):
    top, sites, workers = fits(validate=True, waits=True)
    end_well(top, sites, workers)
    measured = {event["epoch"]: event["values"]["val_loss"] for event in top.events("measured")}
    assert sorted(measured) == [*range(EPOCHS)] and len(finals(jobs)) == 1
    for job in workers:
        assert [logs.get("val_epoch") for logs in epochs(job)][-1] == EPOCHS
        for logs in epochs(job):
            assert logs["val_loss"] == measured[logs["val_epoch"] - 1]


@pytest.mark.long
def test_any_worker_ends_the_run_for_all_sites(jobs, fits):
    top, sites, workers = fits(epochs=200, **{"11": {"stop_at": 5}})
    end_well(top, sites, workers)
    assert top.find("stopping: worker 1: worker 1: enough")
    assert len(finals(jobs)) == 1
