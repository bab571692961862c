"""Data that all workers share, in virtual time, under every synchronization model: each example is
exactly once an epoch in accepted pushes, whoever dies, comes and goes. Where epochs do not overlap,
an epoch's version is of whole epochs.

The model has one float an example, and a step adds 1 at each of its examples. So the sum of the
accepted cuts, as they were when they came in, is what they trained: `epochs` everywhere.
"""

from random import Random

import numpy as np
import pytest
from one_an_example import OneAnExample

from wbsp.core.messages import SharedData
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Incarnation, Machine, constant, lognormal
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import MODELS, create
from wbsp.testing.once import EnginePushes, assert_each


class Run:
    def __init__(self, sync, machines, data, options=(), **more):
        self.data, self.log, self.pushes = data, [], EnginePushes()
        self.newest, self.due = 0, None  # versions: made, and of an epoch that is complete
        self.cluster = Cluster(create(sync, **dict(options)), machines,
                               OneAnExample(data.n, data.batch, len(machines)), log=self._log,
                               data=data, **more)
        self.pushes.watch(self.cluster.engine)
        assert self.cluster.run()

    def _log(self, now, kind, **fields):
        self.log.append((kind, now, fields))
        self.pushes.log(now, kind, **fields)
        if kind == "accept":
            assert self.due is None, "the epoch's version is made first"
        if kind == "commit":
            assert self.due in (None, fields["version"])
            self.newest, self.due = fields["version"], None
        if kind == "epoch" and self.data.validate == "wait":
            assert_each(np.rint(self.pushes.plain), self.data.n, fields["epoch"])
            self.due = fields["version"] if fields["version"] > self.newest else None

    def told(self, kind):
        return [fields for what, _, fields in self.log if what == kind]

    def check(self):
        epochs = self.data.epochs
        assert_each(np.rint(self.pushes.plain), self.data.n, epochs)
        reason = "the epoch is trained" if epochs == 1 else f"all {epochs} epochs are trained"
        assert [fields["reason"] for fields in self.told("stop")] == [reason]
        assert [fields["epoch"] for fields in self.told("epoch")][-1] == epochs
        assert self.cluster.engine.done


def drawn(seed):
    """Machines that are unequal, join late, leave, and are lost; the first one stays."""
    random = Random(seed)
    machines = []
    for index in range(random.randint(2, 5)):
        mean = random.choice([0.05, 0.1, 0.3, 1.0])
        end = random.uniform(0.5, 8.0)
        lives = (Incarnation(0.0 if random.random() < 0.7 else random.uniform(0.1, 5.0)),)
        if index and random.random() < 0.6:
            start = lives[0].start
            lives = (Incarnation(start, start + end, random.random() < 0.7),)
            if random.random() < 0.5:
                lives += (Incarnation(start + end + random.uniform(0.1, 2.0)),)
        if not index:
            lives = (Incarnation(),)
        machines.append(Machine(lognormal(mean, 0.2, seed + index), random.choice([0.0, 0.01, 0.1]),
                                incarnations=lives))
    batch = random.choice([1, 4, 7])
    return machines, SharedData(random.randint(1, 40) * batch + random.choice([0, 3]), batch,
                                random.randint(1, 3), validate=("newest", "wait")[seed % 2]
                                ), random.choice([0.0, 0.3])


@pytest.mark.parametrize("sync", MODELS)
def test_each_example_is_once_an_epoch_in_accepted_pushes(sync):
    for seed in range(25):
        machines, data, detect = drawn(seed)
        sized = {"batch": data.batch} if sync == "lbbsp" else {}
        Run(sync, machines, data, sized, server=ServerSpec(detect_seconds=detect)).check()


def test_two_unequal_workers_take_no_longer_than_both_together():
    """The example of docs/tutorial/your-model.md, in time alone: 20 epochs of 200 batches of 64."""
    machines = [Machine(constant(seconds), 0.001) for seconds in (0.0105, 0.1)]
    run = Run("pcc", machines, SharedData(12_800, 64, 20))
    run.check()
    ideal = 4000 / (1 / 0.0105 + 1 / 0.1)
    assert run.cluster.ended / ideal < 1.05


def test_eight_unequal_workers_end_together():
    machines = [Machine(constant(ms / 1000), 0.001) for ms in (20, 24, 30, 30, 40, 60, 60, 120)]
    run = Run("pcc", machines, SharedData(12_800, 64, 20))
    run.check()
    assert run.cluster.ended * sum(1 / machine.step(0, 0) for machine in machines) / 4000 < 1.05


@pytest.mark.parametrize("controller", ["cpu", "gpu", "federated"])
def test_a_model_that_sizes_batches_does_so_with_shared_data(controller):
    """Sizes are the model's, examples the ledger's: a fast worker trains more in a round."""
    machines = [Machine(constant(seconds)) for seconds in (0.1, 0.3)]
    run = Run("lbbsp", machines, SharedData(4000, 20, 3),
              {"batch": 20, "controller": controller, "tau": 2})
    run.check()
    fast, slow = (sum(fields["samples"] for fields in run.told("accept")
                      if fields["worker"] == worker) for worker in range(2))
    assert fast > 2 * slow


def test_batches_of_another_size_than_the_models_are_refused():
    with pytest.raises(ValueError, match="worker 0 brings data in batches of 10, and lbbsp makes "
                                         "its batches of 128 on average: start the server with "
                                         "--sync_option=batch=10, or give batch_size=128"):
        Run("lbbsp", [Machine(constant(1.0))], SharedData(100, 10, 1))
