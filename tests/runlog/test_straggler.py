"""The straggler score compares speeds of computing, now and with one's own best."""

import pytest

from wbsp.core.stats import Member
from wbsp.runlog.straggler import StragglerScore


def member(samples, seconds):
    return Member(active=True, samples=samples, seconds=seconds)


def test_speed_is_measured_between_updates():
    scores = StragglerScore()
    first = scores.update({0: member(1000, 10.0), 1: member(400, 10.0)})
    assert first[0] == (100.0, 1.0, 1.0)
    assert first[1] == pytest.approx((40.0, 0.4, 1.0))
    # Worker 0 slows down to 20 a second; worker 1 continues as before and is now the best.
    second = scores.update({0: member(1200, 20.0), 1: member(800, 20.0)})
    assert second[0] == pytest.approx((20.0, 0.5, 0.2))
    assert second[1] == pytest.approx((40.0, 1.0, 1.0))
    assert scores.best(0) == 100.0 and scores.best(7) == 0.0


def test_a_silent_worker_keeps_its_last_speed():
    scores = StragglerScore()
    scores.update({0: member(1000, 10.0), 1: member(500, 10.0)})
    later = scores.update({0: member(4000, 20.0), 1: member(500, 10.0)})
    assert later[1] == pytest.approx((50.0, 50 / 300, 1.0))


def test_a_worker_without_any_speed_has_no_score():
    assert StragglerScore().update({0: member(0, 0.0)}) == {}


def test_a_worker_that_left_is_not_compared_with():
    scores = StragglerScore()
    scores.update({0: member(1000, 1.0), 1: member(100, 1.0)})
    assert scores.update({1: member(200, 2.0)})[1].vs_best == 1.0
