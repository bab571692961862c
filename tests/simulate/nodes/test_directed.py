"""Directions of the server, in closed form: which examples, when to cut, what to fetch."""

import pytest
from quadratic import QuadraticWorkload

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.workloads.base import TimingWorkload
from wbsp.simulate.world.machine import Incarnation, Machine, constant
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync.asp import ASP
from wbsp.sync.base import Accept, Commit, Direct, Grant, WorkerRule
from wbsp.sync.bsp import BSP

LINK = {"latency": 0.1, "up": 100.0, "down": 50.0}  # with 10 bytes: push 0.3 s, fetch 0.4 s


def exactly(values):
    return pytest.approx(values, rel=0, abs=1e-9)


class Trained(TimingWorkload):
    """A workload that records (worker, samples, start) of every step."""

    def __init__(self, batch):
        super().__init__(batch)
        self.steps = []

    def step(self, worker, samples=None, start=None, part=1.0):
        self.steps.append((worker, samples, start))
        return super().step(worker, samples, start)


class Run:
    """A cluster run until `until`. commits: times of the versions; pushes: all pushes; seconds: of
    each worker's compute thread, by phase."""

    def __init__(self, model, workers, until, workload=None, **options):
        self.commits, self.pushes = [], []
        self.cluster = Cluster(model, workers, workload, log=self._log, **options)
        push = self.cluster.engine.push

        def recorded(metadata, *args):
            self.pushes.append(metadata)
            return push(metadata, *args)
        self.cluster.engine.push = recorded
        self.cluster.run(until)
        self.seconds = [report.seconds for report in self.cluster.reports]

    def _log(self, now, kind, **fields):
        if kind == "commit":
            self.commits.append(now)


class Pieces(BSP):
    """Assigns with every grant the next examples of the shared stream: `sizes` of each worker."""

    rule = WorkerRule("every_step", "model", "replace", shared=True)
    sizes, position, repeat = (30, 10), 0, 1

    def join(self, worker, now):
        return self._directed(super().join(worker, now))

    def push(self, push, now):
        return self._directed(super().push(push, now))

    def _directed(self, actions):
        for action in actions:
            if isinstance(action, Grant):
                size = self.sizes[action.worker]
                yield from self.repeat * [Direct(action.worker, batch=size, start=self.position)]
                self.position += size
            yield action


@pytest.mark.parametrize("repeat", [1, 2])
def test_workers_train_assigned_examples_once(repeat):
    model, workload = Pieces(), Trained(batch=20)
    model.repeat = repeat
    run = Run(model, 2 * [Machine(constant(1.0), fixed=0.5)], 6.0, workload)
    assert run.commits == exactly([0.5 + 1.5, 4.0, 6.0])  # 30 examples of 20; 10 take 0.5 + 0.5
    assert workload.steps == [(1, 10, 30), (0, 30, 0), (1, 10, 70), (0, 30, 40), (1, 10, 110),
                              (0, 30, 80)]
    assert [push.samples for push in run.pushes] == [10, 30] * 3
    assert [s["wait"] for s in run.seconds] == exactly([0.0, 3.0])


def test_an_assignment_arrives_with_the_grant():
    run = Run(Pieces(), 2 * [Machine(constant(1.0), **LINK)], 8.0, Trained(batch=20),
              model_bytes=10.0)
    assert run.commits == exactly([0.6 + 1.5 + 0.2, 4.3, 6.3])  # every 1.5 + 0.3 + 0.2
    assert [s["data"] for s in run.seconds] == [0.0, 0.0]


def test_a_worker_without_an_assignment_waits_for_one():
    class Late(BSP):
        rule = WorkerRule("every_step", "model", "replace", shared=True)
        alarm = 2.0

        def tick(self, now):
            self.alarm = now + 5.0
            return [Direct(0, batch=4, start=int(now))]
    workload = Trained(batch=2)
    run = Run(Late(), [Machine(constant(1.0))], 10.0, workload)
    assert run.commits == exactly([2.0 + 2.0, 7.0 + 2.0])
    assert workload.steps == [(0, 4, 2), (0, 4, 7)]
    assert run.seconds[0] == exactly({"data": 2.0 + 3.0 + 1.0, "compute": 4.0, "push": 0.0,
                                      "pull": 0.0, "wait": 0.0})


def test_a_batch_size_without_a_position_holds_for_all_later_steps():
    class Smaller(ASP):
        def push(self, push, now):
            direct = [Direct(0, batch=5)] if push.seq == 1 else []
            return [*direct, *super().push(push, now)]
    workload = Trained(batch=20)
    run = Run(Smaller(), [Machine(constant(1.0), fixed=0.25)], 4.0, workload)
    assert run.commits == exactly([1.25, 2.5, 3.0, 3.5, 4.0])
    assert workload.steps == [(0, None, None)] * 2 + [(0, 5, None)] * 3


def test_micro_batches_split_the_work_and_the_sleep():
    class Split(ASP):
        rule = WorkerRule("every_step", "model", "replace", every=4, micro_batches=4)
    run = Run(Split(), [Machine(constant(2.0), fixed=0.4)], 5.0, TimingWorkload(5))
    assert run.commits == exactly([2.4, 4.8])
    assert [(p.steps, p.samples, p.seconds) for p in run.pushes] == [(4, 20, exactly(2.4))] * 2


class Asked(ASP):
    """Cuts after three uncut steps; records all queries."""

    rule = WorkerRule("on_query", "model", "replace")

    def __init__(self):
        super().__init__()
        self.queries = []

    def query(self, worker, steps, seconds, now):
        self.queries.append((now, steps, seconds))
        return [Direct(worker, cut=steps == 3)]


def test_a_query_costs_a_round_trip():
    run = Run(Asked(), [Machine(constant(1.0), **LINK)], 9.0, model_bytes=10.0)
    # Steps begin at 0.6 s; each ends with a query of 0.2 s; a push takes 0.3 s and a fetch 0.2 s.
    model = run.cluster.engine.model
    assert [time for time, *_ in model.queries] == exactly(
        [1.7, 2.9, 4.1, 5.8, 7.0, 8.2])
    assert [asked[1:] for asked in model.queries] == [(1, 1.0), (2, 1.0), (3, 1.0)] * 2
    assert run.commits == exactly([4.2 + 0.2, 8.3 + 0.2])
    assert run.seconds[0]["push"] == exactly(6 * 0.2 + 2 * 0.3)


def test_a_worker_with_an_open_query_at_the_stop_pushes_and_leaves():
    workers = [Machine(constant(1.0), **LINK),
               Machine(constant(9.0), latency=0.1,
                       incarnations=(Incarnation(0.0, 5.0, lost=False),))]
    run = Run(Asked(), workers, float("inf"), model_bytes=10.0, stop_samples=4)
    # Worker 1 ends its one step and leaves.
    assert sum(push.steps for push in run.pushes) == sum(r.steps for r in run.cluster.reports)
    assert run.cluster.ended is not None


def test_a_push_carries_the_mean_loss_of_its_steps():
    class Pairs(ASP):
        rule = WorkerRule("every_step", "model", "replace", every=2)
    one, again = QuadraticWorkload(1), QuadraticWorkload(1)
    run = Run(Pairs(), [Machine(constant(1.0))], 2.0, one)
    losses = [again.step(0)[1] for _ in range(2)]
    assert run.pushes[0].loss == exactly(sum(losses) / 2)
    assert (run.pushes[0].cpu, run.pushes[0].memory) == (None, None)
    assert Run(Pairs(), [Machine(constant(1.0))], 2.0).pushes[0].loss is None  # none was granted


def test_a_position_of_the_shared_stream_is_the_same_row_for_all_workers():
    workload = QuadraticWorkload(2, rows=10)
    rows = [workload.draw(worker, 7, start) for worker, start in ((0, 7), (1, 0), (0, 14))]
    stream = [*rows[1], *rows[0], *rows[2]]
    assert sorted(stream[:10]) == sorted(stream[10:20]) == list(range(10))
    assert stream[:10] != stream[10:20]
    assert list(QuadraticWorkload(1, rows=10).draw(0, 7, 7)) == list(rows[0])


# Versions that come along with an Ack.


def test_a_granted_push_needs_four_events_a_step():
    cluster = Cluster(ASP(), [Machine(constant(1.0), **LINK)], model_bytes=10.0, stop_samples=1000)
    cluster.run()
    # A step: its end, the push, its Ack and the version.
    assert cluster.clock.events <= 4 * cluster.engine.steps + 15


def test_a_version_that_follows_an_ack_shares_the_interface_from_the_moment_of_the_ack():
    class Free(ASP):
        def push(self, push, now):  # worker 1 continues at once, worker 0 fetches
            return [Accept(push, 1.0), Commit(), Grant(push.worker)]
    run = Run(Free(), [Machine(constant(1.0), latency=0.1), Machine(constant(1.25), latency=0.1)],
              2.7, model_bytes=10.0, server=ServerSpec(egress=20.0))
    # Both fetch W_0 from 0.3 s on, at 10 B/s each, and begin at 1.4 s. Worker 0 pushes at 2.5 s:
    # 5 bytes are through at 2.75 s, when worker 1's version joins.
    assert run.commits == exactly([2.5])
    run.cluster.run(4.0)
    # 5 bytes at 10 B/s each: 3.25 s; then the other's last 5 at 20 B/s: 3.5 s; and the latency
    assert [r.last_pull_seconds for r in run.cluster.reports] == exactly(
        [3.25 + 0.1 - 2.6, 3.5 + 0.1 - 2.85])


def test_an_unwanted_version_still_uses_the_interface():
    # The run stops with the first push. Its version is in transit from 2.1 to 2.6 s; the fetch of
    # the final one, announced at 2.4 s, arrives at 2.5 s, and shares until 2.7 s.
    cluster = Cluster(ASP(), [Machine(constant(1.0), latency=0.1, up=100.0)], model_bytes=10.0,
                      server=ServerSpec(egress=20.0), stop_samples=1)
    cluster.run()
    report = cluster.reports[0]
    assert cluster.ended == exactly(2.3)
    assert (report.pulls, report.pull_seconds) == (2, exactly(0.7 + 3.2 - 2.4))
    assert cluster.clock.now == exactly(3.2)


def test_a_version_in_transit_to_a_lost_worker_is_lost():
    workers = [Machine(constant(1.0), incarnations=(Incarnation(0.0, 5.5),)),
               Machine(constant(1.25))]
    run = Run(ASP(), workers, 8.0, model_bytes=4.0, server=ServerSpec(egress=2.0))
    # W_0 is there at 4 s. Worker 1 pushes at 5.25 s and shares with the version of worker 0 until
    # that is lost, 0.25 bytes later.
    assert run.commits[:2] == exactly([5.0, 5.25])
    assert run.cluster.reports[1].last_pull_seconds == exactly(0.25 + 3.75 / 2)
