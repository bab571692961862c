"""The wait for a full disk, without a disk."""

import errno
from types import SimpleNamespace

import pytest

from wbsp.ps.full_disk import FullDisk


class Time:
    """A clock that advances only by sleeping."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def fails(times):
    """A write that succeeds after this number of failed attempts."""
    attempts = []

    def act():
        attempts.append(None)
        if len(attempts) <= times:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(attempts)
    return act, attempts


def waiting(times, wanted=lambda: True):
    said, clock, (act, attempts) = [], Time(), fails(times)
    return SimpleNamespace(said=said, clock=clock, attempts=attempts, ends=lambda: FullDisk(
        said.append, "runs").persist(act, "cannot write it", clock, wanted))


def test_a_file_written_at_once_prints_no_line():
    wait = waiting(0)
    assert wait.ends() == 1 and not wait.said and wait.clock.now == 0


def test_a_write_is_retried_each_second_with_a_line_at_intervals():
    wait = waiting(20)
    assert wait.ends() == 21 and 20 <= wait.clock.now < 22
    assert wait.said == [
        f"cannot write it: No space left on device; trying again for {left} s more: free some "
        "space on the disk of runs" for left in (60, 45)]


def test_it_ends_after_a_minute():
    wait = waiting(1000)
    with pytest.raises(OSError, match="No space"):
        wait.ends()
    assert 60 <= wait.clock.now < 62 and 55 < len(wait.attempts) <= 61


def test_it_ends_once_it_is_not_wanted():
    wait = waiting(1000, lambda: False)
    with pytest.raises(OSError, match="No space"):
        wait.ends()
    assert wait.clock.now == 0 and not wait.said


def test_a_suspension_does_not_count():
    disk = FullDisk(lambda text: None, "runs")
    assert disk.failed("it fails", 0.0) and not disk.due(0.9) and disk.due(1.0)
    disk.woke(1000.0)
    assert disk.failed("it fails", 1059.0) and not disk.failed("it fails", 1060.0)


def test_writing_an_unneeded_file_is_retried_for_ever():
    said = []
    disk = FullDisk(said.append, "runs", endless=True)
    assert disk.failed("it fails", 0.0) and disk.failed("it fails", 1e6)
    assert said == 2 * ["it fails; trying again: free some space on the disk of runs"]
