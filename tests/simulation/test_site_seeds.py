"""Sites under faults, in virtual time: `WBSP_SITE_RUNS=2000` plays so many seeds."""

import os

import pytest
from simulated.command import scratch
from simulated.sites import Sites, SitesPlan, drawn

RUNS = int(os.environ.get("WBSP_SITE_RUNS", "40"))


@pytest.fixture
def folder():
    with scratch() as folder:
        yield folder


@pytest.mark.parametrize("above, inside", [("bsp", "bsp"), ("pcc", "asp"), ("nbsync", "pcc"),
                                           ("esync", "bsp"), ("asp", "localsgd")])
def test_sites_without_a_fault_end_with_one_model(above, inside, folder):
    Sites(SitesPlan(above, inside, sites=3), 0, folder).run()


def test_no_law_of_sites_is_broken(folder):
    failed = []
    for seed in range(RUNS):
        plan = drawn(seed)
        try:
            Sites(plan, seed, folder).run()
        except Exception as error:
            failed.append(f"seed {seed}, {plan}: {error!r}")
    assert not failed, "\n".join(failed)
