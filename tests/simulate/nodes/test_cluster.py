"""Hand-computed schedules: commit times and waits in closed form, to a nanosecond.

With latency L, S bytes, and up and down bandwidths u and d, a worker alone on its links takes

    push = L + S/u (arrival at the server) + L (the Ack),   fetch = L (request) + S/d + L

and starts its first step at join + grant + fetch = 4 L + S/d. With an Ack that grants, the server
sends the model, which arrives S/d after the Ack.
"""

import gc
import subprocess
import sys

import numpy as np
import pytest
from quadratic import QuadraticWorkload

from wbsp.core.goal import Goal
from wbsp.core.outer_optimizer import create_outer
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.server import Evaluator
from wbsp.simulate.nodes.worker import Observer
from wbsp.simulate.world.machine import Incarnation, Machine, changing, constant, lognormal
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import create

# with 10 bytes: push 0.3 s, fetch 0.4 s, or 0.2 s for a model that follows an Ack
LINK = {"latency": 0.1, "up": 100.0, "down": 50.0}
PAIR = [Machine(constant(1.0), **LINK), Machine(constant(3.0), **LINK)]  # steps start at 0.6 s


class Run:
    """A cluster run until `until`; commits: times of the versions."""

    def __init__(self, model, workers, until, **options):
        self.commits, self.pushes = [], []
        self.cluster = Cluster(model, workers, log=self._log, **options)
        self.cluster.run(until)
        self.seconds = [report.seconds for report in self.cluster.reports]

    def _log(self, now, kind, **fields):
        if kind == "commit":
            self.commits.append(now)
        elif kind == "accept":
            self.pushes.append((now, fields["worker"], fields["steps"]))

    def arrived(self, worker):
        """Times at which the worker's pushes reached the server."""
        return [time for time, pusher, _ in self.pushes if pusher == worker]


def exactly(values):
    return pytest.approx(values, rel=0, abs=1e-9)


def free(*seconds):
    """Workers with constant step times and a network that costs nothing."""
    return [Machine(constant(s)) for s in seconds]


def test_bsp_without_network_commits_at_multiples_of_the_slowest():
    run = Run(create("bsp"), free(1.0, 2.5, 2.0), until=10.0)
    assert run.commits == exactly([2.5, 5.0, 7.5, 10.0])
    assert [s["wait"] for s in run.seconds] == exactly([4 * 1.5, 0.0, 4 * 0.5])
    assert [s["compute"] for s in run.seconds] == exactly([4.0, 10.0, 8.0])


def test_bsp_pays_push_and_fetch_in_every_round():
    run = Run(create("bsp"), PAIR, until=11.3, model_bytes=10.0)
    # The slow worker makes the version, which follows its Ack: every 3 + 0.3 + 0.2. The fast one
    # has left its fetch with its push: the version follows the grant.
    assert run.commits == exactly([0.6 + 3 + 0.2, 7.3, 10.8])
    fast, slow = run.seconds
    assert fast == exactly({"compute": 3.0 + 0.2, "push": 0.9, "pull": 0.4 + 3 * 0.2,
                            "wait": 0.2 + 3 * 2.0, "data": 0.0})
    assert slow == exactly({"compute": 9.0 + 0.2, "push": 0.9, "pull": 0.4 + 3 * 0.2, "wait": 0.2,
                            "data": 0.0})
    slow = run.cluster.reports[1]
    assert (slow.pulls, slow.pull_seconds) == (4, exactly(1.0))


def test_asp_receives_every_version_behind_its_ack():
    run = Run(create("asp"), PAIR, until=8.1, model_bytes=10.0)
    assert run.arrived(0) == exactly([1.8, 3.3, 4.8, 6.3, 7.8])  # every 1 + 0.3 + 0.2
    assert run.arrived(1) == exactly([3.8, 7.3])
    assert run.seconds[0] == exactly({"compute": 5.0, "push": 5 * 0.3, "pull": 0.4 + 5 * 0.2,
                                      "wait": 0.2, "data": 0.0})


def test_wbsp_keeps_the_period_of_its_slowest_worker_without_waiting_for_it():
    run = Run(create("wbsp"), PAIR, until=11.2, model_bytes=10.0)
    assert run.commits == exactly([3.8, 7.3, 10.8])
    assert [s["wait"] for s in run.seconds] == exactly([0.2, 0.2])
    # The fast worker: steps of 1 s and pushes of 0.3 s. Granted at 3.9 s and 7.4 s during a step
    # or a push, it fetches the version after that push.
    assert run.arrived(0) == exactly([1.8, 3.1, 4.4, 6.1, 7.4, 9.1, 10.4])
    assert [s["pull"] for s in run.seconds] == exactly([0.4 + 2 * 0.4, 0.4 + 3 * 0.2])


def test_pcc_hides_the_network_behind_a_longer_step():
    run = Run(create("pcc"), PAIR, until=13.0, model_bytes=10.0)
    assert run.commits == exactly([3.8, 6.8, 9.8, 12.8])  # every 3 s
    for seconds in run.seconds:
        assert seconds == exactly({"compute": 13.0 - 0.6, "push": 0.0, "pull": 0.4, "wait": 0.2,
                                   "data": 0.0})


def test_pcc_carries_several_steps_when_the_network_is_the_longer_part():
    run = Run(create("pcc"), [Machine(constant(0.4), **LINK)], until=3.7, model_bytes=10.0)
    # A push and a fetch take 0.5 s: at every second step the version is in and the network idle.
    assert run.commits == exactly([0.6 + 0.4 + 0.2, 2.0, 2.8, 3.6])
    assert [steps for *_, steps in run.pushes] == [1, 2, 2, 2]


def test_pcc_is_bound_by_push_plus_fetch_in_whole_steps():
    slow_net = Machine(constant(1.0), latency=0.5, up=10.0, down=4.0)  # push 2 s, fetch 2.5 s
    run = Run(create("pcc"), [slow_net], until=20.0, model_bytes=10.0)
    assert run.commits == exactly([4.5 + 1.0 + 1.5, 12.0, 17.0])  # every ceil(2 + 2.5)
    assert run.seconds[0]["compute"] == exactly(20.0 - 4.5)


def test_ssp_stops_the_fast_worker_at_its_bound():
    run = Run(create("ssp", s=1), free(1.0, 3.0), until=9.5)
    assert run.arrived(0) == exactly([1, 2, 4, 7])
    assert run.arrived(1) == exactly([3, 6, 9])
    assert run.seconds[0]["wait"] == exactly(1.0 + 2.0 + 2.0)
    assert run.seconds[1]["wait"] == exactly(0.0)


def test_ssp_with_bound_zero_is_the_schedule_of_bsp():
    run = Run(create("ssp", s=0), PAIR, until=11.3, model_bytes=10.0)
    assert run.arrived(1) == exactly([3.8, 7.3, 10.8])
    assert run.seconds[0]["wait"] == exactly(0.2 + 3 * 2.0)


def test_asp_makes_a_version_of_every_push():
    run = Run(create("asp"), free(1.0, 2.5), until=5.5)
    assert run.commits == exactly([1, 2, 2.5, 3, 4, 5, 5])
    assert [s["wait"] for s in run.seconds] == [0.0, 0.0]


def test_all_workers_share_the_servers_interface():
    run = Run(create("bsp"), free(1.0, 1.0, 1.0, 1.0), until=16.0, model_bytes=8.0,
              server=ServerSpec(16.0, 32.0))
    assert run.commits == exactly([4.0, 8.0, 12.0, 16.0])  # fetch 1 s, step 1 s, push 2 s
    for seconds in run.seconds:
        assert (seconds["pull"], seconds["push"]) == exactly((4.0, 8.0))


def test_a_narrow_link_leaves_its_share_to_the_others():
    narrow = Machine(constant(1.0), up=1.0)
    run = Run(create("asp"), [narrow, *free(1.0, 1.0)], until=7.0, model_bytes=6.0,
              server=ServerSpec(ingress=5.0))
    # 1 B/s and twice 2 B/s: the wide ones arrive at 1 + 3 s, the narrow one at 1 + 6 s. The second
    # pushes of the wide ones, from 5 s on, are in transit at the end.
    assert [run.arrived(worker) for worker in range(3)] == [
        exactly([7.0]), exactly([4.0]), exactly([4.0])]


def test_wbsp_uploads_contend_only_while_they_overlap():
    run = Run(create("wbsp"), free(1.0, 2.0), until=4.0, model_bytes=3.0,
              server=ServerSpec(ingress=2.0))
    # Worker 0 uploads alone from 1 s on; worker 1 comes at 2 s, then they have 1 B/s each. One
    # ends at 3 s; the other has 2 of 3 bytes left, and the interface to itself.
    assert (run.arrived(0), run.arrived(1)) == (exactly([3.0]), exactly([4.0]))
    assert run.commits == exactly([4.0])


def test_the_server_applies_one_push_after_the_other():
    run = Run(create("bsp"), free(1.0, 1.0, 1.0), until=5.0,
              server=ServerSpec(apply_seconds=0.5))
    assert run.commits == exactly([2.5, 5.0])
    assert [s["push"] for s in run.seconds] == exactly([1.0, 2.0, 3.0])
    assert [s["wait"] for s in run.seconds] == exactly([2.0, 1.0, 0.0])


def test_a_round_continues_when_the_loss_of_a_worker_is_detected():
    workers = [*free(1.0), Machine(constant(2.0), incarnations=(Incarnation(0.0, 5.0),))]
    run = Run(create("bsp"), workers, until=8.0, server=ServerSpec(detect_seconds=0.75))
    assert run.commits == exactly([2.0, 4.0, 5.75, 6.75, 7.75])
    assert run.seconds[1]["compute"] == exactly(5.0)


def test_a_push_that_has_not_arrived_is_lost_with_its_worker():
    dying = Machine(constant(1.0), up=2.0, incarnations=(Incarnation(0.0, 2.5),))
    run = Run(create("asp"), [dying], until=10.0, model_bytes=4.0)
    assert run.pushes == []


def test_a_lost_worker_leaves_the_interface_to_the_others():
    dying = Machine(constant(1.0), incarnations=(Incarnation(0.0, 3.0),))
    run = Run(create("asp"), [dying, *free(1.0)], until=5.0, model_bytes=4.0,
              server=ServerSpec(ingress=2.0))
    # Both upload at 1 B/s from 1 s on; from 3 s on the 2 bytes left have 2 B/s.
    assert (run.arrived(0), run.arrived(1)) == ([], exactly([4.0]))


def test_a_joiner_counts_in_the_round_in_which_it_joins():
    workers = [*free(1.0), Machine(constant(2.0), incarnations=(Incarnation(2.5),))]
    run = Run(create("wbsp"), workers, until=9.0)
    assert run.commits == exactly([1.0, 2.0, 4.5, 6.5, 8.5])


def test_a_change_of_speed_moves_the_commits():
    worker = Machine(changing(constant(1.0), [(3.0, 4.0), (11.0, 1.0)]))
    run = Run(create("wbsp"), [worker], until=13.0)
    assert run.commits == exactly([1, 2, 3, 7, 11, 12, 13])


def test_a_stall_delays_the_round():
    run = Run(create("bsp"), [Machine(constant(1.0), stalls=((1.5, 4.0),)), *free(1.0)], until=6.0)
    assert run.commits == exactly([1.0, 4.5, 5.5])
    assert run.seconds[1]["wait"] == exactly(2.5)


def jittered(n, seed=0, **options):
    workers = [Machine(lognormal(1.0 + i, 0.3, seed=seed + i), latency=0.01 * i, up=20.0, down=30.0)
               for i in range(n)]
    return workers, {"model_bytes": 5.0, "server": ServerSpec(30.0, 40.0), "stop_samples": 60,
                     **options}


class Tape(Observer):
    def __init__(self):
        self.heard = []

    def log(self, *args, **fields):
        self.heard.append((args, fields))

    def span(self, *args):
        self.heard.append(args)

    def adopt(self, *args):
        self.heard.append(args)


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "wbsp", "pcc"])
def test_the_same_cluster_twice_gives_the_same_events(name):
    def play(seed, pauses=()):
        tape = Tape()
        workers, options = jittered(4, seed)
        cluster = Cluster(create(name), workers, log=tape.log, observer=tape, **options)
        for until in pauses:
            cluster.run(until)
        cluster.run()
        return cluster.clock.events, cluster.ended, tape.heard
    assert play(0) == play(0) != play(1)
    assert play(0, pauses=[3.0, 7.5])[:2] == play(0)[:2]


@pytest.mark.parametrize("name", ["bsp", "asp", "ssp", "wbsp", "pcc"])
def test_every_second_of_a_worker_is_booked_once(name):
    class Spans(Observer):
        totals = [0.0] * 3

        def span(self, worker, lane, kind, start, end):
            if lane == "compute":
                assert start == pytest.approx(self.totals[worker])
                self.totals[worker] = end

    workers, options = jittered(3, stop_samples=1e9)
    spans = Spans()
    cluster = Cluster(create(name), workers, observer=spans, **options)
    cluster.run(50.0)
    assert [report.wall for report in cluster.reports] == exactly([50.0] * 3)
    assert spans.totals == exactly([50.0] * 3)


def test_evaluations_come_at_every_period_and_the_target_ends_the_run():
    workload = QuadraticWorkload(2)

    def evaluate(snapshot):
        return {"accuracy": 1 - workload.loss(snapshot.vector) / workload.loss(workload.initial())}
    cluster = Cluster(create("wbsp"), free(1.0, 2.0), workload,
                      evaluator=Evaluator(evaluate, 3.0, target=Goal.of(0.9)))
    cluster.run()
    times = [e.time for e in cluster.evaluations]
    assert times[:-1] == exactly([3.0 * i for i in range(len(times) - 1)])
    assert cluster.evaluations[0][1:] == (0, {"accuracy": 0.0})
    assert cluster.evaluations[-3].metrics["accuracy"] < 0.9 <= (
        cluster.evaluations[-2].metrics["accuracy"])
    assert cluster.engine.stop_reason.startswith("accuracy 0.9")
    assert cluster.evaluations[-1][:2] == (cluster.ended, cluster.engine.store.latest.version)


def test_evaluations_may_come_at_a_part_of_the_time_gone_by():
    cluster = Cluster(create("asp"), free(1.0), stop_samples=20,
                      evaluator=Evaluator(lambda snapshot: {}, period=1.5, growth=0.5))
    cluster.run()
    assert [e.time for e in cluster.evaluations] == exactly(
        [0, 1.5, 3.0, 4.5, 6.75, 10.125, 15.1875, 20])


def test_a_run_whose_first_version_is_good_enough_trains_nothing():
    cluster = Cluster(create("bsp"), free(1.0, 2.0),
                      evaluator=Evaluator(lambda snapshot: {"accuracy": 0.5}, target=Goal.of(0.5)))
    cluster.run()
    assert (cluster.ended, cluster.engine.steps) == (0.0, 0)


def test_nothing_is_evaluated_after_the_last_version():
    workers = [*free(1.0), Machine(constant(1.0), incarnations=(Incarnation(50.0),))]
    cluster = Cluster(create("asp"), workers, stop_samples=7,
                      evaluator=Evaluator(lambda snapshot: {}, period=4.5))
    cluster.run()
    assert [e[:2] for e in cluster.evaluations] == [(0.0, 0), (4.5, 4), (7.0, 7)]


def test_workers_that_wait_for_ever_are_named():
    with pytest.raises(RuntimeError, match=r"workers \[0, 1\] wait .*2 workers joined, 3 were"):
        Run(create("bsp"), free(1.0, 1.0), until=10.0, expected=3)


def test_the_models_alarm_rings():
    class Clocked(type(create("asp"))):
        alarm = 2.5
        rung = []

        def tick(self, now):
            self.rung.append(now)
            self.alarm = now + 2.5 if now < 7.0 else None
            return []
    model = Clocked()
    Run(model, free(1.0), until=20.0, stop_samples=15)
    assert model.rung == exactly([2.5, 5.0, 7.5])


@pytest.mark.parametrize("make, message", [
    (lambda: Machine(constant(1.0), latency=-1.0), "latency must be 0 s or more.*-1.0"),
    (lambda: Machine(constant(1.0), up=0.0), "up and down must be above 0"),
    (lambda: Machine(constant(1.0), incarnations=(Incarnation(0.0, 5.0), Incarnation(4.0))),
     "incarnations must follow"),
    (lambda: Machine(constant(1.0), incarnations=()), "incarnations must follow"),
    (lambda: Machine(constant(1.0), fixed=-1.0), "fixed must be 0 s or more.*-1.0"),
    (lambda: Machine(constant(1.0), stalls=((5.0, 6.0), (1.0, 2.0))), "stalls must follow"),
    (lambda: Cluster(create("bsp"), []), "at least one worker"),
    (lambda: Cluster(create("bsp"), free(1.0), server=ServerSpec(ingress=0.0)),
     "capacity must be above 0"),
    (lambda: Cluster(create("bsp"), free(-1.0)).run(), "worker 0: a step time must be 0 s or more"),
])
def test_bad_settings_are_refused_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_thousands_of_workers_cost_a_handful_of_events_each_step():
    workers = [Machine(lognormal(1.0, 0.2, seed=i), latency=0.001, up=1e8) for i in range(2000)]
    cluster = Cluster(create("bsp"), workers, model_bytes=1e6, stop_samples=6000)
    cluster.run()
    assert cluster.engine.steps == 6000
    # A step: its end, push, Ack, Grant, request, model. A worker: its join, stop and leave.
    assert cluster.clock.events <= 6 * 6000 + 10 * 2000


@pytest.mark.parametrize("name", ["bsp", "ssp", "wbsp", "pcc"])
def test_an_event_takes_as_many_calls_in_a_large_cluster_as_in_a_small_one(name):
    def calls_an_event(n):
        workers = [Machine(lognormal(1.0, 0.2, seed=i), latency=0.001, up=1e8) for i in range(n)]
        cluster = Cluster(create(name), workers, model_bytes=1e5, server=ServerSpec(1e9, 1e9),
                          stop_samples=6 * n)
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += event in ("call", "c_call")
        sys.setprofile(count)
        try:
            cluster.run()
        finally:
            sys.setprofile(None)
        return calls / cluster.clock.events
    assert calls_an_event(300) == pytest.approx(calls_an_event(20), rel=0.15)


def test_a_study_of_time_leaves_the_garbage_collector_as_it_was():
    before = gc.get_threshold()
    Run(create("bsp"), free(1.0, 2.0), until=5.0)
    with pytest.raises(ValueError):
        Cluster(create("bsp"), free(-1.0)).run()
    assert gc.get_threshold() == before


def test_the_simulator_needs_no_network_and_no_tensorflow():
    code = ("import sys, wbsp.simulate.nodes.cluster; "
            "print([m for m in ('tensorflow', 'keras', 'zmq', 'wbsp.wire') if m in sys.modules])")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_outer_step_makes_the_versions_of_a_cluster():
    """BSP of one worker: the pending sum is its step, so that the recurrence is known."""
    steps = []

    class Kept(QuadraticWorkload):
        def cut(self, worker):
            steps.append(super().cut(worker))
            return steps[-1].copy()

    cluster = Cluster(create("bsp"), [Machine(constant(1.0))], Kept(1), stop_samples=6 * 16,
                      outer=create_outer("nesterov"))
    cluster.run()
    w, m = np.zeros(8), np.zeros(8)
    for step in steps:
        m = 0.9 * m + step
        w = w + 0.7 * (step + 0.9 * m)
    assert len(steps) >= 6
    assert np.allclose(cluster.engine.store.latest.vector, w, atol=1e-5)
