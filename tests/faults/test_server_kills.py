"""Servers that are killed at any moment and resumed: the files of the run are consistent.

`WBSP_KILLS=25` kills the server of each of the four models 25 times, for a long night;
`WBSP_KILLS_SEED` chooses when.
"""

import os
import random

import pytest
from conservation import IntegerRun, assert_conserved
from integer_replica import read_result
from jobs import Jobs, free_port, until

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.state import Totals
from wbsp.runlog.reader import read_run

KILLS = int(os.environ.get("WBSP_KILLS", "1"))
SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))
OPTIONS = {"adsp": ["--sync_option=period=0.2"]}


class Story:
    """A run over all processes of its server and of both workers."""

    def __init__(self, jobs, sync, seed):
        self.jobs, self.sync, self.seed = jobs, sync, seed
        self.port, self.life = free_port(), 0
        self.loaded = None  # the checkpoint that this life began from

    def begin(self, **plan):
        """The next processes of the server and of both workers."""
        resume = ["--resume"] if self.life else []
        self.server = self.jobs.server("--check_period=0.1", "--base_dir=run", *resume,
                                       *OPTIONS.get(self.sync, []), sync=self.sync,
                                       port=self.port).listens()
        self.path = self.server.folder / "checkpoint.safetensors"
        self.workers = [self.jobs.integer_worker(
            self.server.address, worker, seconds=0.002,
            seed=1000 * self.seed + self.life, **plan) for worker in range(2)]
        for job in self.workers:
            job.until("starts with seq")  # what it cut later is lost with the server: it forgot it
        self.life += 1

    def kill(self, steps):
        """Kill (kill -9) the server when this process of worker 0 has made this many steps, but not
        before a checkpoint exists; then kill the workers."""
        self.workers[0].until(f"step {steps} done")
        until(self.path.exists, "a checkpoint")
        for job in (self.server, *self.workers):
            job.kill()
            job.was_clean()
        self.loaded = checkpoint.load(self.path)


def check(story):
    """Events, summary and checkpoint agree, and the model is the sum of the accepted updates."""
    run = read_run(story.server.folder)
    saved = assert_conserved(IntegerRun.of_processes(run.folder, story.jobs.folder))
    state, summary = saved.state, run.summary
    accepts = [event for event in run.events if event["kind"] == "accept"]
    commits = [event["version"] for event in run.events if event["kind"] == "commit"]
    assert commits == list(range(1, state.version + 1)) and summary["version"] == commits[-1]
    times = [event["t"] for event in run.events]
    assert times == sorted(times)
    assert summary["staleness"]["pushes"] == len(accepts)
    for worker in range(2):
        own = [event for event in accepts if event["worker"] == worker]
        mine = summary["workers"][str(worker)]
        counted = {"pushes": len(own), "rejected": 0,
                   **{name: sum(event[name] for event in own) for name in ("steps", "samples")}}
        assert [event["seq"] for event in own] == list(range(len(own)))
        assert {name: mine[name] for name in counted} == counted
        kept = state.members[worker]
        assert {name: getattr(kept, name) for name in counted if name != "rejected"} | {
            "rejected": len(kept.rejected)} == counted
        assert kept.base == own[-1]["base"]
        compute = sum(event["seconds"] for event in own)
        assert mine["compute_seconds"] == pytest.approx(compute)
        assert kept.seconds == pytest.approx(compute)
        # the worker's own reports: of this process, and of its earlier ones
        totals, result = state.reports[worker], read_result(story.jobs.folder, worker)
        before = story.loaded.state.reports.get(worker, Totals())
        assert mine["pulls"] == totals.pulls > before.pulls
        assert totals.steps == before.steps + result["steps"]
        for kind, seconds in result["seconds"].items():
            assert mine["seconds"][kind] == pytest.approx(before.seconds[kind] + seconds)
    assert run.settings["id"], "by which workers know the run, in every life"


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
@pytest.mark.parametrize("sync", ["bsp", "wbsp", "pcc", "adsp"])
def test_a_killed_and_resumed_server_leaves_one_consistent_log(tmp_path, sync):
    draw = random.Random(f"{sync} {SEED}")
    with Jobs(tmp_path) as jobs:
        story = Story(jobs, sync, SEED)
        for _ in range(KILLS):
            story.begin()
            story.kill(draw.randint(5, 300))
        story.begin(steps=draw.randint(5, 50))
        for job in (*story.workers, story.server):
            job.ends_well()
        check(story)


def test_a_folder_has_one_server(tmp_path):
    with Jobs(tmp_path) as jobs:
        server = jobs.server("--base_dir=run").listens()
        second = jobs.server("--base_dir=run", "--resume").listens()
        assert second.find("no checkpoint found; starting a new run")
        assert second.folder != server.folder, "a server that still runs keeps its folder"
        second.kill()
        third = jobs.server("--base_dir=run", "--resume").listens()
        assert third.find("no checkpoint found; starting a new run")
        assert third.folder == second.folder, "a killed server holds nothing"
        assert third.find("resuming from version") == []
