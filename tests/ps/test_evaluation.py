"""The evaluator's process, seen from the server's side; what it does is seen in whole runs."""

import functools
import os
import pathlib
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import until

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.process.host import HOST
from wbsp.ps import evaluation, full_disk
from wbsp.ps.evaluation import (
    Evaluation,
    Evaluations,
    EvaluatorError,
    EvaluatorProcess,
    EvaluatorWatch,
)
from wbsp.sync import create


@pytest.mark.slow
def test_the_evaluator_ignores_signals_and_its_exit_is_reported(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    process = EvaluatorProcess(functools.partial(os._exit, 3))
    for signum in (signal.SIGINT, signal.SIGTERM):  # as Ctrl-C in its terminal does, so early
        os.kill(process.pid, signum)
    with pytest.raises(EvaluatorError, match="^the evaluator process ended with exit code 3$"):
        until(process.initial, "its end")
    process.close()


def test_a_killed_evaluator_is_reported_at_once():
    process = EvaluatorProcess(functools.partial(os._exit, 3))
    process.kill()
    with pytest.raises(EvaluatorError, match=r"was killed by signal 9 \(Killed\)$"):
        until(process.initial, "its end")
    process.close()


class FullDisk:
    """An evaluator on a disk that is full for some attempts."""

    def __init__(self, attempts):
        self.left, self.saved = attempts, False

    def evaluate(self, snapshot):
        return Evaluation(1.0, 0.5, 0.9)

    def save(self, snapshot, path):
        self.left -= 1
        if self.left >= 0:
            raise OSError(28, "No space left on device")
        self.saved = True

    def signs(self):
        return None

    def close(self):
        pass


def complete(evaluator, wanted=lambda: True):
    """Complete a run with this evaluator; why `model.keras` is missing, and the lines."""
    said = []
    evaluations = Evaluations(Engine(create("asp"), Store(np.zeros(3, np.float32), 0), 1), [],
                              EvaluatorWatch(evaluator, said.append, HOST), 1.0,
                              lambda *result: None, said.append)
    evaluations.complete(0.0, pathlib.Path("model.keras"), wanted)
    return evaluations.missing, said


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(full_disk, "_AGAIN", 0.0)


def test_a_full_disk_is_waited_for_with_the_model(at_once):
    evaluator = FullDisk(3)
    missing, said = complete(evaluator)
    assert evaluator.saved and missing is None
    assert [line.partition("; trying")[0] for line in said] == [
        "cannot write model.keras: No space left on device"], "one line for all attempts"


def test_a_disk_that_stays_full_leaves_no_model_and_says_why(at_once, monkeypatch):
    monkeypatch.setattr(timeouts, "LAST_SAVE", 0.0)
    assert complete(FullDisk(10)) == ("cannot write model.keras: No space left on device", [])


def test_a_signal_ends_the_wait_for_a_full_disk(monkeypatch):
    assert complete(FullDisk(10), lambda: False)[0] == "interrupted"


def test_a_model_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("the one before")

    def save(name):
        pathlib.Path(name).write_text("a part")
        raise OSError(28, "No space left on device")

    assert evaluation._saved(SimpleNamespace(save=save), str(path)) == (
        28, "No space left on device")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["the one before"]
    model = SimpleNamespace(save=lambda name: pathlib.Path(name).write_text("all"))
    assert evaluation._saved(model, str(path)) == ()
    assert [one.read_text() for one in tmp_path.iterdir()] == ["all"]
