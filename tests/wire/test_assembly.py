"""Chunks: a vector arrives whole or not at all."""

from itertools import pairwise

import numpy as np
import pytest

from wbsp.core.messages import Place
from wbsp.tensors import blocks
from wbsp.tensors.buffers import BufferPool
from wbsp.tensors.codecs import parse
from wbsp.tensors.ops import bounds
from wbsp.wire.assembly import Updates, VectorAssembly, VectorStream, split
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.codec import CHUNK, WireError

SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7]


def ramp(size, first=0):
    return np.arange(first, first + size, dtype=np.float32)


def assemble(stream, vector):
    """Add all chunks of `vector`; return what each call returned."""
    return [stream.add(offset, memoryview(bytes(chunk)), vector.size)
            for offset, chunk in split(vector)]


@pytest.mark.parametrize("size", SIZES)
def test_chunks_are_assembled_to_the_vector(size):
    stream = VectorStream([size], BufferPool())
    for first in (0, 5):
        *early, last = assemble(stream, ramp(size, first))
        assert early == [None] * ((size - 1) // CHUNK)
        (vector,) = last
        assert vector.dtype == np.float32
        assert np.array_equal(vector, ramp(size, first))


@pytest.mark.parametrize("size", SIZES)
def test_chunks_are_views_that_cover_the_vector_once(size):
    vector = ramp(size)
    chunks = list(split(vector))
    assert [offset for offset, _ in chunks] == list(range(0, size, CHUNK))
    assert all(len(chunk) <= 4 * CHUNK for _, chunk in chunks)
    assert b"".join(chunk for _, chunk in chunks) == vector.tobytes()
    vector[0] = -1
    assert np.frombuffer(chunks[0][1], np.float32)[0] == -1, "a copy was made"


@pytest.mark.parametrize("held", [lambda vector: vector, lambda vector: vector[5:6],
                                  lambda vector: next(split(vector))])
def test_a_vectors_memory_is_reused_when_no_process_holds_it(held):
    pool = BufferPool()
    stream = VectorStream([SIZE], pool)
    (first,) = assemble(stream, ramp(SIZE))[-1]
    address = first.ctypes.data
    first.flags.writeable = False
    holder = held(first)
    (second,) = assemble(VectorStream([SIZE], pool), ramp(SIZE, 9))[-1]
    assert not np.shares_memory(first, second) and np.array_equal(first, ramp(SIZE))
    del first
    assert pool.take(SIZE).ctypes.data != address
    del holder
    assert pool.take(SIZE + 1).size == SIZE + 1
    (third,) = assemble(stream, ramp(SIZE, 3))[-1]
    assert third.ctypes.data == address and np.array_equal(third, ramp(SIZE, 3))


SIZE = 2 * CHUNK + 7
WHOLE = bytes(4 * CHUNK)
WRONG = {
    "another size": (0, SIZE + 1, WHOLE),
    "size 0": (0, 0, b""),
    "a negative size": (0, -SIZE, WHOLE),
    "a skipped chunk": (2 * CHUNK, SIZE, bytes(28)),
    "a negative offset": (-CHUNK, SIZE, WHOLE),
    "an offset within a chunk": (1, SIZE, WHOLE),
    "an offset behind the end": (3 * CHUNK, SIZE, WHOLE),
    "too few bytes": (CHUNK, SIZE, WHOLE[:-1]),
    "too many bytes": (CHUNK, SIZE, WHOLE + b"\0"),
    "no bytes": (CHUNK, SIZE, b""),
    "a beginning with too few bytes": (0, SIZE, WHOLE[:-4]),
}


@pytest.mark.parametrize("offset, size, data", WRONG.values(), ids=WRONG)
def test_a_wrong_chunk_raises_and_changes_nothing(offset, size, data):
    vector = ramp(SIZE, 1)
    chunks = [(at, memoryview(bytes(chunk))) for at, chunk in split(vector)]
    stream = VectorStream([SIZE], BufferPool())
    assert stream.add(chunks[0][0], chunks[0][1], SIZE) is None
    with pytest.raises(WireError):
        stream.add(offset, memoryview(data), size)
    assert stream.add(chunks[1][0], chunks[1][1], SIZE) is None
    assert np.array_equal(stream.add(chunks[2][0], chunks[2][1], SIZE)[0], vector)


def test_offset_zero_starts_again():
    stream = VectorStream([SIZE], BufferPool())
    torn = list(split(ramp(SIZE, 100)))[:2]
    for offset, chunk in torn:
        assert stream.add(offset, chunk, SIZE) is None
    assert np.array_equal(assemble(stream, ramp(SIZE))[-1][0], ramp(SIZE))


def test_a_chunk_after_a_complete_vector_is_refused():
    stream = VectorStream([SIZE], BufferPool())
    assemble(stream, ramp(SIZE))
    with pytest.raises(WireError, match="expected 0"):
        stream.add(2 * CHUNK, memoryview(bytes(28)), SIZE)


def of_range(version, start, stop, size, first=0):
    """Each chunk of a range of `ramp(size, first)`."""
    part = ramp(stop - start, start + first)
    return [(m.Model(1, version, start + offset, size), memoryview(bytes(chunk)))
            for offset, chunk in split(part)]


@pytest.mark.parametrize("size, parts", [(1, 3), (5, 2), (CHUNK + 7, 2), (5 * CHUNK, 4)])
def test_ranges_come_in_any_order_and_make_one_vector(size, parts):
    assembly, ends = VectorAssembly(size, parts=parts), bounds(size, parts)
    for version in (4, 5):
        queues = [of_range(version, *ends[part:part + 2], size, first=version)
                  for part in range(parts) if ends[part] < ends[part + 1]]
        found = []
        while any(queues):  # in turn, from the last
            found += [assembly.add(*queue.pop(0)) for queue in reversed(queues) if queue]
        assert all(one is None for one in found[:-1])
        vector, nbytes = found[-1]
        assert np.array_equal(vector, ramp(size, version)) and nbytes == 4 * size


def test_ranges_of_two_versions_are_not_assembled():
    assembly = VectorAssembly(10, parts=2)
    (first,), (second,) = of_range(4, 0, 5, 10), of_range(5, 5, 10, 10)
    assert assembly.add(*first) is None and assembly.add(*second) is None
    (first,) = of_range(5, 0, 5, 10)
    assert np.array_equal(assembly.add(*first)[0], ramp(10))


def test_a_complete_version_does_not_count_for_the_next():
    """A fetch is repeated, and answered by the same version: each range must arrive again."""
    assembly = VectorAssembly(10, parts=2)
    (first,), (second,) = of_range(4, 0, 5, 10), of_range(4, 5, 10, 10)
    assert assembly.add(*first) is None and assembly.add(*second) is not None
    assert assembly.add(*second) is None
    assert np.array_equal(assembly.add(*first)[0], ramp(10))


def test_a_range_may_restart_and_its_old_rest_is_skipped():
    size = 2 * CHUNK + 2
    assembly = VectorAssembly(2 * size, parts=2)
    old, new = of_range(4, 0, size, 2 * size), of_range(5, 0, size, 2 * size, first=1)
    for chunk in [*of_range(5, size, 2 * size, 2 * size, first=1), old[0], new[0], old[1], new[1]]:
        assert assembly.add(*chunk) is None
    assert np.array_equal(assembly.add(*new[2])[0], ramp(2 * size, 1))


@pytest.mark.parametrize("offset, nbytes", [(0, 12), (0, 24), (-4, 20), (10, 20), (11, 0)])
def test_a_chunk_that_fits_no_range_is_refused(offset, nbytes):
    with pytest.raises(WireError):
        VectorAssembly(10, parts=2).add(m.Model(1, 1, offset, 10), memoryview(bytes(nbytes)))


def test_a_vector_in_shared_memory_is_whole_and_not_copied():
    floats, place = ramp(SIZE), Place(1, 0, 4 * SIZE)
    assembly, model = VectorAssembly(SIZE), m.Model(1, 1, 0, SIZE, place=place)
    vector, _ = assembly.add(model, floats.data)
    assert np.shares_memory(vector, floats), "a copy was made"
    with pytest.raises(WireError):
        assembly.add(model, floats[:-1].data)


def test_the_squared_norm_of_an_update_is_known():
    update = ramp(SIZE)
    updates = Updates(SIZE, BufferPool())
    *_, whole = [updates.add(offset, chunk) for offset, chunk in split(update)]
    assert np.array_equal(whole, update)
    assert updates.square == pytest.approx(float(update.astype(float) @ update))
    *_, whole = [updates.add(offset, chunk) for offset, chunk in split(ramp(SIZE) * 0)]
    assert updates.square == 0, "of the newest alone"


@pytest.mark.parametrize("shared", [False, True])
def test_an_update_may_come_as_its_blocks(shared):
    size = 100_000
    vector = np.zeros(size, np.float32)
    vector[::4000] = np.arange(1, 26)
    words = blocks.encoded(vector)
    updates = Updates(size, BufferPool(), shared=shared)
    for _ in range(2):  # the second one begins anew
        found = updates.add(0, memoryview(words).cast("B"), words.size)
    assert np.array_equal(found.whole(), vector)
    assert updates.square == pytest.approx(float(vector @ vector))
    with pytest.raises(WireError, match="an update of .* words of"):
        updates.add(0, memoryview(words[:-1]).cast("B"), words.size - 1)
    *_, whole = [updates.add(offset, chunk, size) for offset, chunk in split(vector)]
    assert np.array_equal(whole, vector), "whole"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_an_encoded_update_may_come_as_its_blocks(name, shared):
    wire, size = parse(name), 100_000
    vector = np.zeros(size, np.float32)
    vector[5000:5064] = vector[-3:] = 1
    words = wire.encode(vector)
    some = blocks.encoded(words)
    updates = Updates(size, BufferPool(), wire, shared=shared)
    found = updates.add(0, memoryview(some).cast("B"), some.size)
    assert some.size < 200 and np.array_equal(found.whole(), wire.decode(words, size))
    assert 60 < updates.square < 70
    for wrong in (some[:-1], some[:0], words[:-1]):
        with pytest.raises(WireError):
            updates.add(0, memoryview(wrong).cast("B"), wrong.size)
    with pytest.raises(WireError):
        Updates(size, BufferPool(), parse("topk:0.1")).add(0, memoryview(some).cast("B"), some.size)


@pytest.mark.parametrize("parts", [1, 2])
def test_differences_may_come_as_their_blocks(parts):
    wire, size = parse("int8"), 100_000
    assembly, old, ends = VectorAssembly(size, wire, parts), ramp(size), bounds(size, parts)
    for start, stop in pairwise(ends):
        for chunk in of_range(4, start, stop, size):
            found = assembly.add(*chunk)
    assert assembly.held == 4
    step = np.zeros(size, np.float32)
    step[7], step[-1] = 1, 2
    for start, stop in pairwise(ends):
        one = blocks.encoded(wire.encode(step[start:stop]))
        words = np.concatenate([one, one])
        found = assembly.add(m.Model(2, 6, start, words.size, base=4, in_blocks=True),
                             memoryview(words).cast("B"))
    sent = np.concatenate([wire.decode(wire.encode(step[a:b]), b - a) for a, b in pairwise(ends)])
    assert found[0].tobytes() == (old + sent + sent).tobytes() and found[1] < 1000
    assert assembly.held == 6


@pytest.mark.parametrize("parts", [1, 2])
def test_a_version_may_come_as_the_blocks_that_changed(parts):
    size = 100_000
    assembly = VectorAssembly(size, parts=parts)
    old = ramp(size)
    for chunk in of_range(4, 0, size, size) if parts == 1 else [
            *of_range(4, 0, size // 2, size), *of_range(4, size // 2, size, size)]:
        found = assembly.add(*chunk, keep=True)
    assert assembly.held == 4 and np.array_equal(found[0], old)
    new = old.copy()
    new[7] = new[99_999] = 1
    for start, stop in zip(range(0, size, size // parts), range(size // parts, size + 1,
                                                                size // parts), strict=True):
        where = np.flatnonzero((new != old)[start:stop]) // blocks.BLOCK
        words = blocks.of(new[start:stop], where.astype("<u4")).words
        found = assembly.add(m.Model(2, 5, start, words.size, base=4), memoryview(words).cast("B"),
                             keep=False)
    assert np.array_equal(found[0], new) and found[1] == 4 * (17 * 2 + parts)
    assert np.array_equal(old, ramp(size)) and assembly.held == m.NONE
    with pytest.raises(WireError):
        assembly.add(m.Model(3, 6, 0, 1, base=5), memoryview(bytes(4)))
