"""Sites whose workers share the run's data, in virtual time: each example is exactly once an epoch
in the accepted pushes of both levels, whoever dies, comes and goes.

A worker's step adds 1 at each of its examples, so that its push says what it trained. At a site,
the positions that a cut names are those of the pushes that came into the site's versions since the
cut before. And nobody stands for a round trip of a slow line.
"""

import os
from collections import Counter
from random import Random

import numpy as np
import pytest
from one_an_example import OneAnExample

from wbsp.core.messages import SharedData
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.world.machine import Incarnation, Line, Machine, constant, lognormal
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import MODELS, create

REFUSED = "lbbsp", "saps"
SEEDS = 25 if "WBSP_LONG" in os.environ else 4  # of each model above
MODELS_ABOVE = [name for name in MODELS if name not in REFUSED]


class Run:
    """A run, whose books are kept as its pushes come in.

    done: position -> how often it is in accepted pushes above
    inside: of each site, how often each example is in what it accepted since its last cut
    cut: (site, seq) -> the same, when that cut was taken
    """

    def __init__(self, above, inside, machines, data, divided, latency=0.05, options=(), **more):
        self.data, self.log = data, []
        self.done = Counter()
        self.pushed, self.came, self.cut = {}, {}, {}
        self.inside = [np.zeros(data.n) for _ in divided]
        sites = [Site(workers, create(inside, **({"batch": data.batch} if inside == "lbbsp"
                                                 else {})),
                      Machine(constant(0.0), latency, line=Line(k, 1e6, 1e6)),
                      ServerSpec(detect_seconds=0.1), log=self._within(k))
                 for k, workers in enumerate(divided)]
        self.cluster = Cluster(create(above, **dict(options)), machines,
                               OneAnExample(data.n, data.batch, len(machines)), data=data,
                               sites=sites, log=self._above, **more)
        for workers in divided:
            self._note(self.cluster.servers[workers[0]].engine, self._within_comes)
        self._note(self.cluster.engine, self._above_comes)
        assert self.cluster.run()

    def _note(self, engine, comes):
        push = engine.push

        def pushed(one, update, now, fetch=0):
            comes(one, update)
            return push(one, update, now, fetch)
        vars(engine).update(push=pushed)

    def _within_comes(self, push, update):
        self.came[push.worker, push.seq] = np.rint(update)

    def _above_comes(self, push, update):
        counts = np.zeros(self.data.n)
        for start, stop in push.spans:
            np.add.at(counts, np.arange(start, stop) % self.data.n, 1)
        assert (counts == self.cut[push.worker, push.seq]).all(), "a cut is of whole pushes"
        self.pushed[push.worker, push.seq] = push.spans

    def _within(self, site):
        def log(now, kind, **fields):
            if kind == "accept":
                self.inside[site] += self.came[fields["worker"], fields["seq"]]
            elif kind == "cut":
                self.cut[site, fields["seq"]] = self.inside[site].copy()
                self.inside[site] = np.zeros(self.data.n)
        return log

    def _above(self, now, kind, **fields):
        self.log.append((kind, now, fields))
        if kind == "accept":
            for start, stop in self.pushed[fields["worker"], fields["seq"]]:
                self.done.update(range(start, stop))

    def told(self, kind):
        return [fields for what, _, fields in self.log if what == kind]

    def check(self):
        assert self.done == Counter(range(self.data.n * self.data.epochs))
        epochs = self.data.epochs
        reason = "the epoch is trained" if epochs == 1 else f"all {epochs} epochs are trained"
        assert [fields["reason"] for fields in self.told("stop")] == [reason]
        assert self.cluster.engine.done


def drawn(seed):
    """Unequal machines of two or three sites, which come late, go, and are lost."""
    random = Random(seed)
    machines, divided = [], []
    for _ in range(random.choice([1, 2, 2, 3])):
        first = len(machines)
        for index in range(random.randint(1, 3)):
            mean = random.choice([0.05, 0.1, 0.3, 1.0])
            lives = (Incarnation(0.0 if random.random() < 0.7 else random.uniform(0.1, 5.0)),)
            if index and random.random() < 0.6:
                start, end = lives[0].start, random.uniform(0.5, 8.0)
                lives = (Incarnation(start, start + end, random.random() < 0.7),)
                if random.random() < 0.5:
                    lives += (Incarnation(start + end + random.uniform(0.1, 2.0)),)
            machines.append(Machine(lognormal(mean, 0.2, seed + len(machines)),
                                    random.choice([0.0, 0.01]), incarnations=lives))
        divided.append(range(first, len(machines)))
    batch = random.choice([1, 4, 7])
    data = SharedData(random.randint(1, 40) * batch + random.choice([0, 3]), batch,
                      random.randint(1, 3), validate=("newest", "wait")[seed % 2])
    return machines, data, divided, random.choice([0.0, 0.05, 0.5])


@pytest.mark.parametrize("above", MODELS_ABOVE)
def test_each_example_is_once_an_epoch_in_the_pushes_that_both_levels_accept(above):
    for seed in range(SEEDS):
        inside = sorted(MODELS)[(MODELS_ABOVE.index(above) + seed) % len(MODELS)]
        machines, data, divided, latency = drawn(seed)
        Run(above, inside, machines, data, divided, latency).check()
