"""A shard follows the log: the same bytes as in one store, and no message of strangers counts."""

import itertools
import json
import math

import numpy as np
import pytest

from wbsp.core.outer_optimizer import OUTER_OPTIMIZERS, create_outer
from wbsp.core.store import Store
from wbsp.limits import SHARDS
from wbsp.ps.config import ShardPlan
from wbsp.ps.sharding.shard import Shard
from wbsp.tensors.ops import bounds
from wbsp.wire.assembly import VectorStream, floats_of, split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import attachment

SIZE = m.CHUNK + 100  # floats: more than one chunk for one shard
WORKER = b"socket of worker 0"
OPTIONS = {"qhm": {"momentum": 0.5, "outlast": 12.0}}  # of outer steps


def named(secret):
    """The name by which a worker and a shard speak of the attachment with this secret."""
    return attachment(secret)[0]


STATISTICS = [slice(SIZE // 4 - 9, SIZE // 2 + 5), slice(SIZE - 3, SIZE)]


def begun(start, stop, vector, outer="identity", state=None, wire="float32"):
    rule = json.dumps({"name": outer, "options": OPTIONS.get(outer, {}), "wire": wire,
                       "statistics": [(at.start, at.stop) for at in STATISTICS]})
    shard = Shard(s.Begin(start, stop, vector.size, 0, rule, {}), vector[start:stop], state or {})
    shard.follow(s.Admit(0, 77))
    shard.present(WORKER, named(77))
    return shard


def told(notice):
    """A shard's report on a slice: whose it is, and whether all its values are finite."""
    return notice.secret, notice.seq, notice.again, math.isfinite(notice.square)


def hand_over(shard, update, seq, again=False, secret=77):
    """All chunks of a slice; the shard's message to the server."""
    part = update[shard.start:shard.start + shard.size]
    said = [shard.take(WORKER, s.Slice(named(secret), seq, again, offset, part.size),
                       memoryview(bytes(chunk)))
            for offset, chunk in split(part)]
    assert said[:-1] == [None] * (len(said) - 1)
    return said[-1]


def everything(shard):
    """The version and the outer step's state, as the server puts them together."""
    frames = list(shard.collected(1))
    head = m.decode(s.FromShard, frames[0][0])
    reader = VectorStream([shard.size, *head.state.values()])
    for header, chunk in frames[1:]:
        vectors = reader.add(m.decode(s.FromShard, header).offset, memoryview(bytes(chunk)))
    return head.version, vectors[0], dict(zip(head.state, vectors[1:], strict=True))


@pytest.mark.parametrize("outer", OUTER_OPTIMIZERS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shards_make_the_same_bytes_as_one_store(count, outer):
    draw = np.random.default_rng(count)
    vector, *updates = draw.standard_normal((13, SIZE)).astype(np.float32)
    store = Store(vector, outer=create_outer(outer, **OPTIONS.get(outer, {})),
                  statistics=STATISTICS)
    ends = bounds(SIZE, count)
    shards = [begun(start, stop, vector, outer)
              for start, stop in itertools.pairwise(ends)]
    for seq, update in enumerate(updates):
        weight = float(draw.random())
        again = seq == 5
        for shard in shards:
            assert told(hand_over(shard, update, seq, again)) == (77, seq, again, True)
            shard.follow(s.Drop(0, seq) if seq == 7 else s.Apply(0, seq, again, weight, seq + 1))
        if seq != 7:
            store.accept(update.copy(), weight, steps=seq + 1)
        if seq % 3 == 2:
            store.commit()
            for shard in shards:
                shard.follow(s.Commit(store.latest.version))
            version, square = store.norms.popleft()
            made = [shard.made() for shard in shards]
            assert {one.version for one in made} == {version}
            assert sum(one.square for one in made) == pytest.approx(square, rel=1e-7)
            assert [shard.made() for shard in shards] == [None] * count, "once"
    found = [everything(shard) for shard in shards]
    assert {version for version, _, _ in found} == {4}
    assert np.concatenate([part for _, part, _ in found]).tobytes() == store.latest.vector.tobytes()
    for name, expected in store.outer.state().items():
        parts = [state[name] for _, _, state in found]
        whole = parts[0] if name in store.outer.NUMBERS else np.concatenate(parts)
        assert whole.tobytes() == expected.tobytes()


def test_a_fetch_is_of_the_version_at_its_place_in_the_log():
    shard = begun(0, 5, np.zeros(10, np.float32))
    hand_over(shard, np.ones(10, np.float32), 0)
    shard.follow(s.Apply(0, 0, False, 1.0, 1))
    shard.follow(s.Commit(1))
    identity, frames = shard.version(s.Send(0, 3, 1))
    hand_over(shard, np.ones(10, np.float32), 1)
    shard.follow(s.Apply(0, 1, False, 1.0, 1))
    shard.follow(s.Commit(2))
    ((header, chunk),) = frames
    assert identity == WORKER and m.decode(s.FromShard, header) == m.Model(3, 1, 0, 10)
    assert np.frombuffer(chunk, "<f4").tolist() == [1.0] * 5
    with pytest.raises(RuntimeError, match="names version 1, and here is 2"):
        shard.version(s.Send(0, 4, 1))


def test_a_slice_waits_for_the_log_and_is_taken_once():
    shard, update = begun(0, 10, np.zeros(10, np.float32)), np.ones(10, np.float32)
    assert told(hand_over(shard, update, 0)) == (77, 0, False, True)
    assert hand_over(shard, 2 * update, 0) is None, "sent twice"
    shard.follow(s.Apply(0, 0, False, 1.0, 1))
    assert hand_over(shard, update, 0) is None, "decided already"
    shard.follow(s.Commit(1))
    assert everything(shard)[1].tolist() == [1.0] * 10
    with pytest.raises(RuntimeError, match="names push 0 of worker 0, and here is"):
        shard.follow(s.Apply(0, 0, False, 1.0, 1))


def test_a_push_may_arrive_before_the_log_entry_of_the_previous_one():
    """The answer to a worker may be faster than the log; memory is bounded all the same."""
    shard, update = begun(0, 10, np.zeros(10, np.float32)), np.ones(10, np.float32)
    for seq in range(2):
        assert told(hand_over(shard, (seq + 1) * update, seq)) == (77, seq, False, True)
    assert shard.missed(0) is None
    assert hand_over(shard, update, 2) is None, "one too many at a time"
    shard.follow(s.Apply(0, 0, False, 1.0, 1))
    assert shard.missed(0) == (WORKER, named(77)), "which is to send it again"
    assert shard.missed(0) is None, "once"
    assert told(hand_over(shard, update, 2)) == (77, 2, False, True)
    shard.follow(s.Apply(0, 1, False, 1.0, 1))
    shard.follow(s.Drop(0, 2))
    shard.follow(s.Commit(1))
    assert everything(shard)[1].tolist() == [3.0] * 10


def test_values_that_are_not_finite_are_reported():
    shard, update = begun(5, 10, np.zeros(10, np.float32)), np.zeros(10, np.float32)
    update[2] = np.nan
    assert told(hand_over(shard, update, 0)) == (77, 0, False, True), "in another range"
    shard.follow(s.Drop(0, 0))
    update[7] = np.inf
    assert told(hand_over(shard, update, 1)) == (77, 1, False, False)


def test_slices_of_unknown_and_dismissed_workers_change_nothing():
    shard, update = begun(0, 10, np.zeros(10, np.float32)), np.ones(10, np.float32)
    assert shard.attached(named(78)) is None
    body = update.data.cast("B")
    for identity, secret in [(b"stranger", 77), (WORKER, 78)]:
        with pytest.raises(m.WireError, match="not attached"):
            shard.take(identity, s.Slice(named(secret), 0, False, 0, 10), body)
    for offset, data in [(0, body[:36]), (4, body[:24]), (-1, body), (10, body[:0]),
                         (1 << 40, body)]:
        with pytest.raises(m.WireError):
            shard.take(WORKER, s.Slice(named(77), 0, False, offset, 10), data)
    hand_over(shard, update, 0)
    shard.follow(s.Admit(0, 79))  # the worker has attached again, or another process has
    with pytest.raises(m.WireError, match="not attached"):
        hand_over(shard, update, 0)
    assert shard.version(s.Send(0, 1, 0)) is None, "it has not come yet"
    shard.present(WORKER, named(79))
    assert told(hand_over(shard, update, 0, secret=79)) == (79, 0, False, True)
    shard.follow(s.Dismiss(0, 77))  # of the older attachment: late
    assert shard.knows(WORKER)
    shard.follow(s.Dismiss(0, 79))
    assert not shard.knows(WORKER) and shard.attached(named(79)) is None


def test_the_rest_of_a_broken_push_is_no_part_of_the_next():
    size = m.CHUNK + 4
    shard, update = begun(0, size, np.zeros(size, np.float32)), np.ones(size, np.float32)
    (_, first), (offset, second) = split(update)
    assert shard.take(WORKER, s.Slice(named(77), 0, False, 0, size), first) is None
    assert shard.take(WORKER, s.Slice(named(77), 0, True, 0, size), first) is None, "a sum"
    with pytest.raises(m.WireError, match="the rest of push 0"):
        shard.take(WORKER, s.Slice(named(77), 0, False, offset, size), second)
    assert shard.take(WORKER, s.Slice(named(77), 0, True, offset, size), second).again


@pytest.mark.parametrize("sizes", [[0], [3], [0, 1], [2, 0, 3], [m.CHUNK + 1, m.CHUNK + 1, 1]])
def test_floats_arrive_in_their_vectors(sizes):
    vectors = [np.arange(size, dtype=np.float32) + size for size in sizes]
    reader, found = VectorStream(sizes), None
    for header, chunk in floats_of(3, *vectors):
        message = m.decode(s.ToShard, header)
        assert message.number == 3 and found is None
        with pytest.raises(m.WireError):
            reader.add(message.offset + 1, chunk)
        found = reader.add(message.offset, chunk)
    assert [vector.tolist() for vector in found] == [vector.tolist() for vector in vectors]


@pytest.mark.parametrize("text, count, setting", [
    ("1", 1, 1), ("4", 4, 4), ("localhost:2701", 1, ["localhost:2701"]),
    ("a:1,b:2", 2, ["a:1", "b:2"]),
])
def test_shards_are_a_number_or_addresses(text, count, setting):
    plan = ShardPlan.parse(text)
    assert plan.number == count and plan.setting == setting
    assert plan.single == (text == "1")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "two", "host", "host:port", "a:1,", "²",
                                  "a:1,a:1", str(SHARDS + 1),
                                  ",".join(f"a:{port}" for port in range(1, SHARDS + 2))])
def test_any_other_value_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="^shards=") as refusal:
        ShardPlan.parse(text)
    assert "\n" not in str(refusal.value)
