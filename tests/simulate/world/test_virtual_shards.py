"""Shards in virtual time: a server with more of each line, and less work on a push."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import INF, Incarnation, Machine, constant, trace
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import create
from wbsp.testing import Laws, plans


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


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_where_the_servers_line_is_the_bottleneck_a_round_divides_by_the_shards(count):
    # One server: fetch 4 * 8 / 32 = 1 s, step 1 s, push 4 * 8 / 16 = 2 s.
    log, cluster = events(create("bsp"), free(1.0, 1.0, 1.0, 1.0), until=4.0, model_bytes=8.0,
                          server=ServerSpec(16.0, 32.0, shards=count))
    rounds = int(4.0 / (1 + 3 / count))
    assert times(log) == exactly([(1 + 3 / count) * (n + 1) for n in range(rounds)])
    for report in cluster.reports:
        assert (report.push_seconds, report.pushes) == (exactly(2 * rounds / count), rounds)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["bsp", "asp", "wbsp", "pcc"])
def test_where_the_workers_lines_are_the_bottleneck_shards_gain_nothing(name, count):
    workers = [Machine(trace([1.0, 0.75, 2.0]), latency=0.1, up=2.0, down=4.0),
               Machine(constant(1.5), up=1.0, down=2.0)]
    one, many = (events(create(name), workers, until=60.0, model_bytes=3.0,
                        server=ServerSpec(9.0, 9.0, shards=shards))[0] for shards in (1, count))
    assert len(times(one)) >= 9 and one == many  # not a bit differs


def test_shards_share_the_work_on_a_push():
    log, _ = events(create("bsp"), free(1.0, 1.0, 1.0), until=4.0,
                    server=ServerSpec(apply_seconds=0.5, shards=2))
    assert times(log) == exactly([1.0 + 3 * 0.25, 3.5])


def test_a_lost_worker_leaves_all_shards_to_the_others():
    dying = Machine(constant(1.0), incarnations=(Incarnation(0.0, 3.0),))
    log, _ = events(create("asp"), [dying, *free(1.0)], until=5.0, model_bytes=4.0,
                    server=ServerSpec(ingress=1.0, shards=2))
    # Slices of 2 bytes at 0.5 bytes/s from 1 s on; from 3 s on the byte left has 1 byte/s.
    assert times(log, "accept") == exactly([4.0])


@pytest.mark.parametrize("name", ["bsp", "asp", "pcc", "esync"])
def test_the_laws_of_a_run_hold_with_shards(name):
    @given(plans(), st.integers(2, 4))
    def check(plan, shards):
        Laws(plan._replace(settings=plan.settings | {
            "server": replace(plan.settings["server"], shards=shards)}), create(name)).run()
    check()
