"""A small run of two unequal workers."""

from collections import Counter
from types import SimpleNamespace

import pytest

from wbsp.core.stats import Member, Report

MIB = 1 << 20


@pytest.fixture
def cluster():
    """`members` and `reports` of a fast and a slow worker."""
    members = {
        0: Member(active=True, steps=30, samples=3000, seconds=30.0, pushes=30),
        1: Member(active=True, steps=10, samples=1000, seconds=40.0, pushes=10,
                  rejected=Counter({"not finite": 2})),
    }
    reports = {
        0: Report(steps=31, samples=3100, loss=0.5, pushes=30, push_seconds=6.0,
                  last_push_seconds=0.25, pulls=9, pull_seconds=3.0, last_pull_seconds=0.5,
                  push_bytes=MIB, control_bytes=MIB // 4, pull_bytes=2 * MIB,
                  seconds={"compute": 30.0, "push": 6.0, "pull": 3.0, "wait": 10.0, "data": 1.0}),
        1: Report(steps=10, samples=1000, loss=0.75, pushes=10, push_seconds=5.0,
                  last_push_seconds=0.5, pulls=9, pull_seconds=4.0, last_pull_seconds=0.125,
                  push_bytes=MIB, control_bytes=MIB // 2, pull_bytes=2 * MIB,
                  seconds={"compute": 40.0, "push": 5.0, "pull": 4.0, "wait": 0.5, "data": 0.5}),
    }
    return SimpleNamespace(members=members, reports=reports)
