"""The state of a series of fits: what a server resumes from, and which fit a process begins."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbsp.ps.checkpoint.state import check_run
from wbsp.ps.replication.election import Standing
from wbsp.ps.series import SERVER_STEP, STANDBY_STEP, Series, awaits, next_run


def serving(fit, **state):
    """A series in its fit of this number, of which the earlier ones have folders."""
    series = Series(id="ab12", fit=fit, **state)
    series.folders = dict.fromkeys(range(1, fit + 1))
    return series


@pytest.mark.parametrize(("series", "fit", "anew", "due"), [
    ("", 1, False, 1), ("ab12", 2, False, 2), ("ab12", 3, False, 3), ("ab12", 4, False, 4),
    ("", 0, False, 3), ("cd34", 1, False, 1), ("cd34", 2, True, 1)],
    ids=["new", "behind", "the present one", "has its final version", "unknown", "first of another",
         "done with another"])
def test_a_process_reports_which_fit_it_begins(series, fit, anew, due):
    assert serving(3).due(series, fit, anew) == due


@pytest.mark.parametrize(("series", "fit", "says"), [
    ("cd34", 2, "fit 2 of another series of fits.*--resume"), ("ab12", 5, "has not served fit 3"),
    ("ab12", 2, "the folder with its final version is not here")])
def test_no_fit_is_mixed_with_another(series, fit, says):
    served = serving(3)
    del served.folders[2]
    with pytest.raises(ValueError, match=says):
        served.due(series, fit)


def test_a_run_in_place_of_an_ended_series_of_one_run_is_not_begun_by_its_processes():
    served = serving(1, single=True, past="cd34")
    with pytest.raises(ValueError, match="whose only run has ended.*without --resume"):
        served.due("cd34", 2, anew=True)
    assert served.due("cd34", 1, anew=True) == served.due("ef56", 2, anew=True) == 1
    run = check_run({"id": "ab12", **served.begin({}, "ab12", Path("runs/pcc/run-002"),
                                                   lambda: "5e" * 32)}, "run")
    later = Series(single=True)
    later.restore(run)
    assert later.past == "cd34", "also by a later server of that run, and its standby"


def test_a_fit_that_has_not_begun_has_no_final_version():
    assert serving(2).due("ab12", 2, begun=False) == 2
    with pytest.raises(ValueError, match="has not served fit 2"):
        serving(2).due("ab12", 3, begun=False)


def test_another_server_continues_at_the_address_in_run_json():
    series = serving(2, secret="5e" * 32)
    series.lives(0, b"a", proven=True)
    series.departs(1, b"", proven=True)
    series.has_final(0)
    run = {"id": "ef56", "series": "ab12", "fit": 2, "secret": series.secret, "ended": True,
           **series.note()}
    assert Series.continues(check_run(run, "run.json"))
    later = Series()
    later.succeed(run)
    assert (later.id, later.fit, later.secret) == ("ab12", 3, series.secret)
    assert (set(later.living), later.gone, later.have) == ({0}, {1}, set())
    same = Series()
    same.restore(run)
    assert (same.fit, same.have) == (2, {0})
    assert not Series.continues(run | {"living": []}), "all processes have ended"
    assert not Series.continues(run | {"ended": False})


def test_only_a_workers_own_process_can_report_its_end():
    series = serving(1)
    series.lives(0, b"mine", proven=True)
    series.lives(0, b"another's")
    series.departs(0, b"another's", proven=False)
    assert series.goes_on
    series.departs(0, b"mine", proven=False)
    assert not series.goes_on and series.gone == {0}


def test_the_next_run_waits_for_processes_without_an_index():
    series = serving(1, secret="5e" * 32)
    series.comes(None, b"one", proven=False)
    assert series.goes_on and series.awaited == "1 process without an index"
    run = check_run({"id": "ab12", "series": "ab12", "fit": 1, "epoch": 1, "secret": series.secret,
                     "workers": 1, "ended": True, **series.note()}, "run.json")
    assert Series.continues(run), "also by a process that is started later"
    later = Series()
    later.succeed(run)
    assert later.goes_on and awaits(next_run(run)) == 1
    assert len(Standing.of_note(next_run(run), SERVER_STEP).voters) == 1, "it is counted"
    series.lives(0)
    series.comes(None, b"two", proven=False)
    assert series.awaited == "worker 0 and 2 processes without an index"


def test_processes_without_an_index_are_remembered_up_to_a_bound():
    series = serving(1)
    for number in range(2000):
        series.comes(None, number.to_bytes(8, "big"), proven=False)
    assert len(series.nameless) == 1000


def test_a_server_of_one_run_expects_no_further_fit():
    series = serving(1, single=True)
    series.lives(0)
    series.comes(None, b"one", proven=False)
    assert not series.goes_on and series.note() == {"chosen": {}}


# Epochs.


class Process:
    """One of the two processes of a series, with its disk."""

    def __init__(self, secret="5e" * 32):
        self.run = {"id": "ab12", "series": "ab12", "fit": 1, "secret": secret, "workers": 1,
                    "living": [0]}
        self.starts()

    def starts(self):
        self.series = Series()
        self.series.exceeds(self.run.get("epoch", 0))

    def serves(self, run, step):
        """Begin or continue this run, and write that."""
        self.run = {**run, "epoch": self.series.next_epoch(run.get("epoch", 0), step)}
        self.series.exceeds(self.run.get("epoch", 0))

    def again(self):
        """Continue from the process's own disk."""
        self.starts()
        self.serves(self.run, SERVER_STEP)

    def takes_over(self, other):
        self.serves(other.run, STANDBY_STEP)

    def goes_on(self):
        """End the run, and begin the next one in the same process."""
        self.serves({**next_run(self.run), "epoch": self.series.epoch}, SERVER_STEP)

    def begins(self):
        """Begin the next run in a process that was started again."""
        self.starts()
        self.serves(next_run(self.run), SERVER_STEP)

    def begins_for(self, other):
        """Begin the run behind the one that the other process has ended."""
        self.serves(next_run(other.run), STANDBY_STEP)


STEPS = ["a again", "b again", "a takes b", "b takes a", "a goes on", "b goes on", "a begins",
         "b begins", "a begins for b", "b begins for a"]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=30))
def test_no_epoch_of_a_series_is_taken_twice_or_by_both_processes(steps):
    a, b = Process(), Process()
    a.serves(a.run, SERVER_STEP)
    assert a.run["epoch"] == 1
    b.takes_over(a)
    taken = {1, 2}
    for step in steps:
        who, *what = step.split()
        me, other = (a, b) if who == "a" else (b, a)
        match what:
            case ["again"]:
                me.again()
            case ["takes", _]:
                me.takes_over(other)
            case ["goes", "on"]:
                me.goes_on()
            case ["begins"]:
                me.begins()
            case _:
                me.begins_for(other)
        epoch = me.run["epoch"]
        assert epoch % 2 == (me is a) and epoch not in taken
        taken.add(epoch)


def test_a_standby_begins_a_later_fit_than_its_server_may_have_begun():
    a, b = Process(), Process()
    a.serves(a.run, SERVER_STEP)
    b.begins_for(a)
    a.goes_on()
    assert a.run["id"] == b.run["id"] and a.run["epoch"] < b.run["epoch"]


def test_an_epoch_that_no_server_has_written_takes_no_time():
    series = Series()
    series.exceeds(1 << 53)
    assert series.next_epoch(1, STANDBY_STEP) == (1 << 53) + 2
