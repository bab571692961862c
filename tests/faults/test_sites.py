"""Sites: servers that are workers of another server, and every example counts once at both levels.
"""

import os
import random
import time

import pytest
from jobs import Jobs, until
from sites import Sites, cuts

KILLS = int(os.environ.get("WBSP_KILLS", "2"))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("above, inside", [("asp", "asp"), ("bsp", "bsp")])
def test_what_sites_learn_is_in_the_model_once(tmp_path, above, inside):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(steps=12, seconds=0.01)
        sites.end_well()
        sites.conserved()


def after_cuts(sites, site, number):
    """Wait until a site has taken so many more cuts."""
    path = sites.record(site) / "cuts.jsonl"
    due = (len(cuts(path)) if path.exists() else 0) + number
    until(lambda: path.exists() and len(cuts(path)) >= due, f"{due} cuts of site {site}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", [("asp", "asp"), ("bsp", "bsp"), ("pcc", "pcc")])
def test_a_site_server_that_is_killed_and_resumed_pushes_nothing_twice(tmp_path, above, inside):
    draw = random.Random(f"{above} {inside}")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(stop_when_told=True, seconds=0.01)
        for _ in range(KILLS):
            after_cuts(sites, 0, draw.randint(1, 6))
            time.sleep(draw.uniform(0, 0.3))  # anywhere between two cuts
            sites.sites[0].kill()
            sites.start_site(0, "--resume").until("resuming from version")
            sites.sites[0].until("is a worker of the server")
        after_cuts(sites, 0, 1)
        sites.tell_to_stop()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", [("asp", "asp"), ("bsp", "pcc")])
def test_the_top_can_be_killed_and_resumed(tmp_path, above, inside):
    draw = random.Random(f"top {above} {inside}")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(stop_when_told=True, seconds=0.01)
        for _ in range(KILLS):
            after_cuts(sites, 0, draw.randint(1, 6))
            time.sleep(draw.uniform(0, 0.3))
            sites.top.kill()
            sites.start_top("--resume").until("resuming from version")
            after_cuts(sites, 1, 2)
        sites.tell_to_stop()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(300)
def test_a_worker_of_a_site_can_be_killed_and_come_again(tmp_path):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs).start(stop_when_told=True, seconds=0.01)
        sites.workers[0][1].until("step 9 done")
        sites.workers[0][1].kill()
        sites.sites[0].until("worker 1 was lost")
        sites.start_worker(0, 1, stop_when_told=True, seconds=0.01).until("step 5 done")
        sites.tell_to_stop()
        sites.end_well()
        sites.conserved()
