"""Sites whose workers share the run's data: each example is once an epoch in the model above,
whichever process dies.
"""

import contextlib
import os
import random
import time

import pytest
from jobs import Jobs, until
from proxy import Proxy
from shared_sites import EPOCHS, SharedSites

KILLS = int(os.environ.get("WBSP_KILLS", "1"))
JOINED = "is a worker of the server"


def steps(sites):
    return sum(len(job.find("^step")) for jobs in sites.workers for job in jobs)


def after_steps(sites, number):
    """Wait until the workers have made this number of further steps, or all that they may make."""
    due, end = steps(sites) + number, time.monotonic() + 10
    until(lambda: steps(sites) >= due or time.monotonic() > end, f"{due} steps")


def moments(sites, draw, number):
    """Random moments of a run, anywhere between two cuts."""
    for _ in range(number):
        after_steps(sites, draw.randint(2, 8))
        time.sleep(draw.uniform(0, 0.3))
        yield


def begin(sites, standby, proxy=None):
    """Start two sites, of which the first may have a standby, and a line that can be cut."""
    for site in range(2):
        sites.start_site(site, *(["--transport=tcp"] if proxy else []), address=(
            proxy.address if proxy and not site else None))
    if standby:
        sites.start_standby(0)
    for site in range(2):
        sites.start_workers(site)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("above, inside", [("asp", "asp"), ("bsp", "bsp"), ("pcc", "localsgd")])
def test_each_example_is_once_an_epoch_in_the_model_above(tmp_path, above, inside):
    with Jobs(tmp_path) as jobs:
        sites = SharedSites(jobs, above, inside).start(hold=10**9)
        sites.end_well()
        for site in sites.sites:
            assert site.find("the server above: all 3 epochs are trained")
        final = sites.check()
        if above == inside == "asp":  # each push counts a half at its site, and each cut a half
            assert (final == EPOCHS / 4).all()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", [("asp", "asp")] + [("bsp", "bsp"), ("pcc", "pcc")] * (
    KILLS > 1))
def test_a_site_server_that_is_killed_and_resumed_trains_no_example_twice(tmp_path, above, inside):
    draw = random.Random(f"{above} {inside}")
    with Jobs(tmp_path) as jobs:
        sites = SharedSites(jobs, above, inside).start()
        for _ in moments(sites, draw, KILLS):
            sites.sites[0].kill()
            sites.start_site(0, "--resume").until("resuming from version")
            sites.sites[0].until("is a worker of the server")
        sites.stop_workers()
        sites.end_well()
        sites.check()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["top", "worker", "standby", "line"])
@pytest.mark.parametrize("above, inside", [("asp", "asp")] + [("bsp", "bsp"), ("pcc", "pcc")] * (
    KILLS > 1))
@pytest.mark.skipif(KILLS < 2, reason="takes minutes: WBSP_KILLS=2")
def test_no_example_is_trained_twice_when_any_other_process_dies(tmp_path, above, inside, victim):
    draw = random.Random(f"{above} {inside} {victim}")
    with Jobs(tmp_path) as jobs, contextlib.ExitStack() as stack:
        sites = SharedSites(jobs, above, inside)
        proxy = stack.enter_context(Proxy(sites.ports[-1])) if victim == "line" else None
        begin(sites, victim == "standby", proxy)
        for _ in moments(sites, draw, 1 if victim == "standby" else KILLS):
            match victim:
                case "top":
                    sites.top.kill()
                    sites.start_top("--resume").until("resuming from version")
                    sites.top.until("worker 0 reconnected")
                    sites.top.until("worker 1 reconnected")
                case "worker":
                    sites.workers[0][1].kill()
                    sites.start_worker(0, 1).until("is a member")
                case "standby":
                    sites.standbys[0].until("holding version|following the server")
                    sites.sites[0].until("the standby at .* holds version")
                    sites.sites[0].kill()
                    sites.standbys[0].until("is a worker of the server")
                    sites.sites[0] = sites.standbys[0]
                case "line":
                    proxy.closed.set()
                    proxy.cut()
                    sites.top.until("worker 0 was lost")
                    time.sleep(draw.uniform(0, 1))
                    proxy.closed.clear()
                    sites.top.until("worker 0 reconnected")
        sites.stop_workers()
        sites.end_well()
        sites.check()
