"""Sites that share data, in virtual time, beside the ideal."""

import pytest

from lab.benchmarks.site_data import STEPS, ratio


@pytest.mark.parametrize("sync, sites, n, epochs", [
    ("pcc/pcc", 2, 12_800, 15), ("auto/auto", 4, 1_280, 120), ("pcc", 2, 12_800, 10)],
    ids=["sites", "epochs shorter than a round trip", "no site"])
def test_a_slow_line_costs_little_more_than_the_start_and_the_end(sync, sites, n, epochs):
    assert ratio(sync, STEPS[sites], 0.5, epochs, n) < 1.25
