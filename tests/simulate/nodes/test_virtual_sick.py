"""Pushes that are not finite, in virtual time, under every synchronization model: a sick worker is
let go and costs no example; an example that makes NaN on every worker is given up and costs no
worker; and where all are sick, the run ends."""

from random import Random

import numpy as np
import pytest
from one_an_example import OneAnExample

from wbsp.core.messages import SharedData
from wbsp.core.permutation import Order, examples
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.world.machine import Machine, constant, lognormal
from wbsp.sync import MODELS, create
from wbsp.testing.once import EnginePushes, assert_each


class Spoiled(OneAnExample):
    """Its steps make NaN: all of a sick worker from one step on, and those with a bad example.

    sick: worker -> its first such step
    """

    def __init__(self, n, batch, workers, sick=(), bad=None):
        super().__init__(n, batch, workers)
        self.order = Order()
        self.sick, self.bad, self.steps = dict(sick), bad, [0] * workers

    def step(self, worker, samples=None, start=None, part=1.0):
        if start is None:  # data of its own
            samples, start = self.batch, 0
        done = super().step(worker, samples, start)
        self.steps[worker] += 1
        examples = self.order.examples(start, start + samples, self.n, 0)
        if self.steps[worker] >= self.sick.get(worker, 1 << 30) or self.bad in examples:
            self.x[worker] = np.nan
        return done


class Run:
    """A run, and what its server has logged."""

    def __init__(self, sync, machines, data, workload, sites=(), shared=True):
        self.log, self.pushes = [], EnginePushes()
        sized = {"batch": data.batch} if sync == "lbbsp" else {}
        self.cluster = Cluster(create(sync, **sized), machines, workload, log=self._log,
                               data=data if shared else None, sites=sites)
        self.pushes.watch(self.cluster.engine)
        assert self.cluster.run(100_000.0)

    def _log(self, now, kind, **fields):
        self.log.append((kind, fields))
        self.pushes.log(now, kind, **fields)

    def told(self, kind):
        return [fields for what, fields in self.log if what == kind]

    @property
    def let_go(self):
        return {fields["worker"] for fields in self.told("sick")}


def drawn(seed):
    """Unequal machines, and data."""
    random = Random(seed)
    machines = [Machine(lognormal(random.choice([0.05, 0.1, 0.3, 1.0]), 0.2, seed + index),
                        random.choice([0.0, 0.01, 0.1])) for index in range(random.randint(2, 5))]
    batch = random.choice([1, 4, 7])
    data = SharedData(random.randint(10, 40) * batch + random.choice([0, 3]), batch,
                      random.randint(1, 3), validate=("newest", "wait")[seed % 2])
    return random, machines, data


@pytest.mark.parametrize("sync", MODELS)
def test_sick_workers_cost_no_example_while_one_is_sound(sync):
    gone = 0
    for seed in range(8):
        random, machines, data = drawn(seed)
        workers = range(len(machines))
        sick = {worker: random.randint(1, 5)
                for worker in random.sample(workers, random.randint(1, len(machines) - 1))}
        run = Run(sync, machines, data, Spoiled(data.n, data.batch, len(machines), sick))
        assert not run.told("give_up"), seed
        assert_each(np.rint(run.pushes.plain), data.n, data.epochs)
        assert run.let_go <= sick.keys() and not run.cluster.engine.failed, seed
        gone += len(run.let_go)
    assert gone or sync == "adsp", "no worker was sick for long enough"  # it pushes seldom


@pytest.mark.parametrize("sync", MODELS)
def test_an_example_that_makes_nan_on_every_worker_is_given_up_and_costs_no_worker(sync):
    for seed in range(8):
        random, machines, data = drawn(seed)
        bad = random.randrange(data.n)
        run = Run(sync, machines, data, Spoiled(data.n, data.batch, len(machines), bad=bad))
        given_up = np.zeros(data.n)
        for fields in run.told("give_up"):
            np.add.at(given_up, np.arange(fields["start"], fields["stop"]) % data.n, 1)
        assert sum(bad in examples(g, g + 1, data.n, 0) for fields in run.told("give_up")
                   for g in range(fields["start"], fields["stop"])) == data.epochs, seed
        assert_each(np.rint(run.pushes.plain) + given_up, data.n, data.epochs)
        assert not run.let_go and run.told("stop")[-1]["reason"].endswith(
            f"but for {int(given_up.sum()):,} examples that were given up"), seed


@pytest.mark.parametrize("shared", [True, False], ids=["shared data", "own data"])
@pytest.mark.parametrize("sync", [pytest.param(sync, marks=[pytest.mark.long] * (sync == "adsp"))
                                  for sync in MODELS])  # adsp pushes once in a while
def test_a_run_whose_workers_are_all_sick_fails(sync, shared):
    if not shared and create(sync).rule.shared:
        pytest.skip(f"{sync} assigns the examples")
    for seed, workers in enumerate((1, 3)):
        machines = [Machine(constant(0.1 + 0.01 * worker), 0.01) for worker in range(workers)]
        data = SharedData(20_000 if sync == "adsp" else 2000, 4, 1)
        run = Run(sync, machines, data, Spoiled(data.n, 4, workers,
                                                dict.fromkeys(range(workers), 2)),
                  shared=shared)
        engine = run.cluster.engine
        assert engine.failed and engine.done and run.let_go == {*range(workers)}, seed
        assert "the pushes of all workers were not finite" in engine.stop_reason
        assert not run.told("give_up") and np.isfinite(engine.store.latest.vector).all()


def test_a_worker_that_recovers_is_not_removed():
    """The model was not finite once; the next version replaces it; no other state exists."""
    class Once(Spoiled):
        def step(self, worker, samples, start, part=1.0):
            done = super().step(worker, samples, start)
            if worker == 0 and self.steps[0] == 3:
                self.x[0] = np.nan
            return done
    for sync in MODELS:
        machines = [Machine(constant(0.02), 0.01), Machine(constant(0.3), 0.01)]
        data = SharedData(400, 4, 1)
        run = Run(sync, machines, data, Once(data.n, 4, 2))
        assert not run.let_go and not run.told("give_up"), sync
        assert_each(np.rint(run.pushes.plain), data.n)


def test_a_site_lets_go_of_its_own_sick_worker():
    machines = [Machine(constant(seconds)) for seconds in (0.05, 0.1, 0.1)]
    data, inside = SharedData(600, 4, 2), []
    sites = [Site(workers, create("pcc"), Machine(constant(0.0), 0.05),
                  log=lambda now, kind, **fields: inside.append((kind, fields.get("worker"))))
             for workers in ([0, 1], [2])]
    run = Run("pcc", machines, data, Spoiled(data.n, 4, 3, {0: 3}), sites)
    assert [worker for kind, worker in inside if kind == "sick"] == [0]
    assert not run.let_go and not run.told("give_up")
    assert not [kind for kind, _ in inside if kind == "give_up"]
    assert run.told("stop")[0]["reason"] == "all 2 epochs are trained"
