"""The server's side of the progress of a site with shards, which has no floats of it."""

import numpy as np
import pytest

from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.overflow import Reach
from wbsp.ps.sharding.progress import ShardedProgress
from wbsp.tensors.site_progress import CUT, OWED, SiteProgress
from wbsp.wire.messages import sharding as s

W = np.float32([1, -2, 3])


@pytest.fixture
def told():
    return []


@pytest.fixture
def reach():
    return Reach(OuterOptimizer(), W, {}, lossless=True)


@pytest.fixture
def progress(reach, told):
    return ShardedProgress(SiteProgress(W), reach, told.append)


def test_the_cut_comes_with_what_is_collected_after_it(progress, told):
    before = progress.changes
    progress.take(None)
    assert told == [s.Cut()] and progress.cut is None
    progress.collected(before, {CUT: 7 * W})
    assert progress.cut is None, "it was of the time before"
    progress.collected(progress.changes, {CUT: 2 * W})
    assert (progress.cut == 2 * W).all()
    progress.answered()
    assert told == [s.Cut(), s.Settle()] and progress.cut is None
    progress.collected(progress.changes, {})
    assert progress.cut is None


def test_a_cut_of_the_process_before_is_taken_back(reach, told):
    progress = ShardedProgress(SiteProgress(W, 2 * W, 3 * W), reach, told.append)
    assert (progress.state()[OWED] == 3 * W).all() and list(progress.state()) == [OWED]
    progress.take_back()
    assert told == [s.Settle(back=True)] and progress.cut is None


def test_what_a_version_from_above_may_make_is_bounded(progress, reach):
    assert (progress.adopt(10 * W, None) == 10 * W).all() and not progress.dropped
    assert reach.version == 30 + 3 + 3
    reach.measured(1.0)  # of a version that was collected before
    assert reach.version == 36
    reach.since = 0.0
    reach.measured(31.0)
    assert reach.version == 31
    progress.take(None)
    progress.adopt(W, None)
    assert reach.version == 3 + 31 + 31


@pytest.mark.parametrize("lossless, rest", [(True, 0), (False, 33)])
def test_progress_that_the_server_above_cannot_use_is_dropped(told, lossless, rest):
    """What a lossy format has not sent stays."""
    reach = Reach(OuterOptimizer(), 10 * W, {}, lossless)
    progress = ShardedProgress(SiteProgress(W), reach, told.append)
    progress.adopt(W, None, drop=True)
    assert progress.dropped and reach.version == 3 + rest


def test_a_sum_that_might_not_be_finite_is_no_version(progress, reach):
    reach.version = 9e37
    progress.take(None)
    progress.adopt(np.float32([9e37, 0, 0]), None)
    assert not progress.dropped
    progress.adopt(np.float32([9e37, 0, 0]), None)
    assert progress.dropped and reach.version == pytest.approx(9e37)
