"""Which run a server resumes."""

import pytest

from wbsp.ps.checkpoint.resume import Runs
from wbsp.ps.checkpoint.writer import CHECKPOINT
from wbsp.runlog.folder import hold_folder, write_settings

HERE, THERE = 2606, 2607  # ports


@pytest.fixture
def past(tmp_path):
    """past(settings, ...): folders of runs in the order in which they were begun; one with
    checkpoint=False has none."""
    def make(*runs, folder="pcc"):
        for number, settings in enumerate(runs, 1):
            path = tmp_path / folder / f"run-{number:03d}"
            path.mkdir(parents=True)
            if settings.pop("checkpoint", True):
                (path / CHECKPOINT).touch()
            write_settings(path, {"id": f"{number}", **settings})
        return tmp_path
    return make


def meant(folder, resume=True, port=HERE):
    found = Runs("pcc", str(folder), port, resume).to_resume()
    return found and found.name


def said(folder, resume=True, port=HERE):
    runs, lines = Runs("pcc", str(folder), port, resume), []
    assert runs.to_resume() is None
    assert runs.new().exists()
    runs.say_of_others(lines.append)
    return lines


def test_without_an_earlier_run_a_new_one_begins(past, tmp_path):
    assert meant(tmp_path) is None
    assert said(tmp_path) == ["no checkpoint found; starting a new run"]


def test_without_resume_a_new_run_always_begins(past):
    folder = past({"port": HERE})
    assert meant(folder, resume=False) is None
    assert said(folder, resume=False)[0].startswith("not finished: run-001 (port 2606); to con")


def test_a_run_that_has_ended_is_not_continued(past):
    folder = past({"port": HERE, "ended": True})
    assert meant(folder) is None and meant(folder, port=THERE) is None
    assert said(folder) == ["run-001 has ended: this is a new run; --resume=run-001 "
                            "continues that one"]
    assert meant(folder, resume="run-001") == "run-001"


def test_a_run_that_ended_at_its_standby_has_ended(past):
    folder = past({"port": HERE})
    assert meant(folder) == "run-001"
    past({"port": THERE, "ended": True}, folder="pcc-standby")  # the same id
    assert meant(folder) is None


def test_the_run_served_here_takes_precedence_over_a_newer_one(past):
    assert meant(past({"port": HERE}, {"port": THERE})) == "run-001"


def test_an_abandoned_run_is_not_continued_behind_one_that_has_ended(past):
    folder = past({"port": HERE}, {"port": HERE, "ended": True})
    assert meant(folder) is None
    assert said(folder)[1:] == ["not finished: run-001 (port 2606); to continue one of them, end "
                                "this server and start it with --resume=run-001"]


def test_a_failed_start_without_resume_hides_no_run(past):
    assert meant(past({"port": HERE}, {"port": HERE, "checkpoint": False})) == "run-001"


def test_a_run_that_died_before_its_first_version_continues_under_its_id(past):
    """Its workers know that."""
    assert meant(past({"port": HERE, "ended": True}, {"port": HERE, "checkpoint": False})
                 ) == "run-002"


def test_a_run_of_another_port_is_meant_if_it_is_the_only_one(past):
    assert meant(past({"port": THERE, "ended": True}, {"port": THERE}), port=2700) == "run-002"


def test_where_several_may_be_meant_they_are_named(past):
    folder = past({"port": HERE}, {"port": THERE})
    with pytest.raises(ValueError, match=r"run-002 \(port 2607\), run-001 \(port 2606\); name "
                                         r"one, such as --resume=run-002, or start a new one"):
        meant(folder, port=2700)
    assert meant(folder, "run-001", port=2700) == "run-001"


def test_a_run_that_is_served_elsewhere_is_not_meant(past):
    folder = past({"port": THERE})
    with hold_folder(folder / "pcc" / "run-001", "somebody"):
        assert meant(folder) is None
    assert meant(folder) == "run-001"


def test_runs_of_older_releases_say_no_port_and_the_newest_is_meant(past):
    assert meant(past({}, {})) == "run-002"


def test_an_unknown_run_is_refused_with_the_known_ones(past):
    folder = past({"port": HERE}, {"checkpoint": False})
    for name in ("run-007", "run-002", "yes"):
        with pytest.raises(ValueError, match=rf"--resume={name}: .*pcc has no such run with a "
                                             r"checkpoint; it has run-001 \(port 2606\)"):
            meant(folder, name)


def test_a_run_in_place_of_an_ended_one_knows_its_series(past):
    runs = Runs("pcc", str(past({"port": HERE, "ended": True, "series": "ab12"})), HERE, True)
    assert runs.to_resume() is None and runs.past == "ab12"


def test_a_server_continues_with_the_run_that_it_serves(past, tmp_path):
    runs = Runs("pcc", str(past({"port": HERE, "ended": True})), HERE)
    assert runs.to_resume() is None
    new = runs.new()
    assert runs.to_resume() == new, "after a shard was lost"


def test_a_folder_without_a_checkpoint_does_not_hide_the_run_before(past):
    """A server of an older release died when it had made the folder of its take-over."""
    folder = past({"port": HERE})
    (folder / "pcc" / "run-002").mkdir()
    assert meant(folder) == "run-001"


def test_a_take_over_without_run_json_is_skipped(past):
    """The same, when the checkpoint was there, and run.json was not."""
    folder = past({"port": HERE}, {})
    (folder / "pcc" / "run-002" / "run.json").unlink()
    runs = Runs("pcc", str(folder), HERE, True)
    assert runs.to_resume().name == "run-001" and runs.passed_over.name == "run-002"
    assert meant(folder, resume="run-002") == "run-002", "who names it has it"


def test_a_run_newer_than_an_incomplete_take_over_is_resumed(past):
    folder = past({}, {"port": HERE})
    (folder / "pcc" / "run-001" / "run.json").unlink()
    runs = Runs("pcc", str(folder), HERE, True)
    assert runs.to_resume().name == "run-002" and runs.passed_over is None


def test_a_folder_counts_when_it_is_finished(past):
    folder = past({"port": HERE})
    runs = Runs("pcc", str(folder), HERE, True)
    half = runs.unfinished()
    (half / CHECKPOINT).touch()
    write_settings(half, {"id": "1"})
    assert meant(folder) == "run-001"
    assert Runs("pcc", str(folder), HERE).unfinished() == half, "nobody holds it"
    with hold_folder(half, "me"):
        other = Runs("pcc", str(folder), HERE).unfinished()
        assert other != half
    (folder / "pcc" / "run-002").mkdir()  # another process was faster
    assert runs.finished(half).name == "run-003" == meant(folder)
    assert not half.exists()
