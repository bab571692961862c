"""The loss that workers report, as a mean over all that was trained in a period."""

import math

import pytest

from wbsp.core.stats import Report
from wbsp.ps.training_loss import TrainingLoss


def test_each_period_reports_the_mean_over_all_workers_samples():
    reports, told = {}, []
    loss = TrainingLoss(5.0, reports, lambda *what: told.append(what))
    loss.poll(0.0)
    fast, slow = reports.setdefault(0, Report()), reports.setdefault(1, Report())
    for _ in range(3):
        fast.count_steps(1, 10, 2.0)
    slow.count_steps(1, 10, 6.0)
    loss.poll(4.0)
    assert told == [], "the period is not over"
    loss.poll(5.0)
    assert told == [(3.0, 40)]
    fast.count_steps(1, 10, math.nan)  # Keras has no loss, or it is not finite
    loss.poll(10.0)
    assert told == [(3.0, 40)] and loss.newest == 3.0
    fast.count_steps(2, 20, 1.0)
    loss.tell()
    assert told[1:] == [(1.0, 20)] and loss.newest == 1.0


def test_repeated_steps_of_a_lost_worker_are_logged_once():
    reports, told = {0: Report()}, []
    reports[0].count_steps(1, 8, 4.0)
    loss = TrainingLoss(1.0, reports, lambda *what: told.append(what))
    loss.tell()
    assert told == [], "a server that resumes from a checkpoint has sent it before"
    reports[0] = Report()  # its newest report was lost
    loss.tell()
    reports[0].count_steps(2, 16, 3.0)
    loss.tell()
    assert told == [(pytest.approx(2.0), 8)]
