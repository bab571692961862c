"""Lines that are printed at most once in an interval."""

from wbsp.process.throttle import Throttle


def lines(throttle, *times):
    return [now for now in times if throttle.due(now)]


def test_the_first_line_is_printed_at_once_and_the_next_a_period_later():
    assert lines(Throttle(10.0), 3, 4, 12.9, 13, 14, 22, 40, 41, 50) == [3, 13, 40, 50]


def test_the_first_line_may_have_a_time_of_its_own():
    assert lines(Throttle(10.0, 2.0), 0, 1.9, 2, 5, 12, 13) == [2, 12]


def test_after_a_rest_the_next_line_is_due_a_whole_period_later():
    throttle = Throttle(10.0)
    throttle.rest(5.0)
    assert lines(throttle, 5, 14.9, 15, 16) == [15]
