"""A server and its standby: one of them is killed in mid-run, and the workers' processes go on.

Each worker writes down what it cut, and the weight of each push that was answered; the final model
must be W_0 and the sum of these, each once, to the last bit.
"""

import json
import signal

import numpy as np
import pytest
from integers import UNIT, pattern, read_result, recorded, weights
from jobs import free_port, until

from wbsp.ps import checkpoint

NEVER = "--check_period=3600"  # nothing but W_0 is written before the end


class Pair:
    """A server, its standby, and workers that know both addresses."""

    def __init__(self, jobs, sync="pcc", workers=2, standby=True):
        self.jobs, self.sync, self.number = jobs, sync, workers
        self.ports = free_port(), free_port()
        self.addresses = [f"localhost:{port}" for port in self.ports]
        self.server = self.start_server().listens()
        self.standby = self.start_standby() if standby else None
        self.planned, self.workers = {}, []

    def start_server(self, *flags):
        return self.jobs.server(NEVER, "--base_dir=run", *flags, sync=self.sync,
                                workers=self.number, port=self.ports[0])

    def start_standby(self, *flags):
        standby = self.jobs.server(NEVER, "--base_dir=run", f"--standby_of={self.addresses[0]}",
                                   *flags, sync=self.sync, workers=self.number, port=self.ports[1])
        return standby.listens()

    def worker(self, steps, **plan):
        index = len(self.workers)
        self.planned[index] = steps
        job = self.jobs.integer_worker(",".join(self.addresses), index, steps=steps, **plan)
        self.workers.append(job)
        return job

    def go(self):
        (self.jobs.folder / "go").touch()

    def ends(self, *servers):
        """All end in good order, and agree; the first of the servers has served last."""
        for job in (*self.workers, *servers):
            job.ends_well()
        saved = checkpoint.load(servers[0].folder / "checkpoint.safetensors")
        folder = self.jobs.folder
        results = [read_result(folder, worker) for worker in self.planned]
        initial, total = np.array(results[0]["first"]), 0
        for worker, result in enumerate(results):
            assert result["steps"] == saved.state["steps"][str(worker)] == self.planned[worker]
            assert result["final"] == saved.vector.tolist()
            assert result["version"] == saved.state["version"]
            cuts, told = recorded(folder, worker), weights(folder, worker)
            assert sorted(told) == list(range(len(cuts))), "each push was answered, once"
            assert saved.state["next_seq"][str(worker)] == len(cuts)
            for seq, cut in enumerate(cuts):
                share = UNIT * told[seq] * cut
                assert abs(share - round(share)) < 1e-9
                total += round(share)
        assert np.array_equal(saved.vector, initial + total * pattern(initial.size))
        return saved


@pytest.mark.parametrize("sync", ["pcc", "wbsp", "bsp", "asp"])
def test_a_standby_takes_over_and_nothing_is_lost(jobs, sync):
    pair = Pair(jobs, sync)
    workers = [pair.worker(120, seconds=0.01, hold_at=90), pair.worker(80, seconds=0.015)]
    pair.standby.until("holding version")
    workers[0].until("step 30 done")
    pair.server.kill()
    pair.standby.until("taking over from the server at .*: its process has ended")
    pair.go()
    pair.ends(pair.standby)
    assert [e["epoch"] for e in pair.standby.events("took_over")] == [2]
    assert {e["worker"] for e in pair.standby.events("reattach")} == {0, 1}
    # without the standby, all would be resent from W_0 on
    assert all(e["first"] > 0 for e in pair.standby.events("resent"))


def test_the_standby_may_die(jobs):
    pair = Pair(jobs)
    workers = [pair.worker(120, seconds=0.01, hold_at=90), pair.worker(80, seconds=0.015)]
    pair.standby.until("holding version")
    workers[0].until("step 30 done")
    pair.standby.kill()
    pair.server.until("the standby at .* has ended; going on without one")
    pair.go()
    pair.ends(pair.server)
    assert [e["epoch"] for e in pair.server.events("alone")] == [3]


def test_all_end_well_where_nobody_dies(jobs):
    pair = Pair(jobs)
    for _ in range(2):
        pair.worker(60, seconds=0.005)
    pair.ends(pair.server, pair.standby)
    assert pair.standby.find("the run has ended: all workers finished")


def test_they_change_places_again_and_again(jobs):
    """Who was killed is started again by the same command, and becomes the other's standby."""
    pair = Pair(jobs)
    workers = [pair.worker(400, seconds=0.01, hold_at=380), pair.worker(300, seconds=0.01)]
    pair.standby.until("holding version")
    workers[0].until("step 30 done")
    pair.server.kill()
    pair.standby.until("is back")
    pair.server = pair.start_server("--resume")
    pair.server.until("holding version")
    workers[0].until("step 150 done")
    pair.standby.kill()
    pair.server.until("taking over from the server at .*: its process has ended")
    pair.standby = pair.start_standby("--resume")
    pair.standby.until("holding version")
    pair.go()
    pair.ends(pair.server, pair.standby)


def test_a_server_that_is_started_again_at_once_yields_to_its_standby(jobs):
    """Its checkpoint is older than what the standby holds."""
    pair = Pair(jobs)
    workers = [pair.worker(120, seconds=0.01, hold_at=90), pair.worker(80, seconds=0.015)]
    pair.standby.until("holding version")
    workers[0].until("step 30 done")
    pair.standby.signal(signal.SIGSTOP)
    pair.server.kill()
    pair.server = pair.start_server("--resume")
    pair.server.until("in waiting for the server at")
    pair.standby.signal(signal.SIGCONT)
    pair.standby.until("taking over from the server at")
    pair.go()
    pair.ends(pair.standby, pair.server)
