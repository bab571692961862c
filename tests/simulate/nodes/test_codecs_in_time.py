"""Formats of updates and versions in virtual time: their bytes, and what training loses by them."""

import numpy as np
import pytest
from quadratic import QuadraticWorkload

from wbsp.core.messages import Model
from wbsp.core.store import UNSENT
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.links import Interface
from wbsp.simulate.world.machine import Machine, constant
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import create
from wbsp.tensors.codecs import FLOAT32, Ranges, parse
from wbsp.tensors.error_feedback import advanced
from wbsp.tensors.ops import bounds

LOSSY = ["bfloat16", "int8", "topk:0.05"]
SIZE = 512


def trained(wire, sync="pcc", until=60.0, model_bytes=4.0 * SIZE, workers=3, watch=None, **options):
    """A finished cluster, its workload, and (version, bytes, held) of each version in transit."""
    sent = []

    def watched(self, machine, size, done, *args):
        if isinstance(args[0], Model):
            sent.append((args[1], size, done.__self__.held))
        return original(self, machine, size, done, *args)

    original = Interface.send
    rate = 2 * model_bytes  # a second
    machines = [Machine(constant(1.0 + index / 3), 0.01, rate, rate) for index in range(workers)]
    workload = QuadraticWorkload(workers, SIZE, rate=0.002)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interface, "send", watched)
        cluster = Cluster(create(sync), machines, workload, model_bytes=model_bytes,
                          stop_samples=2_000, wire=wire, **options)
        cluster.run(until)
    return cluster, workload, sent


@pytest.mark.parametrize("sync", ["bsp", "pcc", "asp"])
@pytest.mark.parametrize("name", LOSSY)
def test_the_bytes_are_those_of_the_format(name, sync):
    wire, size = parse(name), 4.0 * 1_000_000
    cluster, _, sent = trained(wire, sync, model_bytes=size)
    assert cluster.reports[0].push_bytes == 4 * wire.words(1_000_000)
    assert sent[0][1] == size and sent[0][2] is None, "the first time the whole model"
    for snapshot, nbytes, held in sent:
        found = None if held is None else snapshot.since(held)
        if found is None:
            assert nbytes == size
        else:
            words = sum(one.words.size for one in found)
            assert nbytes == pytest.approx(size * words / SIZE) and nbytes < size
    if (name, sync) != ("bfloat16", "asp"):  # 3 versions behind: 3 halves are not shorter
        assert sum(nbytes < size for _, nbytes, _ in sent) > len(sent) / 3
    assert cluster.payload.fetched <= sum(nbytes for _, nbytes, _ in sent) * (1 + 1e-9)


def test_an_update_takes_the_time_of_its_bytes():
    """Without a network, except for the worker's upload line of 1000 bytes/s."""
    ends = {}
    for name in ["float32", *LOSSY]:
        commits = []
        cluster = Cluster(create("bsp"), [Machine(constant(1.0), up=1000.0)],
                          QuadraticWorkload(1, SIZE), model_bytes=4.0 * SIZE, wire=parse(name),
                          log=lambda now, kind, commits=commits, **_: (
                              kind == "commit" and commits.append(now)))
        cluster.run(until=30.0)
        ends[name] = commits[0]
    assert ends == {name: pytest.approx(1.0 + 4 * parse(name).words(SIZE) / 1000)
                    for name in ends}


@pytest.mark.parametrize("name", LOSSY)
def test_workers_train_from_the_version_that_was_sent(name):
    cluster, workload, sent = trained(parse(name))
    for snapshot, _, held in sent:
        if held is not None and snapshot.since(held):
            before = next(one.vector for one, _, _ in sent if one.version == held)
            words, *_ = snapshot.sendable(held)
            assert advanced(parse(name).versions, before, words).tobytes() == (
                snapshot.vector.tobytes())
    exact, _, _ = trained(FLOAT32)
    final, unsent = cluster.engine.store.latest.vector, cluster.engine.store.state()[UNSENT]
    assert unsent.any() or name.startswith("topk"), "of which all is sent that is not 0"
    assert not np.array_equal(final, exact.engine.store.latest.vector)
    start, end = workload.loss(workload.initial()), workload.loss(final)
    assert end < 0.9 * start
    assert all(worker.sending.unsent.any() for worker in cluster.workers.values())


@pytest.mark.parametrize("name", LOSSY)
def test_each_shard_encodes_its_range_by_itself(name):
    """As real ones do: what a version's difference means is the same, range by range."""
    wire, ends = Ranges(parse(name), bounds(SIZE, 3)), bounds(SIZE, 3)
    cluster, _, sent = trained(parse(name), server=ServerSpec(shards=3))
    assert cluster.reports[0].push_bytes == 4 * wire.words(SIZE)
    seen = {snapshot.version: snapshot for snapshot, _, _ in sent}
    steps = [(seen[version - 1], seen[version]) for version in seen if version - 1 in seen]
    assert len(steps) > 10
    for before, after in steps:
        words = wire.versions.parts(after.differences[-1].words)
        for part, start, end in zip(words, ends, ends[1:], strict=False):
            assert advanced(parse(name).versions, before.vector[start:end], part).tobytes() == (
                after.vector[start:end].tobytes())


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_ranges_of_whole_blocks_are_encoded_as_without_shards(name):
    one, _, _ = trained(parse(name), "bsp")
    two, _, _ = trained(parse(name), "bsp", server=ServerSpec(shards=2))  # of 256 floats each
    assert one.engine.store.latest.version == two.engine.store.latest.version > 10
    assert one.engine.store.latest.vector.tobytes() == two.engine.store.latest.vector.tobytes()


@pytest.mark.parametrize("name, most", [("bfloat16", 0.5), ("int8", 0.27), ("topk:0.01", 0.0601)])
def test_a_study_of_time_alone_counts_the_same_bytes(name, most):
    machines = [Machine(constant(1.0), 0.01, 1e6, 1e6) for _ in range(3)]
    traffic = {}
    for wire in (FLOAT32, parse(name)):
        cluster = Cluster(create("bsp"), machines, model_bytes=4e5, stop_samples=150, wire=wire)
        cluster.run()
        pulls = sum(report.pulls for report in cluster.reports)
        assert pulls > 100
        traffic[wire.name] = (cluster.payload.fetched / 4e5 - 3) / (pulls - 3)  # but for W_0
    assert traffic["float32"] == 1
    assert traffic[name] <= most
