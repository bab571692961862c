"""How often a process that dies is started again."""

from wbsp import timeouts
from wbsp.process.restarts import Restarts


def test_the_first_restart_is_at_once_and_later_ones_wait_longer():
    restarts = Restarts(8)
    assert [restarts.after(1.0) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 16, 16]
    assert restarts.after(1.0) is None
    assert restarts.made == 8


def test_a_long_life_resets_the_count_of_restarts():
    restarts = Restarts(2)
    long = timeouts.PROCESS_SHORT + 1
    assert [restarts.after(lived) for lived in (1, 1, long, 1, 1)] == [0, 1, 0, 1, None]


def test_without_restarts_the_first_death_is_the_end():
    assert Restarts(0).after(1e6) is None
