"""The shares of processors and memory that go with a push."""

import time
from collections import namedtuple

import psutil
import pytest

from wbsp.worker.metrics import PERIOD, Usage

Times = namedtuple("Times", "user system idle iowait guest guest_nice")
Memory = namedtuple("Memory", "percent")


class Machine:
    """Counters in seconds of all processors since its start; counts how often they were read."""

    def __init__(self, monkeypatch):
        self.now, self.busy, self.idle, self.iowait, self.guest, self.percent = 6 * [0.0]
        self.read = 0
        monkeypatch.setattr(psutil, "cpu_times", self._cpu_times)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(self.percent))

    def _cpu_times(self):
        self.read += 1
        return Times(self.busy + self.guest, 0.0, self.idle, self.iowait, self.guest, 0.0)

    def passes(self, seconds, **counted):
        self.now += seconds
        for name, value in counted.items():
            setattr(self, name, getattr(self, name) + value)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_shares_are_of_the_time_since_the_sample_before(machine):
    machine.passes(1000, busy=900, idle=100)
    usage = Usage(lambda: machine.now)
    machine.passes(2, busy=1, idle=3, percent=25)
    assert usage() == (0.25, 0.25)
    machine.passes(2, busy=3, idle=1, percent=50)
    assert usage() == (0.75, 0.75)


def test_waiting_for_a_disk_is_idle_and_a_guest_counts_once(machine):
    usage = Usage(lambda: machine.now)
    machine.passes(1, busy=1, guest=1, idle=1, iowait=1)
    assert usage() == (0.5, 0.0)


def test_samples_are_a_period_apart(machine):
    usage = Usage(lambda: machine.now)
    machine.passes(1, busy=1, idle=1, percent=30)
    first, read = usage(), machine.read
    machine.passes(0.9 * PERIOD, busy=10, percent=60)
    assert usage() == first and machine.read == read
    machine.passes(0.1 * PERIOD)
    assert usage() == (1.0, 0.9) and machine.read == read + 1


def test_counters_that_stand_still_or_run_backwards_do_no_harm(machine):
    usage = Usage(lambda: machine.now)
    assert usage() == (0.0, 0.0)
    machine.passes(1, busy=1, idle=1)
    assert usage()[0] == 0.5
    machine.passes(1)
    assert usage()[0] == 0.5
    machine.passes(1, busy=3, idle=-1)  # as kernels' counters of idle time have done
    assert usage()[0] == 1.0


def test_of_this_machine():
    usage = Usage()
    time.sleep(0.05)
    processors, memory = usage()
    assert 0 <= processors <= 1 and 0 < memory < 1


def test_a_call_between_two_samples_costs_next_to_nothing():
    usage = Usage()
    usage()
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        usage()
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 50e-6
