"""The launcher's evaluator, seen from the server's side; what it does is seen in whole runs."""

import functools
import os
import pathlib
import signal
from types import SimpleNamespace

import pytest
from jobs import until

from launcher import evaluator
from launcher.evaluator import EvaluatorProcess
from wbsp import timeouts
from wbsp.ps.evaluation import EvaluatorAt

AT = EvaluatorAt("localhost:1", None, b"", pathlib.Path("model.keras"))


@pytest.mark.slow
def test_the_evaluator_ignores_signals_and_its_exit_is_reported(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    process = EvaluatorProcess(functools.partial(os._exit, 3), AT)
    for signum in (signal.SIGINT, signal.SIGTERM):  # as Ctrl-C in its terminal does, so early
        os.kill(process.pid, signum)
    assert str(until(process.problem, "its end")) == "the evaluator process ended with exit code 3"
    process.close()


def test_a_killed_evaluator_is_reported_at_once():
    process = EvaluatorProcess(functools.partial(os._exit, 3), AT)
    assert process.problem() is None
    process.kill()
    problem = until(process.problem, "its end")
    assert str(problem).endswith("was killed by signal 9 (Killed)") and not problem.fatal
    process.close()


def no_such_data():
    raise ValueError("there are no images")


@pytest.mark.slow
def test_an_evaluator_whose_data_are_wrong_ends_the_run():
    process = EvaluatorProcess(no_such_data, AT)
    problem = until(process.problem, "its end")
    assert str(problem) == "there are no images" and problem.fatal
    process.close()


class FullDisk:
    """A model on a disk that is full for some attempts."""

    def __init__(self, attempts):
        self.left = attempts

    def save(self, name):
        pathlib.Path(name).write_text("a part")
        self.left -= 1
        if self.left >= 0:
            raise OSError(28, "No space left on device")
        pathlib.Path(name).write_text("all")


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(evaluator, "say", lines.append)
    monkeypatch.setattr(evaluator, "_AGAIN", 0.0)
    return lines


def test_the_model_waits_for_space_on_a_full_disk(tmp_path, said):
    evaluator.save(FullDisk(3), tmp_path / "model.keras")
    assert [line.partition("; trying")[0] for line in said] == [
        f"cannot write {tmp_path}/model.keras: No space left on device"], "once for all attempts"
    assert [one.read_text() for one in tmp_path.iterdir()] == ["all"]


def test_a_full_disk_keeps_the_previous_model_and_is_reported(tmp_path, said, monkeypatch):
    monkeypatch.setattr(timeouts, "LAST_SAVE", 0.0)
    path = tmp_path / "model.keras"
    path.write_text("the one before")
    with pytest.raises(OSError, match=f"^cannot write {path}: No space left on device$"):
        evaluator.save(FullDisk(10), path)
    assert [one.read_text() for one in tmp_path.iterdir()] == ["the one before"] and not said


def test_an_error_of_the_model_is_no_full_disk(tmp_path):
    with pytest.raises(TypeError):
        evaluator.save(SimpleNamespace(save=lambda: None), tmp_path / "model.keras")
