"""Lines that the workers of a site share, and transfers that pass several links."""

import random

import pytest

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.lines import Network
from wbsp.simulate.world.links import INF, FairShareLink
from wbsp.simulate.world.machine import Line, Machine, constant
from wbsp.sync import create


def ends(capacities, transfers):
    """Time at which each of (begin, size, cap, links) has passed its links."""
    clock, found = Clock(), {}
    network = Network(clock, capacities)
    for index, (begin, size, cap, links) in enumerate(transfers):
        clock.at(begin, network.carry, size, cap, links, 0.0, 0.0,
                 lambda index=index: found.setdefault(index, clock.now))
    clock.run()
    return [found[index] for index in range(len(transfers))]


def exactly(values):
    return pytest.approx(values, rel=0, abs=1e-9)


def test_two_workers_share_the_line_of_their_site():
    # The interface has room; the line of 10 bytes/s is for both, the other site's for one.
    assert ends([100.0, 10.0, 10.0], [(0, 10, INF, (0, 1)), (0, 10, INF, (0, 1)),
                                      (0, 10, INF, (0, 2))]) == exactly([2.0, 2.0, 1.0])


def test_unused_capacity_of_an_interface_goes_to_other_links():
    # The interface's 12 bytes/s: 2 for the one behind the narrow line, 10 for the other.
    assert ends([12.0, 2.0, INF], [(0, 4, INF, (0, 1)), (0, 10, INF, (0, 2))]) == exactly([2, 1])
    # Without the narrow one all of it: 6 + 6 for a second, then 12.
    assert ends([12.0, 20.0, INF], [(0, 6, INF, (0, 1)), (0, 12, INF, (0, 2))]) == exactly([1, 1.5])


def test_a_link_of_its_own_limits_a_transfer():
    assert ends([INF, 10.0], [(0, 6, 3.0, (0, 1)), (0, 14, INF, (0, 1))]) == exactly([2.0, 2.0])
    assert ends([INF, INF], [(1, 6, 3.0, (0, 1)), (1, 6, INF, (0, 1))]) == exactly([3.0, 1.0])


def test_a_lost_transfer_leaves_the_line_to_the_others():
    clock, found = Clock(), []
    network = Network(clock, [10.0])
    lost = network.carry(100, INF, (0,), 0.0, 0.0, found.append, "lost")
    late = network.carry(100, INF, (0,), 2.0, 0.0, found.append, "late")
    network.carry(10, INF, (0,), 0.0, 0.5, lambda: found.append(clock.now))
    clock.at(1.0, lost.cancel)
    clock.at(1.5, late.cancel)  # before it has begun
    clock.run()
    assert found == exactly([2.0])  # 5 bytes in the first second, 5 in half of one, and 0.5 s


@pytest.mark.parametrize("seed", range(20))
def test_on_one_link_the_rates_are_those_of_the_fair_share(seed):
    draw = random.Random(seed)
    transfers = [(draw.choice([0, 1, 2.5]), draw.randint(1, 30), draw.choice([INF, 1.0, 4.0]), (0,))
                 for _ in range(8)]
    clock, found = Clock(), {}
    link = FairShareLink(clock, 9.0)
    for index, (begin, size, cap, _) in enumerate(transfers):
        clock.at(begin, link.carry, size, cap, 0.0, 0.0,
                 lambda index=index: found.setdefault(index, clock.now))
    clock.run()
    assert ends([9.0], transfers) == exactly([found[index] for index in range(8)])


def at_site(site, line, seconds=1.0):
    return Machine(constant(seconds), latency=0.1, line=Line(site, *line))


def test_the_workers_of_a_star_push_and_fetch_through_their_sites_lines():
    commits = []
    machines = [at_site(0, (10.0, 20.0)), at_site(0, (10.0, 20.0)), at_site(1, (INF, INF))]
    cluster = Cluster(create("bsp"), machines, model_bytes=10.0, log=lambda now, kind, **_: (
        kind == "commit" and commits.append(now)))
    cluster.run(until=11.0)
    # Join and grant 0.2, request and W_0 0.2 + 20 / 20; a step 1, push 0.1 + 20 / 10. From then on
    # a version, 0.1 + 20 / 20, a step and a push: the first fetch is requested, the others follow.
    assert commits == exactly([4.5, 8.7])
    assert cluster.moved == {0: 10.0 * 2 * (3 + 3), 1: 0.0}, "one has no line"
