"""A disk that is full as a run begins or ends: what must be saved is, if there is space within a
minute.
"""

import errno
import json

import pytest
from simulated.cluster import Cluster
from simulated.command import scratch
from simulated.plan import Plan
from simulated.series_world import Series, SeriesPlan

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.sessions.admission import Admission


@pytest.mark.parametrize("seconds, code", [(26.0, 0), (1e9, 1)],
                         ids=["space is made", "it stays full"])
def test_a_server_with_a_full_disk_tries_for_a_minute_to_save_the_final_version(seconds, code):
    with scratch() as folder:
        cluster = Cluster(Plan("pcc", workers=2, steps=4, full=1e-12), 1, folder)
        phase, machine, ends = cluster.phase, cluster.machine("server"), []

        def is_full_from_the_farewell_on(name, process):
            phase(name, process)
            if name == "farewell":
                machine.full = 1.0
                ends.append(cluster.world.now)
                cluster.world.after(seconds, lambda: setattr(machine, "full", 0.0))

        cluster.phase = is_full_from_the_farewell_on
        cluster.run()
    said = [line for line in cluster.said if "server: " in line]
    assert said[-1].endswith(f"ended with exit code {code}")
    # Who has the final version is noted first, and then the version is saved.
    tries = [line for line in said if ("run.json" in line and "trying again" in line)
             or "the final version is not saved; trying again for" in line]
    # A network may be slow to say that all workers have left: the minute begins at the first try.
    begins = ends[0] if code == 0 else float(tries[0].split()[0])
    lasted = float(said[-1].split()[0]) - begins
    assert len(tries) in ([2] if code == 0 else [4, 5])  # one may come as the minute ends
    assert 26 < lasted < 28 if code == 0 else 60 <= lasted < 62


def fill(cluster, fit, then, seconds):
    """Fill the server's disk once it has the settings of this fit's run, and make room later."""
    machine = cluster.machine("server")
    heard, begins = machine.on_change, []

    def hears(path, data):
        heard(path, data)
        if path.name == "run.json" and json.loads(data)["fit"] == fit and not begins:
            begins.append(cluster.world.now)
            machine.full = 1.0
            cluster.world.after(seconds, room)

    def room():
        machine.full = 0.0
        then()

    machine.on_change = hears
    return begins


@pytest.mark.parametrize("seconds, code", [(26.0, 0), (1e9, 1)],
                         ids=["space is made", "it stays full"])
def test_no_worker_joins_before_the_first_version_is_saved(seconds, code):
    with scratch() as folder:
        cluster = Cluster(Plan("pcc", workers=2, steps=4, full=1e-12), 1, folder)
        begins = fill(cluster, 1, lambda: None, seconds)
        cluster.run()
    said = [line for line in cluster.said if "server: " in line]
    assert said[-1].endswith(f"ended with exit code {code}")
    tries = [line for line in said if "workers join once the first version is saved" in line]
    assert len(tries) == (2 if code == 0 else 4)
    joined = [float(line.split()[0]) - begins[0] for line in said if " joined over " in line]
    if code == 0:
        assert len(joined) == 2 and 26 < min(joined) < 28
    else:
        assert not joined and 60 <= float(said[-1].split()[0]) - begins[0] < 62
        for member in cluster.members:
            assert "the first version could not be saved: free some space" in member.given_up


@pytest.mark.parametrize("breaks", [(5.0,), (5.0, 12.0, 13.0)], ids=["once", "again"])
def test_a_first_version_that_waits_for_the_disk_is_not_sent_again(breaks, monkeypatch):
    """A worker that reconnected was told to send it, and again with each part of it."""
    again, initial = [], Admission.initial

    def counted(self, session, message, body):
        again.append(message)
        initial(self, session, message, body)

    monkeypatch.setattr(Admission, "initial", counted)
    plan = Plan("pcc", workers=2, steps=4, size=9000, chunk=1000, full=1e-12)
    with scratch() as folder:
        cluster = Cluster(plan, 1, folder)
        begins = fill(cluster, 1, lambda: None, 26.0)
        for after in breaks:
            cluster.world.after(after, lambda: [
                one.close() for one in cluster.world.connections() if one.open])
        cluster.run()
    assert begins and not again
    assert sum("connected again" in line for line in cluster.said) >= 2
    assert all(member.final is not None for member in cluster.members)


def test_a_later_fit_is_not_lost_with_the_power_while_the_disk_is_full():
    with scratch() as folder:
        cluster = Series(SeriesPlan(workers=2, fits=2, power=True, full=1e-12), 0, folder)
        fill(cluster, 2, lambda: cluster.dies("server"), 3.0)
        cluster.run()
    assert [script.code for script in cluster.members] == [0, 0]
    assert cluster.codes["server"] == [0]
    waits = next(number for number, line in enumerate(cluster.said) if "workers join once" in line)
    dies = next(number for number, line in enumerate(cluster.said) if "--- kill server" in line)
    joins = [number for number, line in enumerate(cluster.said) if " joined over " in line]
    assert len(joins) == 4 and joins[1] < waits < dies < joins[2]


def test_a_restarted_server_without_a_checkpoint_asks_the_standby_that_holds_the_first_version():
    """The standby serves from it in the meantime; the server began the run anew meanwhile."""
    plan = Plan("pcc", steps=8, standby=True, period=1.0, kills=2, power=True, full=0.3)
    with scratch() as folder:
        cluster = Cluster(plan, 700116, folder).run()
    assert any("standby: taking over" in line for line in cluster.said)


@pytest.mark.parametrize("dies", [("server",), ("standby", "server")], ids=["server", "both"])
def test_the_first_version_is_written_although_a_standby_holds_it(dies, monkeypatch):
    """One failure to write it, and its standby held the only version until there was a second."""
    fails, save = [OSError(errno.ENOSPC, "No space left on device")], checkpoint.save

    def once(*args):
        if fails:
            raise fails.pop()
        save(*args)

    monkeypatch.setattr(checkpoint, "save", once)
    with scratch() as folder:
        cluster = Cluster(Plan("pcc", workers=2, steps=4, standby=True, speeds=(3.0,)), 1, folder)
        cluster.world.after(1.5, lambda: [cluster.dies(name) for name in dies])
        cluster.run()
    assert all(member.final is not None for member in cluster.members)


def test_a_run_without_any_version_left_begins_anew_with_a_line(monkeypatch):
    """Its server had saved none, and its standby dies with the only one."""
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", full)
    with scratch() as folder:
        cluster = Cluster(Plan("pcc", workers=2, steps=4, standby=True, speeds=(1.0,)), 1, folder)

        def both_die():
            monkeypatch.setattr(checkpoint, "save", save)
            cluster.dies("standby")
            cluster.dies("server")

        cluster.world.after(2.5, both_die)
        cluster.run()
    assert any("server: taking over" in line and "no version of this run is left" in line
               for line in cluster.said)
    assert all("this server has no checkpoint to resume from" in member.given_up
               for member in cluster.members)
    told = [line for line in cluster.said if "no checkpoint to resume from" in line]
    assert all(float(line.split()[0]) < 60 for line in told), "none waits for what cannot come"
