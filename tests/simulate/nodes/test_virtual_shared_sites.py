"""Sites whose workers share the run's data, in virtual time: each example is exactly once an epoch
in the accepted pushes of both levels, whoever dies, comes and goes.

A worker's step adds 1 at each of its examples, so that its push says what it trained. At a site,
the positions that a cut names are those of the pushes that came into the site's versions since the
cut before. And no worker idles for a round trip of a slow line.
"""

import os
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
from wbsp.testing.once import EnginePushes, assert_each, in_spans

REFUSED = "lbbsp", "saps"
SEEDS = 25 if "WBSP_LONG" in os.environ else 4  # of each model above
MODELS_ABOVE = [name for name in MODELS if name not in REFUSED]


class Run:
    """A run, whose books are kept as its pushes come in.

    above, inside: the pushes that reached the server above, and those that reached each site
    cut: (site, seq) -> what the site had accepted when that cut was taken
    """

    def __init__(self, above, inside, machines, data, divided, latency=0.05, options=(), **more):
        self.data, self.log = data, []
        self.above, self.inside = EnginePushes(), [EnginePushes() for _ in divided]
        self.cut = {(k, -1): np.zeros(data.n) for k, _ in enumerate(divided)}
        sites = [Site(workers, create(inside, **({"batch": data.batch} if inside == "lbbsp"
                                                 else {})),
                      Machine(constant(0.0), latency, line=Line(k, 1e6, 1e6)),
                      ServerSpec(detect_seconds=0.1), log=self._within(k))
                 for k, workers in enumerate(divided)]
        self.cluster = Cluster(create(above, **dict(options)), machines,
                               OneAnExample(data.n, data.batch, len(machines)), data=data,
                               sites=sites, log=self._above, **more)
        for workers, pushes in zip(divided, self.inside, strict=True):
            pushes.watch(self.cluster.servers[workers[0]].engine)
        self.above.watch(self.cluster.engine)
        assert self.cluster.run()

    def _within(self, site):
        def log(now, kind, **fields):
            self.inside[site].log(now, kind, **fields)
            if kind == "cut":
                self.cut[site, fields["seq"]] = np.rint(self.inside[site].plain)
        return log

    def _above(self, now, kind, **fields):
        self.log.append((kind, now, fields))
        self.above.log(now, kind, **fields)

    def told(self, kind):
        return [fields for what, _, fields in self.log if what == kind]

    def check(self):
        n, epochs = self.data.n, self.data.epochs
        assert_each(self.above.trained, n * epochs)
        for site, cuts in self.above.of.items():
            for seq, spans in cuts.spans.items():
                named = np.bincount([g % n for g in in_spans(spans)], minlength=n)
                assert (named == self.cut[site, seq] - self.cut[site, seq - 1]).all(), (
                    "a cut is of whole pushes")
        reason = "the epoch is trained" if epochs == 1 else f"all {epochs} epochs are trained"
        assert [fields["reason"] for fields in self.told("stop")] == [reason]
        assert self.cluster.engine.done


def drawn(seed):
    """Unequal machines of two or three sites, which join late, leave, and are lost."""
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
