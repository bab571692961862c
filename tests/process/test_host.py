"""The world outside a process."""

import sys
import time

import pytest

from wbsp.process.host import HOST, Clock


def test_time_counts_while_the_machine_sleeps_if_the_system_measures_it(monkeypatch):
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system has no such clock")
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 12.5}.__getitem__)
    assert Clock().monotonic() == 12.5


def test_on_macos_time_counts_while_the_machine_sleeps(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_MONOTONIC: 7.5}.__getitem__)
    assert Clock().monotonic() == 7.5


def test_other_systems_use_the_monotonic_clock_of_python(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(sys, "platform", "freebsd")
    assert Clock().monotonic is time.monotonic


def test_the_clock_advances_during_a_sleep():
    before = HOST.clock.monotonic()
    HOST.clock.sleep(0.01)
    assert HOST.clock.monotonic() > before
