"""The ratios behind the time-to-target bars."""

import pytest

from wbsp.core.goal import Goal
from wbsp.figures.load import gather, times_to


def reaching(t):
    """An accuracy that passes 0.5 right before the evaluation at `t`."""
    return lambda now: 0.6 if now >= t - 0.01 else 0.4


def test_times_are_means_over_seeds_compared_with_the_fastest_rival(make_run):
    statistics = gather([make_run("b0", "bsp", 0, accuracy=reaching(9.9)),
                    make_run("s0", "ssp", 0, accuracy=reaching(7.9)),
                    make_run("w0", "wbsp", 0, accuracy=reaching(3.9)),
                    make_run("w1", "wbsp", 1, accuracy=reaching(5.9)),
                    make_run("p0", "pcc", 0, accuracy=reaching(2.9))])
    result = {r.group: (r.mean, r.rival, r.ratio) for r in times_to(statistics, Goal.of(0.5))}
    assert list(result) == ["pcc", "wbsp", "ssp", "bsp"]
    assert result["wbsp"] == pytest.approx((4.9, "ssp", 4.9 / 7.9))  # pcc is another form of it
    assert result["pcc"] == pytest.approx((2.9, "ssp", 2.9 / 7.9))
    assert result["bsp"] == pytest.approx((9.9, "pcc", 9.9 / 2.9))


def test_both_forms_of_wbsp_are_compared_without_other_runs(make_run):
    statistics = gather([make_run("w", "wbsp", accuracy=reaching(3.9)),
                    make_run("p", "pcc", accuracy=reaching(1.9))])
    assert [(r.group, r.rival) for r in times_to(statistics, Goal.of(0.5))] == [("pcc", "wbsp"),
                                                                       ("wbsp", "pcc")]


def test_a_group_that_did_not_always_reach_the_target_is_no_rival_and_has_no_ratio(make_run):
    statistics = gather([make_run("w", "wbsp", accuracy=reaching(9.9)),
                    make_run("a0", "asp", 0, accuracy=reaching(1.9)),
                    make_run("a1", "asp", 1, accuracy=lambda t: 0.45),
                    make_run("b", "bsp", accuracy=lambda t: 0.3)])
    wbsp, asp, bsp = times_to(statistics, Goal.of(0.5))
    assert (asp.times, asp.runs, asp.ratio) == (pytest.approx([1.9]), 2, None)
    assert (wbsp.group, wbsp.rival) == ("wbsp", None)
    assert (bsp.times, bsp.best, bsp.waited) == ([], 0.3, 20)
