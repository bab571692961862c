"""Shared memory: only its maker changes a version or a size, and no place is beyond it."""

import fcntl
import mmap
import os

import numpy as np
import pytest

from wbsp.core.messages import Place
from wbsp.process.host import HOST
from wbsp.wire.messages.base import WireError
from wbsp.wire.shm.segments import SharedPool, bytes_at, create

pytestmark = pytest.mark.skipif(not HOST.memory.available(),
                                reason="no shared memory on this system")


@pytest.fixture
def made():
    """made(size, read_only) -> a new segment and its vector."""
    segments = []

    def make(size, read_only):
        segment, vector = create(size, read_only)
        segments.append(segment)
        return segment, vector
    yield make
    for segment in segments:
        os.close(segment.fd)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_segment_is_the_same_memory_for_those_that_have_it(made, read_only):
    segment, vector = made(1000, read_only)
    there = HOST.memory.mapped(segment.fd)
    vector[:] = np.arange(1000)
    assert np.array_equal(there, vector)
    assert there.flags.writeable != read_only


def test_a_version_can_be_changed_by_its_maker_alone(made):
    segment, vector = made(10, True)
    with pytest.raises(OSError):
        mmap.mmap(segment.fd, 40)
    with pytest.raises(OSError):
        os.pwrite(segment.fd, b"1234", 0)
    again = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDWR)
    try:
        with pytest.raises(OSError):
            mmap.mmap(again, 40)
    finally:
        os.close(again)
    vector[:] = 1.0


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("size", [0, 39, 1 << 20])
def test_the_size_of_a_segment_stays(made, read_only, size):
    segment, _ = made(10, read_only)
    with pytest.raises(OSError):
        os.ftruncate(segment.fd, size)
    with pytest.raises(OSError):
        fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_file_whose_size_may_change_is_not_mapped(tmp_path):
    fd = os.memfd_create("not ours", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 40)
    with open(tmp_path / "file", "wb") as file:
        for other in (fd, file.fileno()):
            with pytest.raises(OSError):
                HOST.memory.mapped(other)
    os.close(fd)


@pytest.mark.parametrize("offset, nbytes", [(0, 0), (0, 41), (40, 1), (40, 0), (39, 2), (-4, 8),
                                            (0, -4), (1 << 63, 4), (4, 1 << 63), (-40, 40)])
def test_a_place_beyond_its_segment_is_refused(made, offset, nbytes):
    _, vector = made(10, False)
    with pytest.raises(WireError):
        bytes_at(Place(1, offset, nbytes), vector)


def test_a_place_is_that_part_of_the_segment(made):
    _, vector = made(10, False)
    vector[:] = np.arange(10)
    for offset, nbytes in [(0, 40), (4, 8), (36, 4), (1, 39)]:
        assert bytes(bytes_at(Place(1, offset, nbytes), vector)) == vector.tobytes()[
            offset:offset + nbytes]


@pytest.mark.parametrize("hold", [lambda vector: vector, lambda vector: vector[2:3],
                                  lambda vector: vector.data.cast("B")[4:8]])
def test_memory_of_a_pool_is_reused_when_no_process_holds_it(hold):
    pool = SharedPool()
    vector = pool.take(10)
    vector.flags.writeable = False
    address, holder = vector.ctypes.data, hold(vector)
    del vector
    assert pool.take(10).ctypes.data != address
    del holder
    again = pool.take(10)
    assert again.ctypes.data == address and again.flags.writeable
    pool.close()


def test_a_vector_of_another_origin_is_copied_once():
    pool = SharedPool()
    own, other = pool.take(10), np.arange(10, dtype=np.float32)
    assert pool.shared(own)[0] is own
    copy, segment = pool.shared(other)
    assert copy is not own and np.array_equal(HOST.memory.mapped(segment.fd), other)
    assert pool.shared(other) == (copy, segment)
    assert segment != pool.shared(own)[1]
    pool.close()


def test_released_memory_is_not_reused_and_ends_with_its_last_holder():
    before = len(os.listdir("/proc/self/fd"))
    pool = SharedPool()
    vector = pool.take(10)
    vector[:] = 1.0
    there = HOST.memory.mapped(pool.shared(vector)[1].fd)
    pool.give_up(vector)
    assert pool.shared(vector)[0] is vector, "to others it can still be handed over"
    del vector
    assert len(os.listdir("/proc/self/fd")) == before + 1, "that of the mapping"
    again = pool.take(10)
    again[:] = 2.0
    assert (there == 1.0).all()
    pool.give_up(np.zeros(10, np.float32))  # not this pool's
    pool.close()
    del again, pool, there
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pool_leaves_no_descriptor_open():
    before = len(os.listdir("/proc/self/fd"))
    pool = SharedPool()
    held = [pool.take(10) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before + 2 * len(held)  # mmap keeps one of its own
    pool.close()
    del held, pool
    assert len(os.listdir("/proc/self/fd")) == before
