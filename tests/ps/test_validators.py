"""A worker that hangs while it validates an epoch is named and given up, although its heartbeats
continue; one that works is awaited, however long it takes."""

import time

import numpy as np
import pytest
from hostile_peer import Peer
from jobs import ServerJob, free_port

from wbsp.core.messages import AskWork, SharedData, Work
from wbsp.core.stats import Report
from wbsp.sync.base import Push
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.messages import codec as m

PATIENCE = 3.0  # seconds without a sign of work
IMPATIENT = f"""
import runpy
import wbsp.runlog.awaited
import wbsp.timeouts
wbsp.runlog.awaited._FIRST = 0.2
wbsp.timeouts.VALIDATOR_HANGS = {PATIENCE}
import wbsp.ps.run
wbsp.ps.run._STILL = {PATIENCE}
runpy.run_module("wbsp.ps", run_name="__main__")
"""


class Validator(Peer):
    """A worker of 8 floats that trains what it is given, and whose process may show work."""

    def enters(self, worker, data):
        self.worker, self.signs = worker, 0
        self.send(m.Hello(m.PROTOCOL, worker, {}))
        self.hears(m.Welcome)
        self.send(m.Join([TensorSpec("w", (8,))], data=data))
        if self.hears(m.Joined).send_initial:
            self.send(m.Initial(0, 8), bytes(32))
        return self

    def trains(self):
        self.send(m.AskVersion())
        self.send(AskWork(0, 0))
        work = self.hears(Work)
        push = Push(self.worker, 0, 0, 1, 4, 0.01, to=work.stop - work.start)
        self.send(m.Update(push, 0, 8), np.ones(8, np.float32).tobytes())
        self.hears(m.Ack)

    def version(self):
        """Ask for the epoch's version until there is one to validate."""
        while not (at := self.asks_version()).name:
            time.sleep(0.05)
        return at

    def asks_version(self):
        self.send(m.AskVersion(0, True))
        return self.hears(m.VersionAt)

    def beats(self, seconds, works):
        """Send heartbeats for so long; return whether the server still takes them."""
        end, waits = time.monotonic() + seconds, {"validation": 0.0}
        while (now := time.monotonic()) < end:
            self.signs += works
            waits["validation"] = 1000 + now
            zero = dict.fromkeys(("compute", "push", "pull", "wait", "data"), 0.0)
            self.send(m.Heartbeat(Report(seconds=zero | waits, signs=self.signs)))
            if isinstance(answer := self.hears(m.Alive, m.Refused), m.Refused):
                return answer.reason
            time.sleep(0.1)
        return None


@pytest.fixture
def pair(jobs):
    """pair(data) is a server with two workers; the first has trained and validates an epoch."""
    peers = []

    def make(data, trains=True):
        port = free_port()
        server = jobs.start("server", "-c", IMPATIENT, "--worker_num=2", "--sync=asp",
                            f"--port_base={port}", "--one_run", "--check_period=0.3",
                            kind=ServerJob)
        server.address, server.cwd = f"localhost:{port}", jobs.folder
        server.listens()
        one, other = (Validator(server.address) for _ in range(2))
        peers.extend((one, other))
        one.enters(0, data)
        other.enters(1, data)
        one.hears(m.Granted)
        if trains:
            one.trains()
            assert one.version().epoch == 0
        return server, one, other

    make.peers = peers
    yield make
    for peer in peers:
        peer.__exit__()


def test_a_worker_that_hangs_in_the_last_validation_is_named_and_given_up(pair):
    server, one, other = pair(SharedData(4, 4, 1))
    other.send(m.Leaving("finished", True, None))
    assert one.beats(PATIENCE + 1, works=True) is None, "it works, and is waited for"
    server.until("waiting for worker 0 to validate the last epoch; then this run ends")
    reason = one.beats(60, works=False)
    assert reason == "worker 0 was given up: it hangs: no sign of work for 3 s"
    assert server.find("worker 0: no sign of work for 3 s, and all data are trained: no longer "
                       "waiting for it to validate the last epoch")
    other.hears(m.Final)
    other.send(m.Goodbye())
    server.ends_well()


def test_another_worker_validates_in_place_of_one_that_hangs(pair):
    server, one, other = pair(SharedData(4, 4, 2, validate="wait"))
    other.send(m.AskVersion(0, True))
    assert one.beats(PATIENCE + 1, works=True) is None
    server.until("waiting for worker 0 to validate epoch 1")
    assert one.beats(PATIENCE + 3, works=False) is None, "it stays a member"
    assert other.hears(m.VersionAt).epoch == 0
    assert server.find("worker 0: no sign of work for 3 s in its validation of epoch 1; another "
                       "worker may validate that")
    server.kill()


def test_another_worker_validates_what_one_whose_process_has_ended_was_given(pair):
    data = SharedData(4, 4, 2, validate="wait")
    server, one, other = pair(data)
    other.send(m.AskVersion(0, True))
    other.waits_until_handled()
    one.__exit__()
    pair.peers.append(again := Validator(server.address))
    again.enters(0, data).hears(m.Granted)
    assert again.beats(1.0, works=True) is None
    assert other.is_answered(m.Heartbeat(None), m.VersionAt)
    assert not server.find("no sign of work")
    server.kill()


def test_results_count_that_a_worker_sends_again_after_it_has_left(pair):
    _, one, other = pair(SharedData(4, 4, 1, validate="wait"))
    one.send(m.Leaving("finished", True, None))
    one.send(m.Measured(0, {"loss": 0.5}))
    assert other.hears(m.Measured).values == {"loss": 0.5}


def test_a_worker_that_hangs_in_a_step_is_named(pair):
    server, one, _ = pair(SharedData(4, 4, 1), trains=False)
    assert one.beats(PATIENCE + 3, works=False) is None
    server.until(r"waiting for worker 0 to continue \(no sign of work for 3 s\); then training "
                 "continues; end its process if it hangs")
    server.kill()
