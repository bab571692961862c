"""A server, or its standby, that does not know whether the other serves, which is not restarted.

In most runs a supervisor does, so that the process on its port ends the doubt. Without one, what
workers know ends it, or each process that waits says for what, and until when.
"""

import pytest
from simulated.cluster import Cluster
from simulated.plan import Plan
from simulated.series_world import Series, SeriesPlan

STRUCK = 5.0  # seconds


class Left(Cluster):
    """The processes in `left` are not restarted."""

    left = ()

    def starts_again(self, name):
        if name not in self.left:
            super().starts_again(name)

    def fills(self, name, full=1.0):
        self.machines[name].full, self.machines[name].begun = full, True


def lines(run, name, *words):
    return [line for line in run.said if f" {name}: " in line and all(one in line for one in words)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_server_continues_with_the_voters_of_a_standby_that_died(
        workers, folder):
    """It slept, and the standby's disk was full. All are back, and their votes were that one's."""
    run = Left(Plan("asp", workers=workers, standby=True, steps=40, speeds=(1.0,)), 1, folder)
    run.left = "standby",

    def strike():
        run.fills("standby")
        run.take_away("server", "nap", 30.0)
        run.world.after(25.0, lambda: run.dies("standby"))
    run.world.after(STRUCK, strike)
    run.run()
    assert lines(run, "standby", "cannot take over yet: No space left")
    assert run.codes == {"server": [0]} and run.world.now < 120
    assert lines(run, "server", "the standby at standby:2606 has ended, and workers that it could "
                 "have served are here")


def test_a_standby_reports_its_full_disk_until_it_has_room(folder):
    """Its server has ended for good, so that only its memory has the newest state."""
    run = Left(Plan("asp", standby=True, steps=20, speeds=(1.0,)), 1, folder)
    run.left = "server",

    def strike():
        run.fills("standby")
        run.dies("server")
        run.world.after(60.0, lambda: run.fills("standby", 0.0))
    run.world.after(STRUCK, strike)
    run.run()
    said = lines(run, "standby", "this process's memory only: No space left on device; free")
    assert 4 <= len(said) <= 7
    assert not lines(run, "standby", "than half of them"), "workers are not what it lacks"
    assert any("the process at port 2606 cannot take over from the server at server:2606 yet: "
               "No space left on device" in line for line in lines(run, "worker 0"))
    assert run.codes["standby"] == [0]


def test_a_standby_whose_disk_stays_full_reports_what_is_lost(folder):
    run = Left(Plan("asp", standby=True, steps=20, speeds=(1.0,)), 1, folder)
    run.left = "server", "standby"
    run.world.after(STRUCK, lambda: (run.fills("standby"), run.dies("server")))
    with pytest.raises(AssertionError, match="has given up: lost the server at .*newest answer: "
                                             "the process at port 2606 cannot take over"):
        run.run()
    assert lines(run, "standby", "for 600 s, and the newest state is in this process's memory only",
                 "that state ends with this process: start that server with --resume")


def test_a_standby_without_the_state_that_workers_know_must_be_resumed(folder):
    """It was elected, has served, and was started again with a new folder."""
    run = Left(Plan("asp", standby=True, steps=40, speeds=(1.0,)), 1, folder)
    run.left = "standby",

    def strike():
        run.take_away("server", "nap", 30.0)
        run.world.after(20.0, dies)

    def dies():
        run.dies("standby")
        run.world.after(2.0, lambda: run.start_server("standby", resume=False))
    run.world.after(STRUCK, strike)
    with pytest.raises(AssertionError, match="the server ended with exit code 1"):
        run.run()
    assert lines(run, "standby", "its reason: workers know a server of this run of epoch 2, later "
                 "than epoch 1 of this one: if that was at standby:2606, start it with --resume")


def test_a_server_suspended_at_its_fits_end_yields_to_the_next_fit(folder):
    """The standby was elected, has ended that fit, and serves a later one, under another id."""
    plan = SeriesPlan(workers=2, standby=True, data=(240, 4, 1), pauses=(0.3,), speeds=(0.3,))
    run = Series(plan, 1, folder)
    run.world.after(STRUCK, lambda: run.take_away("server", "nap", 60.0))
    run.run()
    assert run.codes == {"server": [1, 0], "standby": [0]} and run.world.now < 100
    assert lines(run, "server", "stopping: the server at standby:2606 has taken over (epoch ")
    assert not lines(run, "server", "its reason: another run is served here")
