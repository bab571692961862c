"""NBSync: no worker waits, and every version merges what was trained from the last but one."""

from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import Witness, granted_in, many, plans

from wbsp.core.agent import Adopt, Agent
from wbsp.core.messages import Fetch
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, Push
from wbsp.sync.nbsync import NBSync


class Rounds(Witness):
    """Knows of every worker how far it is, and what each of its pushes must have come from."""

    def __init__(self, plan, model):
        self.new = set()  # workers that have yet to push
        self.unreset = set()  # workers that have yet to return to the version they began with
        self.steps, self.mean = [], None  # of the regular pushes in this round; of the last such
        super().__init__(plan, model, Rounds.judge, self.weighs if model.normalize else None)
        self.assert_idle_for()

    def log(self, now, kind, **fields):
        super().log(now, kind, **fields)
        if kind == "join":
            self.new.add(fields["worker"])
            self.unreset.discard(fields["worker"])

    def adopt(self, worker, now, version, how):
        if worker in self.unreset and version == self.held[worker]:
            assert how == "replace"
            self.unreset.discard(worker)
            return
        if worker in self.joining:
            self.unreset.add(worker)
        elif not self.cluster.workers[worker].agent.finished:
            assert version == self.held[worker] + 1, "a version was left out"
        super().adopt(worker, now, version, how)

    def push(self, push, update, now, fetch=0):
        worker, newest = push.worker, self.cluster.engine.store.latest.version
        # Apart from a worker's first push, and from its last in a round that has its push already.
        self.regular = worker not in self.new and worker in self.missing
        assert push.base_version == (newest - 1 if self.regular else newest)
        if worker in self.new:
            assert (worker in self.unreset) == (self.model.merge == "add")
        self.new.discard(worker)
        if self.regular:
            self.steps.append(push.steps)
        return super().push(push, update, now, fetch)

    def weighs(self, push):
        """What an accepted push must weigh with normalize=true."""
        factor = (self.mean or push.steps) / push.steps if self.regular else 1
        return factor / len(self.model.active)

    def judge(self, outgoing, push):
        granted = granted_in(outgoing).keys()
        due = self.round_complete
        assert self.committed == due
        assert granted == (set(self.clock) if due else set())
        if due:
            self.mean = np.mean(self.steps) if self.steps else self.mean
            self.steps = []
            self.restart_round()


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_never_wait(plan):
    Rounds(plan, NBSync())


@many
@given(plans())
def test_random_clusters_that_add_keep_the_laws_and_never_wait(plan):
    Rounds(plan, NBSync(merge="add"))


@many
@given(plans(), st.sampled_from(["replace", "add"]))
def test_random_clusters_that_normalize_keep_the_laws_and_never_wait(plan, merge):
    Rounds(plan, NBSync(merge=merge, normalize=True))


# Equal workers in float64: all end a step together, and a version is `tau` steps on its way.


def train(model, descend, tau, last, doubled=False):
    """Versions 0 .. `last` of workers that make x = descend[k](x) at a step.

    doubled: as the prototype, which forgets to take out the first step's progress
    """
    n = len(descend)
    agents = [Agent(worker, model.rule) for worker in range(n)]
    versions, pending, coming = [np.ones(2)], np.zeros(2), {}
    x, anchor = versions * n, versions * n
    for worker, agent in enumerate(agents):
        assert model.join(worker, 0.0) == [Grant(worker)]
        assert agent.granted(0) == [Fetch(1)]
        assert agent.fetched(0) == [Adopt(0, "replace")]
    step = 0
    while len(versions) <= last:
        step += 1
        x = [move(y) for move, y in zip(descend, x, strict=True)]
        for worker in coming.pop(step, ()):
            assert agents[worker].fetched(len(versions) - 1) == []
        for worker, agent in enumerate(agents):
            for command in agent.step_done(1, 1.0):
                uncut, forgets = x[worker] - anchor[worker], doubled and step == 1
                if isinstance(command, Adopt):
                    if not forgets:
                        anchor[worker] = versions[command.version]
                        x[worker] = anchor[worker] + (uncut if command.how == "rebase" else 0)
                    continue
                if not forgets:
                    anchor[worker] = x[worker]
                actions = model.push(command.push, step)
                agent.acked(None)
                for action in actions:
                    if isinstance(action, Accept):
                        pending = pending + action.weight * uncut
                    elif isinstance(action, Commit):
                        versions.append(versions[-1] + pending)
                        pending = np.zeros(2)
                    else:
                        commands = agents[action.worker].granted(len(versions) - 1)
                        assert commands == [Fetch(ANY)]
                        coming.setdefault(step + tau, []).append(action.worker)
    return versions


def progress(move, x, steps):
    """LocalSGD^steps(x) - x"""
    end = x
    for _ in range(steps):
        end = move(end)
    return end - x


def replaced(descend, tau, last):
    """W_(n+1) = W_n + mean over k of (LocalSGD_k^tau(W_(n-1)) - W_(n-1)); the first: one step."""
    w = [np.ones(2)]
    w.append(w[0] + np.mean([progress(move, w[0], 1) for move in descend], axis=0))
    while len(w) <= last:
        w.append(w[-1] + np.mean([progress(move, w[-2], tau) for move in descend], axis=0))
    return w


def added(descend, tau, last):
    """The same with x = W_n + delta after each handing over, so that delta is in x throughout."""
    w, delta = [np.ones(2)], [progress(move, np.ones(2), 1) for move in descend]
    while len(w) <= last:
        x = [w[-1] + d for d in delta]
        w.append(w[-1] + np.mean(delta, axis=0))
        delta = [progress(move, y, tau) for move, y in zip(descend, x, strict=True)]
    return w


@st.composite
def descents(draw):
    """1 to 4 workers' noiseless steps on a quadratic bowl of their own."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))

    def bowl():
        turn = np.linalg.qr(rng.standard_normal((2, 2)))[0]
        a = turn @ np.diag(rng.uniform(0.02, 0.98, 2)) @ turn.T
        lowest = rng.standard_normal(2)
        return lambda x: x - a @ (x - lowest)
    return [bowl() for _ in range(draw(st.integers(1, 4)))]


def furthest(some, others):
    return max(np.abs(a - b).max() for a, b in zip(some, others, strict=True))


@many
@given(descents(), st.integers(1, 6), st.booleans())
def test_equal_workers_follow_the_recurrence(descend, tau, normalize):
    w = train(NBSync(normalize=normalize), descend, tau, 12)
    assert furthest(w, replaced(descend, tau, 12)) < 1e-12


@many
@given(descents(), st.integers(1, 6))
def test_equal_workers_that_add_follow_their_recurrence(descend, tau):
    w = train(NBSync(merge="add"), descend, tau, 12)
    assert furthest(w, added(descend, tau, 12)) < 1e-12


@many
@given(descents(), st.integers(1, 6))
def test_the_prototypes_doubled_first_step_breaks_the_recurrence(descend, tau):
    w, right = train(NBSync(), descend, tau, 2, doubled=True), replaced(descend, tau, 2)
    assert furthest(w[:2], right[:2]) < 1e-12
    extra = [progress(move, w[0], 1 + tau) - progress(move, w[0], tau) for move in descend]
    assert np.allclose(w[2] - right[2], np.mean(extra, axis=0), rtol=0, atol=1e-12)
    assert furthest(w, right) > 1e-9  # what the test above would see


def test_one_worker_that_adds_is_plain_sgd_and_one_that_replaces_swings():
    """On x^2/2 with a = 1 - (1 - 0.5)^4: x' = (1 - a) x, against z^2 - z + a = 0."""
    def move(x):
        return 0.5 * x

    a, w = 1 - 0.5 ** 4, np.array(train(NBSync(merge="add"), [move], 4, 9))[:, 0]
    assert np.allclose(w, [1] + [0.5 * (1 - a) ** n for n in range(9)], rtol=0, atol=1e-12)
    swinging = np.array(train(NBSync(), [move], 4, 60))[:, 0]
    assert (np.sign(swinging) == -1).sum() > 20
    energy = swinging[1:] ** 2 - swinging[1:] * swinging[:-1] + a * swinging[:-1] ** 2
    assert np.allclose(energy[1:] / energy[:-1], a, rtol=1e-9)  # |root| = sqrt(a) a version


class Tug:
    """Two workers with lowest points 1 and -1 and the same curvature; plain descent."""

    batch, sgd, statistics = 1, True, ()

    def __init__(self):
        self.x, self.anchor = [self.initial(), self.initial()], [self.initial(), self.initial()]

    def initial(self):
        return np.zeros(1, np.float32)

    def step(self, worker):
        self.x[worker] = self.x[worker] - np.float32(0.02) * (self.x[worker] - (1, -1)[worker])
        return 1, 0.0

    def cut(self, worker):
        update, self.anchor[worker] = self.x[worker] - self.anchor[worker], self.x[worker]
        return update

    def adopt(self, worker, vector, how):
        self.x[worker] = self.anchor[worker] = vector


@pytest.mark.parametrize("normalize, low, high", [(False, 0.7, 1.0), (True, -0.1, 0.1)])
def test_normalize_takes_away_the_pull_of_the_faster_worker(normalize, low, high):
    cluster = Cluster(NBSync(normalize=normalize),
                      [Machine(constant(0.1)), Machine(constant(1.0))], Tug(), stop_samples=5000)
    cluster.run()
    assert low < cluster.engine.store.latest.vector[0] < high


def push(worker, seq=0, base=0, steps=1):
    return Push(worker, seq, base, steps, steps, float(steps))


def begun(n, **options):
    """A model with n workers whose first pushes have made version 1."""
    model = NBSync(**options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    for worker in range(n - 1):
        assert model.push(push(worker), 1.0) == [Accept(push(worker), 1 / n)]
    last = push(n - 1)
    assert model.push(last, 1.0) == [Accept(last, 1 / n), Commit(), *map(Grant, range(n))]
    return model


def test_a_worker_that_leaves_completes_the_round():
    model = begun(3)
    model.push(push(0, 1), 2.0)
    model.push(push(2, 1), 2.0)
    assert model.leave(1, 3.0) == [Commit(), Grant(0), Grant(2)]


def test_a_worker_that_joins_is_granted_at_once_and_its_first_push_belongs_to_the_round():
    model = begun(2)
    model.push(push(0, 1), 2.0)
    assert model.join(2, 2.0) == [Grant(2)]
    assert Commit() not in model.push(push(1, 1), 3.0)
    first = push(2, base=1)
    assert model.push(first, 4.0) == [Accept(first, 1 / 3), Commit(), *map(Grant, range(3))]


def test_a_round_is_complete_without_a_joiner_that_is_lost_before_its_first_push():
    model = begun(1)
    model.join(1, 2.0)
    model.push(push(0, 1), 3.0)
    assert model.leave(1, 4.0) == [Commit(), Grant(0)]


def test_normalize_weighs_by_the_last_rounds_mean_and_leaves_single_steps_alone():
    model = begun(2, normalize=True)

    def weight(*args):
        return model.push(push(*args), 2.0)[0].weight

    assert weight(0, 1, 0, 8) == 1 / 2  # there is no mean of several steps yet
    assert weight(1, 1, 0, 2) == 1 / 2
    assert weight(0, 2, 1, 10) == 5 / 10 / 2
    model.join(2, 2.0)
    assert weight(2, 0, 2, 1) == 1 / 3  # the first of a life
    assert weight(1, 2, 1, 1) == 5 / 1 / 3


def test_normalize_knows_the_first_pushes_of_a_resumed_run():
    model = NBSync(normalize=True)
    model.join(0, 0.0)
    assert model.push(push(0, 7, 100), 1.0)[0].weight == 1
    assert model.push(push(0, 8, 100, 4), 2.0)[0].weight == 1
    assert model.push(push(0, 9, 101, 8), 3.0)[0].weight == 4 / 8


def test_merging_by_addition_is_adoption_before_the_cut():
    assert NBSync().rule.adopt == "replace" and NBSync(merge="add").rule.adopt == "rebase"
    with pytest.raises(ValueError, match="nbsync: option merge='mean' is not one of replace, add"):
        NBSync(merge="mean")
