"""The workers' batches under `auto`: what decides them, and that they follow the workers' times."""

import math

import pytest

from wbsp.core.messages import SharedData
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.workloads.base import TimingWorkload
from wbsp.simulate.world.machine import Incarnation, Machine, constant
from wbsp.sync.auto import Auto
from wbsp.sync.base import Push
from wbsp.sync.batch import Batches, halved, power_of, wanted

DATA = SharedData(4000, 8, 4)


@pytest.mark.parametrize("batch, width, fixed", [(8, 8, 1.5), (128, 8, 20), (8, 2, 0.5)])
def test_the_fixed_part_of_a_step_takes_a_fifth_of_it_at_most(batch, width, fixed):
    x = wanted(batch, width, fixed)
    assert x == batch / width or fixed / (fixed + x) == pytest.approx(1 / 5)


def test_all_workers_together_have_the_users_batch_and_none_has_a_larger_one():
    assert wanted(8, 8.0, 0.0) == 1 and wanted(8, 1.0, 0.0) == 8 and wanted(128, 4.0, 3.0) == 32
    assert wanted(8, 8.0, math.inf) == 8 == wanted(8, 8.0, 2.0) and wanted(8, 0.5, 0.0) == 8


@pytest.mark.parametrize("batch, wish, least, size", [
    (8, 1.0, 1, 1), (8, 1.0, 3, 4), (8, 5.4, 1, 4), (8, 6.0, 1, 8), (10, 2.4, 1, 2), (1, 0.1, 1, 1),
    (32, 4.0, 16, 16), (12, 4.0, 16, 12), (8, 8.0, 1, 8)])
def test_a_batch_is_halved_to_the_nearest_and_not_below_the_least(batch, wish, least, size):
    assert halved(batch, wish, least) == size


def test_the_rate_of_adam_goes_with_the_root_of_the_batch_and_others_keep_theirs():
    class SGD: ...
    class AdamW: ...
    class Mine(AdamW): ...
    class Lion: ...
    assert [power_of(kind) for kind in (SGD, AdamW, Mine, Lion)] == [None, 0.5, 0.5, None]


def batches(seconds, machines=None, model=None, data=DATA, workload=None, **more):
    """Train; worker -> its directed batches with their reasons, and the cluster."""
    found = {}

    def log(now, kind, **fields):
        if kind == "batch":
            found.setdefault(fields["worker"], []).append((fields["batch"], fields["why"]))

    machines = machines or [Machine(constant(one), latency=0.001) for one in seconds]
    cluster = Cluster(model or Auto(), machines, workload or TimingWorkload(8), data=data, log=log,
                      **more)
    cluster.run()
    return found, cluster


def test_eight_equal_workers_have_an_eighth_and_the_run_as_many_steps_of_each_as_one_machine():
    found, cluster = batches([0.02] * 8)
    assert {worker: one[-1][0] for worker, one in found.items()} == dict.fromkeys(range(8), 1)
    assert all(len(one) == 1 for one in found.values()), "rarely, for each size compiles anew"
    assert "the run is 8 times as fast as its fastest worker" in found[0][0][1]
    for member in cluster.engine.members.values():
        assert member.steps == pytest.approx(16_000 / 8, rel=0.1)
    assert all(one.participant.part == 1 / 8 for one in cluster.workers.values())


def test_unequal_workers_have_what_all_of_them_are_worth():
    found, _ = batches([0.02, 0.04])
    assert {worker: one[-1][0] for worker, one in found.items()} == {0: 4, 1: 4}
    assert not batches([0.02, 0.08])[0], "a quarter more is no half"


def test_a_fixed_part_of_the_step_keeps_the_batch_larger():
    def machines(part):
        return [Machine(constant(0.02), latency=0.001, part=part) for _ in range(8)]

    found, cluster = batches([], machines(0.9))
    assert {one[-1][0] for one in found.values()} == {8}
    assert "each of this one's steps takes the time of 72 examples more" in found[0][-1][1]
    assert cluster.workers[0].participant.part == 1
    assert {one[-1][0] for one in batches([], machines(0.1))[0].values()} == {4}


def test_a_floor_for_statistics_of_layers_holds():
    class Normed(TimingWorkload):
        least = 4

    assert {one[-1][0] for one in batches([0.02] * 8, workload=Normed(8))[0].values()} == {4}


def test_the_batch_is_the_users_if_it_is_kept_or_the_rate_cannot_be_set():
    class Unknown(TimingWorkload):
        least = None

    for more in ({"model": Auto(batch="keep")}, {"workload": Unknown(8)},
                 {"data": None, "stop_samples": 16_000}):
        found, cluster = batches([0.02] * 4, **more)
        assert not found and all(one.participant.part == 1 for one in cluster.workers.values())
        assert all(member.samples <= 8 * member.steps
                   for member in cluster.engine.members.values())


def test_the_workers_of_sites_keep_the_users_batch():
    sites = [Site([0, 1], Auto(), Machine(constant(0.0), latency=0.001)),
             Site([2, 3], Auto(), Machine(constant(0.0), latency=0.001))]
    found, cluster = batches([0.02] * 4, sites=sites)
    assert not found and all(one.participant.part == 1 for one in cluster.workers.values())


def test_a_worker_that_comes_later_has_its_batch_too():
    late = Machine(constant(0.02), latency=0.001, incarnations=(
        Incarnation(0.0, 4.0, lost=True), Incarnation(6.0),))
    others = [Machine(constant(0.02), latency=0.001) for _ in range(3)]
    found, cluster = batches([], [*others, late])
    assert [size for size, _ in found[3]] == [2, 2]
    assert cluster.workers[3].participant.batch == 2


def push(seq, steps, samples, seconds, batch=8):
    return Push(0, seq, 0, steps, samples, seconds, batch=batch)


def test_a_model_that_begins_anew_measures_a_worker_that_an_earlier_one_has_directed():
    one = Batches()
    assert [tuple(found)[3:5] for found in one.pushed(push(0, 20, 20, 0.05), 8.0)] == [(8, None)]
    told = [one.pushed(push(seq, 20, 160, 0.4), 8.0) for seq in range(1, 5)]
    assert [len(found) for found in told] == [0, 0, 0, 1] and told[-1][0].batch == 4


def test_a_compiled_step_and_steps_of_two_sizes_are_no_measure():
    one, told = Batches(), []
    for seq, (steps, samples, seconds) in enumerate([
            (20, 160, 9.9), *3 * [(20, 160, 0.4)],  # 20 ms a step at 8
            (20, 120, 5.0), (20, 80, 9.9), *3 * [(20, 80, 0.2)]]):
        told += one.pushed(push(seq, steps, samples, seconds), 8.0)
    assert [direct.batch for direct in told] == [4, 1] and "fixed" not in told[1].why
