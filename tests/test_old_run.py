"""A run that a server of an earlier release began is gone on with, to its end.

The files in `old_run` are of an earlier release, whose server knew no secret of a run, and put
neither what is owed nor whether all have it into a checkpoint. It was killed in the middle of a run
of two integer workers, whose cuts are in the same folder.
"""

import shutil
from pathlib import Path

from conservation import IntegerRun, assert_conserved

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.folder import SECRET, read_settings
from wbsp.runlog.reader import read_run

OLD = Path(__file__).with_name("old_run")


def test_a_run_of_an_earlier_release_continues_to_its_end(jobs):
    folder = jobs.folder / "runs/pcc/run-001"
    folder.mkdir(parents=True)
    for name in ("run.json", "checkpoint.safetensors", "events.jsonl"):
        shutil.copy(OLD / name, folder)
    old = checkpoint.load(folder / "checkpoint.safetensors")
    before = read_settings(folder, with_secret=True)
    assert SECRET not in before and old.state.owed is None, "no old run at all"
    for worker in range(2):
        shutil.copy(OLD / f"cuts-{worker}.jsonl", jobs.folder)

    server = jobs.server("--resume").listens()
    workers = [jobs.integer_worker(server.address, worker, steps=20, seed=7)
               for worker in range(2)]
    for job in (*workers, server):
        job.ends_well()
    assert server.folder == folder and server.find(f"resuming from version {old.state.version}")
    for worker, job in enumerate(workers):
        assert job.find(f"starts with seq {old.state.next_seq[worker]} ")

    run, saved = read_run(folder), assert_conserved(IntegerRun.of_processes(folder, jobs.folder))
    after = read_settings(folder, with_secret=True)
    assert after["id"] == before["id"] and after["ended"] and SECRET in after
    assert saved.state.over and run.summary["workers"]["0"]["steps"] == (
        old.state.members[0].steps + 20)
