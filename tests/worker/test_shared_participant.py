"""What the communication thread does while the compute thread waits."""

import threading
from dataclasses import replace

import numpy as np

from wbsp.core.agent import Adopt
from wbsp.core.participant import Participant
from wbsp.runlog.worker import WorkerLog
from wbsp.sync import Direct, WorkerRule
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.metrics import Recorder
from wbsp.worker.shared_participant import SharedParticipant

PATIENCE = 60.0  # seconds
W = np.zeros(2, np.float32)
BSP = WorkerRule("every_step", "model", "replace")


def test_each_report_writes_the_log_off_the_compute_thread(tmp_path):
    log = WorkerLog(tmp_path, 0, "asp")
    recorder = Recorder(0.0, log)
    shared = SharedParticipant(Participant(0, BSP), recorder, print, None)
    for step in range(3):  # the first line of a log is written at once
        recorder.step_done(1, 8, 0.5)
        recorder.log_step(step, 0.1)
    path = tmp_path / "wk_loss_0_asp.txt"
    assert len(path.read_text().splitlines()) == 1
    assert shared.report().steps == 3
    steps = [line.split(", ")[2] for line in path.read_text().splitlines()]
    assert steps == ["1", "2", "3"], "each as it was when it was noted"
    log.close()


def test_the_compute_thread_sleeps_until_it_has_work():
    recorder = Recorder(0.0)
    one = Participant(0, BSP)
    agent, shared = one.agent, SharedParticipant(one, recorder, print, None)
    assert shared.received(m.Granted(0)) == m.Fetch(1)
    shared.fetched(0, W, W.nbytes, 0.1)
    with shared.changed:
        assert shared.commands == [Adopt(0, "replace")]
        shared.commands.clear()
        one.step_begins()
        assert one.step_done(10, 0.5) and agent.waiting == "ack"
    recorder.enter("push")
    asleep, seen = threading.Event(), []

    def compute():
        with shared.changed:
            asleep.set()  # no message arrives before `wait` releases the lock
            while not shared.commands:
                shared.wait(PATIENCE)
                seen.append((agent.waiting, [*shared.commands]))

    thread = threading.Thread(target=compute)
    thread.start()
    assert asleep.wait(PATIENCE)
    with shared.changed:
        assert recorder._phase == "push"
    shared.acked(m.Ack(0, True, None, None, False, 1.0, 0, 1, 0), 0.1)
    with shared.changed:
        assert agent.waiting == "model" and recorder._phase == "wait"
    assert isinstance(shared.received(m.Granted(1)), m.Fetch)
    with shared.changed:
        assert recorder._phase == "pull"
    shared.fetched(1, W, W.nbytes, 0.1)
    thread.join(PATIENCE)
    assert seen == [(None, [Adopt(1, "replace")])], "it was woken once"


def test_the_input_pipeline_gets_each_piece_of_the_shared_stream_once():
    one, assignments = Participant(0, replace(BSP, shared=True)), Assignments()
    assignments.begin(None)
    shared, reader = SharedParticipant(one, Recorder(0.0), print, assignments), iter(assignments)
    for start in (0, 10, 10, 0, 20):
        shared.received(m.Directed(Direct(0, batch=10, start=start)))
    assert [next(reader) for _ in range(3)] == [(0, 10), (10, 10), (20, 10)]
    shared.received(m.Reattached(1, True, 0, 0, None))
    shared.received(m.Directed(Direct(0, batch=5, start=10)))
    assert next(reader) == (10, 5) and one.take() is None, "of a server that begins again"
