"""Sites in virtual time: servers that are workers of a server above, with the live sites' rules."""

import numpy as np
import pytest
from quadratic import QuadraticWorkload

from wbsp.core.goal import Goal
from wbsp.core.outer_optimizer import create_outer
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.server import Evaluator
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.world.machine import Incarnation, Line, Machine, constant, lognormal
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import create
from wbsp.tensors.codecs import parse
from wbsp.testing import IntegerWorkload
from wbsp.testing.once import EnginePushes

EXACT = "bsp", "asp", "ssp", "dssp", "wbsp", "pcc", "nbsync", "localsgd", "esync", "ksync", "adsp"


def line(site, up=5.0, down=7.0, latency=0.2):
    return Machine(constant(0.0), latency, line=Line(site, up, down))


class Books:
    """A run of two sites, and the received updates at both levels: sums in float64.

    Steps are multiples of 60 and weights those of 1, 2 or 4 peers, so that no sum is rounded.

    above, inside: the pushes of the sites, and those of each site's workers
    """

    def __init__(self, above, inside, seed=0, sites=2, workers=2, lives=None,
                 workload=IntegerWorkload, **more):
        n = sites * workers
        self.workload = workload(n)
        self.events, self.above, self.inside = [], EnginePushes(), [
            EnginePushes() for _ in range(sites)]
        machines = [Machine(lognormal(1.0 + worker / 3, 0.3, 100 * seed + worker), 0.01, 20.0, 30.0,
                            (lives or {}).get(worker, (Incarnation(),))) for worker in range(n)]
        within = [Site(range(workers * k, workers * (k + 1)), create(inside), line(k),
                       ServerSpec(30.0, 40.0, 0.02, 0.3), log=self._logs(k)) for k in range(sites)]
        self.cluster = Cluster(create(above), machines, self.workload, ServerSpec(50.0, 50.0, 0.05),
                               model_bytes=3.0, sites=within, log=self._logs("above"),
                               **{"stop_samples": 90, **more})
        self.above.watch(self.cluster.engine)
        for k, pushes in enumerate(self.inside):
            pushes.watch(self.cluster.servers[workers * k].engine)
        self.cluster.run()

    def _logs(self, level):
        def log(now, kind, **fields):
            self.events.append((level, now, kind, fields))
            (self.above if level == "above" else self.inside[level]).log(now, kind, **fields)
        return log

    def sent(self, worker):
        """The sum of a worker's pushes."""
        (mine,) = (pushes.of[worker] for pushes in self.inside if worker in pushes.of)
        return sum(mine.made.values())

    @property
    def final(self):
        return self.cluster.engine.store.latest.vector


def assert_conserved(books):
    """W = W_0 + the sum of weight * cut, and a site's cuts are what it has accepted, exactly."""
    assert books.cluster.ended is not None and books.cluster.engine.done
    assert np.array_equal(books.above.total, books.final) and books.final.any()
    for site, pushes in enumerate(books.inside):
        cuts = books.above.of.get(site)
        assert np.array_equal(pushes.total, sum(cuts.made.values()) if cuts else 0.0)
    for pushes in (books.above, *books.inside):
        pushes.check()


@pytest.mark.parametrize("above", EXACT)
def test_both_levels_are_exact_in_whole_numbers(above):
    for seed in range(4):  # 0: the same model at both
        inside = EXACT[(EXACT.index(above) + 3 * seed) % len(EXACT)]
        books = Books(above, inside, seed, workers=[2, 4][seed % 2])
        assert_conserved(books)
        for worker, progress in enumerate(books.workload.progress):
            assert np.array_equal(books.sent(worker), progress)
        for x in books.workload.x:
            assert x.tobytes() == books.final.tobytes()
        counted, trained = books.cluster.engine.samples, sum(
            report.samples for report in books.cluster.reports)
        # a site's cuts have the examples of the pushes that it has accepted
        accepted = sum(server.engine.trained for server in {*books.cluster.servers})
        assert 90 <= counted == accepted
        assert counted <= trained if inside == "ksync" else counted == trained


class Uncounted(IntegerWorkload):
    """The steps of the first site's workers move the model and count no example."""

    def step(self, worker, *args):
        samples, loss = super().step(worker, *args)
        return samples if worker > 1 else 0, loss


@pytest.mark.parametrize("above, inside", [("bsp", "bsp"), ("asp", "ksync"), ("localsgd", "pcc")])
def test_steps_that_count_no_example_go_up_too(above, inside):
    books = Books(above, inside, workload=Uncounted, stop_samples=20)
    assert_conserved(books)
    for x in books.workload.x:
        assert x.tobytes() == books.final.tobytes()


@pytest.mark.parametrize("above, inside", [("bsp", "bsp"), ("pcc", "asp"), ("localsgd", "pcc")])
def test_deaths_returns_and_late_joins_of_workers_lose_nothing_of_the_others(above, inside):
    lives = {0: (Incarnation(0.0, 6.0), Incarnation(9.0)), 2: (Incarnation(4.0),),
             5: (Incarnation(0.0, 5.0, lost=False),), 4: (Incarnation(0.0, 8.0),)}
    books = Books(above, inside, sites=4, lives=lives)
    assert_conserved(books)
    for worker in (1, 3, 6, 7):
        assert books.workload.x[worker].tobytes() == books.final.tobytes()
        assert np.array_equal(books.sent(worker), books.workload.progress[worker])


def test_a_site_without_workers_leaves_and_the_other_sites_continue():
    lives = {worker: (Incarnation(0.0, 3.0 + worker),) for worker in range(2)}
    books = Books("bsp", "asp", lives=lives)
    assert books.cluster.engine.samples >= 90
    left = next(now for level, now, kind, fields in books.events
                if (level, kind) == ("above", "leave") and fields["worker"] == 0)
    assert 4.3 < left < books.cluster.ended / 2
    assert_conserved(books)


def test_a_site_with_late_workers_begins_with_the_newest_version():
    lives = {worker: (Incarnation(20.0),) for worker in range(2)}
    books = Books("asp", "asp", lives=lives)
    assert_conserved(books)
    first = next(fields for level, _, kind, fields in books.events if (level, kind) == (0, "adopt"))
    assert first["above"] > 1 and first["version"] == 1


def test_the_same_sites_twice_give_the_same_events():
    def heard(seed):
        return Books("auto", "wbsp", seed).events
    assert heard(0) == heard(0) != heard(1)


def times(above, inside, until=20.0, seconds=((1.0, 2.0), (1.0,)), lines=((10.0, 20.0),) * 2,
          wire="float32"):
    """Times of the versions above, and the cluster; a version has 10 bytes, latencies are 0.1 s."""
    commits, machines, sites = [], [], []
    for k, (steps, (up, down)) in enumerate(zip(seconds, lines, strict=True)):
        first = len(machines)
        machines += [Machine(constant(step)) for step in steps]
        sites.append(Site(range(first, len(machines)), create(inside), line(k, up, down, 0.1)))
    model = create(above[0], **dict(above[1:]))
    cluster = Cluster(model, machines, sites=sites, wire=parse(wire), model_bytes=10.0,
                      log=lambda now, kind, **_: kind == "commit" and commits.append(now))
    cluster.run(until)
    return commits, cluster


def exactly(values):
    return pytest.approx(values, rel=0, abs=1e-9)


def test_a_step_of_a_site_is_a_version_and_only_that_crosses_the_line():
    commits, cluster = times(["bsp"], "bsp")
    # Join and grant 0.2, request and W_0 0.2 + 10 / 20 = 0.9. The slow site's version takes 2 s,
    # its push 0.1 + 10 / 10, and the version above 0.1 + 10 / 20.
    assert commits == exactly([0.9 + 3.1, 0.9 + 3.1 + 3.7, 0.9 + 3.1 + 2 * 3.7, 15.1, 18.8])
    assert cluster.moved == dict.fromkeys((0, 1), 10.0 * (6 + 5))
    assert cluster.pushed == 10.0 * (2 * 5 + 3 * 6 - 3)  # of sites; of workers, one is under way
    with_lines_alone = [report.seconds["compute"] for report in cluster.reports]
    assert with_lines_alone == exactly([5.0 + 0.6, 10.0 + 0.6, 5.0 + 0.6])


def test_a_site_pushes_after_tau_versions_and_waits_for_the_version_above():
    commits, _ = times(["localsgd", ("tau", 3)], "bsp")
    assert commits == exactly([0.9 + 3 * 2.0 + 1.1, 0.9 + 2 * 6.0 + 2 * 1.1 + 0.6])


def test_a_site_trains_on_while_the_model_above_lets_it():
    _, cluster = times(["pcc"], "asp", until=30.0)
    for report, step in zip(cluster.reports, (1.0, 2.0, 1.0), strict=True):
        assert report.seconds["compute"] == exactly(30.0 - 0.9)
        assert report.steps == int(29.1 / step)


def test_each_line_has_its_own_format():
    sent = {}
    for wire in ("float32", "int8"):
        _, cluster = times(["bsp"], "bsp", wire=wire, until=12.0, lines=((1e9, 1e9),) * 2)
        assert {report.push_bytes for report in cluster.reports} == {10}
        sent[wire] = cluster.payload.update
    assert sent["int8"] < sent["float32"] == 10


@pytest.mark.parametrize("wire", ["float32", "int8", "topk:0.2"])
def test_sites_with_an_outer_step_and_a_format_learn(wire):
    workload = QuadraticWorkload(4, 64, rate=0.01)
    sites = [Site(range(2 * k, 2 * k + 2), create("bsp"), line(k, 1e3, 1e3, 0.1)) for k in (0, 1)]
    evaluator = Evaluator(lambda snapshot: {
        "accuracy": 1 - workload.loss(snapshot.vector) / workload.loss(workload.initial())},
        target=Goal.of(0.9))
    machines = [Machine(constant(1.0 + k / 2)) for k in range(4)]
    cluster = Cluster(create("localsgd", tau=4), machines, workload, sites=sites, model_bytes=256.0,
                      wire=parse(wire), evaluator=evaluator,
                      outer=create_outer("nesterov", rate=0.7, momentum=0.5))
    cluster.run()
    assert cluster.engine.stop_reason.startswith("accuracy 0.9")
    for x in workload.x:
        assert x.tobytes() == cluster.engine.store.latest.vector.tobytes()


def site_of(*workers):
    return Site(workers, create("bsp"), line(0))


@pytest.mark.parametrize("sites, above, words", [
    ([site_of(0)], create("bsp"), "each worker belongs to one site"),
    ([site_of(0, 1), site_of()], create("bsp"), "each site has a worker"),
    ([site_of(0, 1)], create("lbbsp"), "runs lbbsp, which assigns the examples of each step"),
])
def test_sites_that_cannot_be_are_refused_in_one_line(sites, above, words):
    with pytest.raises(ValueError, match=words) as error:
        Cluster(above, [Machine(constant(1.0))] * 2, sites=sites)
    assert "\n" not in str(error.value)


def test_a_thousand_workers_at_sites_cost_a_handful_of_events_each_step():
    machines = [Machine(lognormal(1.0, 0.2, seed=i), 0.001, 1e8) for i in range(1000)]
    sites = [Site(range(100 * k, 100 * k + 100), create("bsp"), line(k, 1e8, 1e8))
             for k in range(10)]
    cluster = Cluster(create("auto"), machines, model_bytes=1e6, stop_samples=3000, sites=sites)
    cluster.run()
    assert cluster.engine.samples >= 3000
    assert cluster.clock.events <= 6 * sum(report.steps for report in cluster.reports) + 10 * 1000
