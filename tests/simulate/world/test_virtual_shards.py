"""Shards in virtual time: schedules by hand, brute force, and the laws of every run."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.machine import INF, Incarnation, Machine, constant, trace
from wbsp.simulate.world.shards import ServerSpec, Shard, Shards
from wbsp.sync import create
from wbsp.testing import RATES, Laws, plans


def exactly(values):
    return pytest.approx(values, rel=0, abs=1e-9)


def free(*seconds):
    """Workers with constant step times and lines without a limit."""
    return [Machine(constant(s)) for s in seconds]


def events(model, workers, until=INF, **options):
    """(time, kind, fields) of each event of the engine, and the cluster."""
    log = []
    cluster = Cluster(model, workers, log=lambda now, kind, **f: log.append((now, kind, f)),
                      **options)
    cluster.run(until)
    return log, cluster


def times(log, kind="commit"):
    return [now for now, what, _ in log if what == kind]


# By hand.


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_where_the_servers_line_is_the_bottleneck_a_round_divides_by_the_shards(count):
    # One server: fetch 4 * 8 / 32 = 1 s, step 1 s, push 4 * 8 / 16 = 2 s.
    log, cluster = events(create("bsp"), free(1.0, 1.0, 1.0, 1.0), until=4.0, model_bytes=8.0,
                          server=ServerSpec(shards=count * (Shard(16.0, 32.0),)))
    rounds = int(4.0 / (1 + 3 / count))
    assert times(log) == exactly([(1 + 3 / count) * (n + 1) for n in range(rounds)])
    for report in cluster.reports:
        assert (report.push_seconds, report.pushes) == (exactly(2 * rounds / count), rounds)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["bsp", "asp", "wbsp", "pcc"])
def test_where_the_workers_lines_are_the_bottleneck_shards_gain_nothing(name, count):
    workers = [Machine(trace([1.0, 0.75, 2.0]), latency=0.1, up=2.0, down=4.0),
               Machine(constant(1.5), up=1.0, down=2.0)]
    one, many = (events(create(name), workers, until=60.0, model_bytes=3.0, server=server)[0]
                 for server in (ServerSpec(9.0, 9.0),
                                ServerSpec(shards=count * (Shard(9.0, 9.0),))))
    assert len(times(one)) >= 9 and one == many  # not a bit differs


def test_the_slowest_of_unequal_shards_decides():
    log, _ = events(create("bsp"), free(1.0, 1.0, 1.0, 1.0), until=13.0, model_bytes=8.0,
                    server=ServerSpec(shards=(Shard(16.0, 16.0), Shard(4.0, 32.0))))
    # Four slices of 4 bytes: out of the first shard in 1 s, into the second in 4 s.
    assert times(log) == exactly([6.0, 12.0])


def test_the_latency_between_coordinator_and_shards_is_paid_there_and_back():
    worker = Machine(constant(1.0), latency=0.1, up=100.0, down=50.0)
    log, cluster = events(create("asp"), [worker], until=5.0, model_bytes=10.0,
                          server=ServerSpec(shards=(Shard(latency=0.05), Shard(latency=0.2))))
    # Of the farther shard: push 0.1 + 0.2 + 5 / 50 + 0.2, version 0.2 + 5 / 25 + 0.2 + 0.1. The
    # first step begins after join, grant, request and version.
    assert times(log) == exactly([0.3 + 0.7 + 1.0 + 0.6, 4.9])
    assert cluster.reports[0].seconds["push"] == exactly(2 * (0.6 + 0.1))
    assert cluster.reports[0].last_pull_seconds == exactly(0.7 - 0.1)  # behind its Ack


def test_shards_share_the_work_on_a_push():
    log, _ = events(create("bsp"), free(1.0, 1.0, 1.0), until=4.0,
                    server=ServerSpec(apply_seconds=0.5, shards=2 * (Shard(),)))
    assert times(log) == exactly([1.0 + 3 * 0.25, 3.5])


def test_a_version_waits_for_the_slices_that_a_shard_had_before():
    log, cluster = events(create("asp"), free(1.0, 1.0), until=2.5,
                          server=ServerSpec(apply_seconds=1.0, shards=2 * (Shard(),)))
    # Decided on at 1.5 s and 2 s; until then the shards are busy with the second push.
    assert times(log) == exactly([1.5, 2.0])
    assert [report.pull_seconds for report in cluster.reports] == exactly([0.5, 0.0])


def test_a_shard_that_is_done_leaves_the_workers_line_to_the_others():
    # For 2 s both workers send 0.75 bytes/s to the narrow shard, and worker 0 has 1 byte/s of its 2
    # for the wide one. Then worker 1 is lost, and worker 0 has all its line for the half byte left.
    workers = [Machine(constant(1.0), up=2.0),
               Machine(constant(1.0), incarnations=(Incarnation(0.0, 3.0),))]
    log, _ = events(create("asp"), workers, until=4.0, model_bytes=4.0, server=ServerSpec(shards=(
        Shard(ingress=1.5), Shard(ingress=100.0))))
    assert times(log, "accept") == exactly([3.0 + 0.5 / 1.5])


def test_a_lost_worker_leaves_all_shards_to_the_others():
    dying = Machine(constant(1.0), incarnations=(Incarnation(0.0, 3.0),))
    log, _ = events(create("asp"), [dying, *free(1.0)], until=5.0, model_bytes=4.0,
                    server=ServerSpec(shards=2 * (Shard(ingress=1.0),)))
    # Slices of 2 bytes at 0.5 bytes/s from 1 s on; from 3 s on the byte left has 1 byte/s.
    assert times(log, "accept") == exactly([4.0])


@pytest.mark.parametrize("end, accepted", [(3.25, 0), (3.75, 0), (4.25, 1)])
def test_a_push_that_is_not_decided_on_is_lost_with_its_worker(end, accepted):
    # W_0 is there at 1 s. The slices arrive at 3 s and 3.5 s; the coordinator knows of both at 4 s.
    dying = Machine(constant(1.0), up=4.0, incarnations=(Incarnation(0.0, end),))
    log, _ = events(create("asp"), [dying], until=9.0, model_bytes=4.0,
                    server=ServerSpec(shards=(Shard(), Shard(latency=0.5))))
    assert len(times(log, "accept")) == accepted


def test_a_version_that_is_cancelled_before_its_slices_begin_takes_nothing_from_others():
    clock, there = Clock(), []
    shards = Shards(clock, 2 * [Shard(egress=1.0, latency=0.5)], apply_seconds=0.0)
    lost, other = (shards.send(Machine(constant(1.0)), 4.0, lambda name=name: there.append(
        (name, clock.now))) for name in ("lost", "other"))
    clock.at(0.25, lost.cancel)
    clock.run()
    assert there == [("other", 0.5 + 2.0 + 0.5)]


@pytest.mark.parametrize("link, message", [
    ({"latency": -1.0}, "latency must be 0 s or more.*-1.0"),
    ({"egress": 0.0}, "capacity must be above 0"),
])
def test_a_bad_link_says_what_is_wrong(link, message):
    with pytest.raises(ValueError, match=message):
        Cluster(create("bsp"), free(1.0), server=ServerSpec(shards=(Shard(**link), Shard())))


# Against other models of the same thing.


def brute_force(capacities, pushes):
    """Times at which the pushes (start, bytes/s of the line, bytes of a slice) are whole, by
    water-filling anew at every change."""
    left = {(i, s): size for i, (_, _, size) in enumerate(pushes) for s in range(len(capacities))}
    now, whole = 0.0, {}
    while left:
        rates = {}
        for s, capacity in enumerate(capacities):
            here = [i for i, shard in left if shard == s and pushes[i][0] <= now]
            caps = {i: pushes[i][1] / sum(other == i for other, _ in left) for i in here}
            for n, i in enumerate(sorted(here, key=caps.get)):
                rates[i, s] = min(caps[i], capacity / (len(here) - n))
                capacity -= rates[i, s]
        starts = [pushes[i][0] - now for i, _ in left if pushes[i][0] > now]
        pause = min([left[key] / rate for key, rate in rates.items()] + starts)
        now += pause
        for key, rate in rates.items():
            left[key] -= rate * pause
            if left[key] <= 1e-9 * pushes[key[0]][2]:
                del left[key]
                whole[key[0]] = now
    return [whole[i] for i in range(len(pushes))]


@pytest.mark.parametrize("seed", range(40))
def test_random_pushes_agree_with_water_filling(seed):
    draw = random.Random(seed)
    capacities = [draw.choice([1.0, 5.0, draw.uniform(0.5, 9)]) for _ in range(draw.randint(2, 4))]
    size = draw.uniform(0.5, 5)
    pushes = [(draw.choice([0, 1, 2.5, draw.uniform(0, 9)]),
               draw.choice([1.0, 4.0, 50.0, draw.uniform(0.2, 8)]), size)
              for _ in range(draw.randint(1, 9))]
    clock, whole = Clock(), {}
    shards = Shards(clock, [Shard(capacity, 7.0) for capacity in capacities], apply_seconds=0.0)

    def push(i, up):
        shards.push(Machine(constant(1.0), up=up), size * len(capacities),
                    lambda: whole.setdefault(i, clock.now))
    for i, (start, up, _) in enumerate(pushes):
        clock.at(start, push, i, up)
    clock.run()
    assert [whole[i] for i in range(len(pushes))] == pytest.approx(
        brute_force(capacities, pushes), rel=1e-9)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["bsp", "pcc"])
def test_equal_shards_are_one_interface_of_their_whole_bandwidth(name, count):
    @given(plans())
    def check(plan):
        workers = [Machine(trace(seconds), **kwargs)
                   for seconds, kwargs in zip(plan.traces, plan.workers, strict=True)]
        drawn = plan.settings["server"]
        one, many = (
            events(create(name), workers, **plan.settings | {"server": replace(
                drawn, apply_seconds=0.0, **server)})[0]
            for server in ({"ingress": count * drawn.ingress, "egress": count * drawn.egress},
                           {"shards": count * (Shard(drawn.ingress, drawn.egress),)}))
        assert one == many
    check()


LINKS = [Shard(ingress, egress, latency) for latency in (0.0, 0.25) for ingress in RATES
         for egress in RATES]


@pytest.mark.parametrize("name", ["bsp", "asp", "pcc", "esync"])
def test_the_laws_of_a_run_hold_with_shards(name):
    @given(plans(), st.lists(st.sampled_from(LINKS), min_size=2, max_size=4))
    def check(plan, shards):
        Laws(plan._replace(settings=plan.settings | {
            "server": replace(plan.settings["server"], shards=tuple(shards))}), create(name)).run()
    check()
