"""m-synchronous: the first m of a round make the version, m by the measured times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from random_clusters import Witness, answer_in, granted_in, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import Accept, Commit, Grant, Reject
from wbsp.sync.ksync import LATE
from wbsp.sync.msync import MSync, fastest


class Judge:
    """A round ends with the m-th fresh push, m as the model has it; a late push is rejected."""

    def __init__(self):
        self.waiting = set()

    def __call__(self, witness, outgoing, push):
        before = witness.cluster.engine.store.latest.version - witness.committed
        granted = set(granted_in(outgoing))
        self.waiting &= witness.clock.keys()
        if push:
            assert answer_in(outgoing).accepted == (push.base_version == before)
            if push.base_version < before:
                assert granted == {push.worker}
                return
            self.waiting.add(push.worker)
        assert granted == (self.waiting if witness.committed else set())
        if witness.committed:
            self.waiting = set()


@given(plans(), st.sampled_from([0.0, 0.1, 2.0, 100.0]))
def test_random_clusters_keep_the_laws_and_no_accepted_update_is_stale(plan, s):
    model, kept = MSync(s=s), {}
    weigh = model.weight_of  # with the m of the round, which may be over when this is asked
    model.weight_of = lambda push: kept.setdefault(push, weigh(push))
    Witness(plan, model, Judge(), rejects=True, weight=kept.get)
    assert all(1 / weight == round(1 / weight) for weight in kept.values())


@pytest.mark.parametrize("seconds, noise, m", [
    # T(m) (1 + S / m), by hand
    ([1, 6], 1, 1),  # 2, 9
    ([1, 6], 64, 1),  # 65, 198
    ([1, 1, 1, 1, 1, 1, 1, 6], 8, 7),  # 15/7, 12
    ([1, 1, 1, 1, 1, 1, 1, 6], 0, 7),  # as 8
    ([1, 2, 3, 4, 5, 6, 7, 8], 1, 1),  # 2, 3, 4 ...
    ([1, 2, 3, 4, 5, 6, 7, 8], 64, 1),  # 65, 66, 67 ...: T grows as m does
    ([2, 2, 2], 1, 3), ([2, 2, 2.5], 100, 3), ([2, 2, 2.5], 1, 2), ([], 1, 1)])
def test_m_has_the_least_time_by_the_bound(seconds, noise, m):
    assert fastest(seconds, noise) == m


def test_m_is_chosen_from_the_second_round_on():
    model = MSync(s=1)
    for worker in range(3):
        model.join(worker, 0.0)
    assert model.push(push(0), 1.0) == [Accept(push(0), 1 / 3)]
    assert model.push(push(1), 1.0) == [Accept(push(1), 1 / 3)]
    assert model.push(push(2), 6.0) == [Accept(push(2), 1 / 3), Commit(),
                                        Grant(0), Grant(1), Grant(2)]
    # T = 1, 1, 6: 1 (1 + 1/1) = 2, 1 (1 + 1/2) = 1.5, 6 (1 + 1/3) = 8
    assert model.push(push(1, 1, base=1), 7.0) == [Accept(push(1, 1, base=1), 1 / 2)]
    assert Commit() in model.push(push(0, 1, base=1), 7.0)
    late = push(2, 1, base=1)
    assert model.push(late, 12.0) == [Reject(late, LATE), Grant(2)]
    model.join(3, 12.0)  # of which nothing is known: the round after the next waits for everyone
    model.push(push(0, 2, base=2), 13.0)
    assert Commit() in model.push(push(1, 2, base=2), 13.0)
    assert model.needed == 4
    assert model.leave(3, 14.0) == [] and model.needed == 3


def test_slow_workers_do_not_delay_the_others():
    cluster = Cluster(MSync(), [Machine(constant(s)) for s in (1.0, 1.0, 1.0, 6.0)])
    cluster.run(until=36.5)  # one round of 6 s, then one a second
    assert cluster.engine.store.latest.version == 1 + 30
