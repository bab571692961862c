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
