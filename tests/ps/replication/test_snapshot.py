"""Copies of a version, as messages and put together again."""

import weakref

import numpy as np
import pytest

from wbsp.core.store import Snapshot, Whole
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.replication.snapshot import CopyReader, messages
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.messages import codec as m
from wbsp.wire.shm.lender import Lending

LAYOUT = [TensorSpec("x", (3,))]
FROZEN = FrozenValues([TensorSpec("y", (m.CHUNK + 2,))], np.arange(m.CHUNK + 2, dtype=np.float32))


def send(reader, number, frozen, with_frozen):
    """The bytes of floats that were sent."""
    state = RunState(version=number, next_seq={}, totals=(0, 0), elapsed=0.0)
    whole = Whole(Snapshot(number, np.arange(3, dtype=np.float32)), {"v": np.ones(3, np.float32)})
    (head,), *chunks = messages(number, LAYOUT, state, whole, 0, frozen, with_frozen)
    reader.begin(m.decode(m.FromServer, head))
    done = [reader.add(m.decode(m.FromServer, chunk), memoryview(body)) for chunk, body in chunks]
    assert done[-1] and not any(done[:-1])
    return sum(len(body) for _, body in chunks)


def lend(lending, reader, number, held):
    """The standby receives a version where it lies, which the server holds; what it has mapped."""
    version, segment = lending.copy(lending.pool.take(3))
    held.append(version)
    state = RunState(version=number, next_seq={}, totals=(0, 0), elapsed=0.0)
    (head,), = messages(number, LAYOUT, state, Whole(Snapshot(number, version), {}), segment)
    assert reader.begin(m.decode(m.FromServer, head))
    return weakref.ref(reader.newest.saved.vector)


def test_a_standby_that_reconnects_maps_only_the_snapshot_that_it_holds():
    """No further message names the released memory of the earlier connection."""
    lending, reader, held = Lending(None), CopyReader(share=True), []
    assert lending.follow(reader.socket) == "shared memory"
    reader.follow({"epoch": 1})
    earlier = [lend(lending, reader, number, held) for number in (1, 2, 3)]
    lending.follow(reader.socket)
    reader.follow({"epoch": 1})
    assert [one() is not None for one in earlier] == [False, False, True]
    for number in (4, 5):
        lend(lending, reader, number, held)
        reader.follow({"epoch": 1})  # a connection that lives is kept
    assert reader.newest.number == 5 and earlier[2]() is None
    reader.close(), lending.close()


def test_frozen_values_are_sent_once_and_belong_to_each_snapshot():
    reader = CopyReader(share=False)
    reader.follow({"epoch": 1})
    assert send(reader, 1, FROZEN, True) == 4 * (6 + m.CHUNK + 2)
    assert send(reader, 2, FROZEN, False) == 4 * 6
    saved = reader.newest.saved
    assert (reader.newest.number, saved.outer["v"].tolist()) == (2, [1, 1, 1])
    assert saved.frozen.layout == FROZEN.layout and saved.frozen.digest == FROZEN.digest
    with pytest.raises(m.WireError, match="that never came"):
        send(CopyReader(share=False), 1, FROZEN, False)
    reader.close()
