"""The shares of processors and memory that a push reports."""

import time
from collections import namedtuple

import psutil
import pytest

from wbsp.worker.metrics import PERIOD, Usage

Memory = namedtuple("Memory", "percent")


@pytest.fixture
def machine(monkeypatch):
    """Percent of processors and of memory in use, and how often they were read."""
    machine = {"cpu": 0.0, "memory": 0.0, "read": 0}

    def cpu_percent():
        machine["read"] += 1
        return machine["cpu"]

    monkeypatch.setattr(psutil, "cpu_percent", cpu_percent)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(machine["memory"]))
    return machine


def test_samples_are_a_period_apart_and_the_first_knows_of_no_time_before(machine):
    now = 1000.0
    usage = Usage(lambda: now)
    machine.update(cpu=90.0, memory=25.0)
    assert usage() == (None, 0.25)
    machine.update(cpu=75.0, memory=50.0)
    now += 0.9 * PERIOD
    assert usage() == (None, 0.25) and machine["read"] == 1
    now += 0.1 * PERIOD
    assert usage() == (0.75, 0.5) and machine["read"] == 2


def test_the_use_of_this_machine_is_measured():
    now = 0.0
    usage = Usage(lambda: now)
    assert usage()[0] is None
    now += PERIOD
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
