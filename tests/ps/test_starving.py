"""Workers whose pushes a model never accepts."""

import pytest

from wbsp.core.decisions import FAILED
from wbsp.core.work_ledger import NOT_OWN
from wbsp.ps.starving import PUSHES, SECONDS, Starving
from wbsp.sync.base import NOT_FINITE, TOO_LARGE


def rejected(starving, pushes, seconds, reason="late", begin=0.0):
    """The finding for pushes that are rejected one by one, over this number of seconds."""
    times = [begin + seconds * number / (pushes - 1) for number in range(pushes)]
    return [one for one in (starving.rejected(0, reason, t) for t in times) if one]


def test_a_starving_worker_is_reported_once():
    starving = Starving()
    assert rejected(starving, 4 * PUSHES, 2 * SECONDS) == [(2 * PUSHES + 1, pytest.approx(60, 2))]
    starving.accepted(0)
    assert rejected(starving, 4 * PUSHES, 2 * SECONDS, begin=1000) == []


@pytest.mark.parametrize(("pushes", "seconds"), [(PUSHES - 1, 9 * SECONDS), (99, SECONDS - 1)])
def test_a_few_rejections_or_a_short_time_are_not_reported(pushes, seconds):
    assert not rejected(Starving(), pushes, seconds)


def test_an_accepted_push_ends_the_starvation():
    starving = Starving()
    assert not rejected(starving, 50, 50)
    starving.accepted(0)
    assert not rejected(starving, 50, 50, begin=51)


@pytest.mark.parametrize("reason", [NOT_FINITE, TOO_LARGE, FAILED, NOT_OWN])
def test_rejections_for_other_reasons_are_not_starvation(reason):
    assert not rejected(Starving(), 99, 9 * SECONDS, reason)
