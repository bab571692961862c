"""Lines on the workers that a server waits for."""

import pytest

from wbsp.runlog.awaited import Awaited, named


def test_a_wait_is_printed_periodically_with_the_time_that_is_left():
    said = []
    awaited = Awaited(said.append)
    for second in range(41):
        awaited.wait({2, 1}, "to join", 120 - second, "training begins with the others", second)
    awaited.wait([], "to join", 79, "training begins with the others", 41)
    awaited.wait([1], "to join", 78, "training begins with the others", 42)
    awaited.wait([1], "to fetch the final version", 60, "this run ends", 99)
    assert said == [f"waiting for worker 1, 2 to join, for {left} s more; then training begins "
                    "with the others" for left in (115, 100, 85)]


@pytest.mark.parametrize("workers, text", [
    ([3], "worker 3"), ({1, 0}, "worker 0, 1"), (range(7), "worker 0, 1, 2, 3, 4 and 2 more")])
def test_many_workers_are_some_and_a_number(workers, text):
    assert named(workers) == text


def test_a_wait_ends_with_its_time_or_with_those_it_is_for():
    said = []
    awaited = Awaited(said.append)
    goes_on = [awaited.wait("the evaluator at 10.0.0.7", "to evaluate version 3", 30 - second,
                            "this run ends", second) for second in range(0, 31, 5)]
    assert goes_on == [True] * 6 + [False]
    assert said == [f"waiting for the evaluator at 10.0.0.7 to evaluate version 3, for {left} s "
                    "more; then this run ends" for left in (25, 10)]
    assert awaited.wait([1], "to join", None, "training begins", 40)
    assert not awaited.wait([], "to join", None, "training begins", 41)
