"""The evaluator's process, seen from the server's side; what it does is seen in whole runs."""

import functools
import os
import signal

import pytest
from jobs import until

from wbsp.ps.evaluation import EvaluatorError, EvaluatorProcess


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
