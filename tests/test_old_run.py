"""A run that a server of an earlier release began is gone on with, to its end.

The files in `old_run` are of an earlier release, whose server knew no secret of a run, and put
neither what is owed nor whether all have it into a checkpoint. It was killed in the middle of a run
of two integer workers, whose cuts lie beside.
"""

import shutil
from pathlib import Path

import numpy as np
from integer_replica import conserved, read_result, recorded

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.folder import SECRET, read_settings
from wbsp.runlog.reader import read_run

OLD = Path(__file__).with_name("old_run")
SIZE = 5


def test_a_run_of_an_earlier_release_goes_on_to_its_end(jobs):
    folder = jobs.folder / "runs/pcc/run-001"
    folder.mkdir(parents=True)
    for name in ("run.json", "checkpoint.safetensors", "events.jsonl"):
        shutil.copy(OLD / name, folder)
    old = checkpoint.load(folder / "checkpoint.safetensors")
    before = read_settings(folder, with_secret=True)
    assert SECRET not in before and old.state.owed is None, "no old run at all"
    cuts = {worker: recorded(OLD, worker)[:old.state.next_seq[worker]]
            for worker in range(2)}

    server = jobs.server("--resume").listens()
    workers = [jobs.integer_worker(server.address, worker, steps=20, size=SIZE, seed=7)
               for worker in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert server.folder == folder and server.find(f"going on from version {old.state.version}")
    for worker, job in enumerate(workers):
        assert job.find(f"starts with seq {len(cuts[worker])} ")
        cuts[worker] += recorded(jobs.folder, worker)

    run, saved = read_run(folder), checkpoint.load(folder / "checkpoint.safetensors")
    after = read_settings(folder, with_secret=True)
    assert after["id"] == before["id"] and after["ended"] and SECRET in after
    assert saved.state.over and run.summary["workers"]["0"]["steps"] == (
        old.state.steps[0] + 20)
    accepts = [event for event in run.events if event["kind"] == "accept"]
    initial = 2 * saved.vector[-1] - saved.vector[-2]  # behind the last of the pattern comes a 0
    conserved(np.full(SIZE, initial), accepts, cuts, saved.vector)
    for worker in range(2):
        assert read_result(jobs.folder, worker)["final"] == saved.vector.tolist()
