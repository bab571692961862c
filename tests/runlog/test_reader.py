"""The reader of a run's folder, after a finished or a killed run."""

import math

import pytest

from wbsp.runlog.folder import run_folder, write_settings
from wbsp.runlog.reader import read_run
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog


@pytest.fixture
def folder(tmp_path, cluster):
    folder = run_folder("wbsp/", tmp_path)
    write_settings(folder, {"sync": "wbsp", "clock": "virtual"})
    log = ServerLog(folder, "wbsp", tensorboard=False)
    log.event(0.0, "start", workers=[0, 1])
    for t, accuracy in [(10.0, 0.25), (20.0, 0.75), (30.0, 0.5), (40.0, 0.875)]:
        loss = float("nan") if t == 30.0 else 1.0
        log.evaluation(t, int(t), loss, accuracy, 1.0, cluster.members, cluster.reports)
    log.close()
    for worker in (0, 1, 10):
        spans = WorkerLog(folder, worker, "wbsp")
        spans.span("compute", "compute", 0.0, 1.0 + worker)
        spans.close()
    return folder


def test_all_that_was_written_can_be_read(folder):
    run = read_run(folder)
    assert run.settings == {"sync": "wbsp", "clock": "virtual"}
    assert run.events[0] == {"t": 0.0, "kind": "start", "workers": [0, 1]}
    assert run.evaluations.t.tolist() == [10, 20, 30, 40]
    assert run.evaluations.version.tolist() == [10, 20, 30, 40]
    assert run.evaluations.steps.tolist() == [40] * 4
    assert math.isnan(run.evaluations.loss[2])
    assert run.evaluations.top5.tolist() == [1.0] * 4
    assert list(run.spans) == [0, 1, 10]
    assert run.spans[10][0]["seconds"] == 11.0
    assert run.summary is None


def test_the_summary_is_read(folder, cluster):
    log = ServerLog(folder, "wbsp", tensorboard=False, append=True)
    log.summary(50.0, cluster.members, cluster.reports, 40, 0.875, "done")
    log.close()
    assert read_run(folder).summary["total"]["steps"] == 40


@pytest.mark.parametrize("accuracy, t", [(0.0, 10.0), (0.25, 10.0), (0.3, 20.0), (0.75, 20.0),
                                         (0.8, 40.0), (0.9, None)])
def test_time_to_is_the_first_evaluation_that_reaches_it(folder, accuracy, t):
    assert read_run(folder).time_to(accuracy) == t


def test_a_torn_last_line_is_left_out(folder):
    with open(folder / "events.jsonl", "ab") as file:
        file.write(b'{"t":41.0,"kind":"acc')
    assert read_run(folder).events[-1]["t"] == 40.0


def write_events(folder, *events):
    folder.mkdir(exist_ok=True)
    write_settings(folder, {"sync": "wbsp"})
    log = ServerLog(folder, "wbsp", tensorboard=False)
    for t, kind, fields in events:
        log.event(t, kind, **fields)
    log.close()


def commit(t, version):
    return t, "commit", {"version": version}


def checkpoint(t, version):
    return t, "checkpoint", {"version": version}


def resume(t, version):
    return t, "resume", {"version": version}


def evaluation(t, version):
    return t, "evaluation", {"version": version}


def seen(folder, *kinds):
    return [(e["t"], e["version"]) for e in read_run(folder).events if e["kind"] in kinds]


def test_events_after_the_checkpoint_of_a_resumed_run_are_left_out(tmp_path):
    write_events(
        tmp_path, commit(1.0, 1), checkpoint(1.0, 1), commit(2.0, 2), checkpoint(2.0, 2),
        commit(2.0, 3), commit(3.0, 4), checkpoint(3.0, 4),  # whose file was never there
        resume(2.0, 2), commit(2.5, 3), checkpoint(2.5, 3), commit(2.75, 4),
        resume(2.5, 3), commit(2.625, 4),
        resume(2.5, 3),  # killed before it wrote a checkpoint
        commit(4.0, 4), checkpoint(4.0, 4))
    assert seen(tmp_path, "commit") == [(1.0, 1), (2.0, 2), (2.5, 3), (4.0, 4)]
    assert len(seen(tmp_path, "resume")) == 2, "one was rolled back itself"


def test_of_two_checkpoints_of_a_version_the_one_that_was_loaded_counts(tmp_path):
    write_events(tmp_path, commit(1.0, 1), checkpoint(1.0, 1), (1.5, "reject", {"version": 1}),
                 checkpoint(2.0, 1), resume(1.0, 1), commit(3.0, 2))
    assert seen(tmp_path, "reject") == [] and seen(tmp_path, "commit") == [(1.0, 1), (3.0, 2)]


def test_without_a_logged_checkpoint_time_decides(tmp_path):
    write_events(tmp_path, commit(1.0, 1), commit(2.0, 2), commit(3.0, 3), resume(2.25, 2),
                 commit(2.5, 3))
    assert seen(tmp_path, "commit") == [(1.0, 1), (2.0, 2), (2.5, 3)]


def test_evaluations_of_versions_up_to_the_checkpoint_stay(tmp_path):
    write_events(tmp_path, commit(1.0, 1), checkpoint(2.0, 1), commit(3.0, 2), evaluation(1.5, 1),
                 evaluation(3.5, 2), resume(2.0, 1))
    assert seen(tmp_path, "evaluation") == [(1.5, 1)]


def test_training_began_when_it_did_where_workers_resume_from_before(tmp_path):
    def at(t, kind):
        return t, kind, {"version": 0}

    past = [checkpoint(1.0, 0), at(2.0, "start"), commit(3.0, 1), resume(1.0, 0)]
    again = [at(9.0, "start"), commit(10.0, 1)]
    write_events(tmp_path / "a", *past, at(9.0, "reattach"), *again)
    assert seen(tmp_path / "a", "start", "commit") == [(0.0, 0), (7.0, 0), (8.0, 1)]
    write_events(tmp_path / "c", *past, checkpoint(8.0, 0), at(9.0, "reattach"), *again)
    assert [event["t"] for event in read_run(tmp_path / "c").events] == [
        -1.0, -1.0, 0.0, 6.0, 7.0, 7.0, 8.0], "in order of time"
    write_events(tmp_path / "b", *past, at(9.0, "join"), *again)
    assert seen(tmp_path / "b", "start", "commit") == [(0.0, 0), (1.0, 1)]


def test_a_resumed_run_that_ended_well_is_whole(tmp_path):
    write_events(tmp_path, commit(1.0, 1), checkpoint(2.0, 1), evaluation(2.0, 1), resume(2.0, 1),
                 commit(3.0, 2), checkpoint(4.0, 2), evaluation(4.0, 2))
    assert seen(tmp_path, "commit", "evaluation") == [(1.0, 1), (2.0, 1), (3.0, 2), (4.0, 2)]


def test_repeated_spans_are_left_out(tmp_path):
    write_settings(tmp_path, {"sync": "wbsp"})
    for life, (start, steps) in enumerate([(0.0, 8), (4.5, 3)]):
        log = WorkerLog(tmp_path, 0, "wbsp", append=life > 0)
        for step in range(steps):
            log.span("compute", "compute", start + step, start + step + 1, life=life)
            log.span("network", "push", start + step - 0.5, start + step + 1.25, life=life)
        log.close()
    spans = read_run(tmp_path).spans[0]
    compute = [(s["life"], s["t"]) for s in spans if s["lane"] == "compute"]
    assert compute == [(0, 0.0), (0, 1.0), (0, 2.0), (0, 3.0), (1, 4.5), (1, 5.5), (1, 6.5)]
    assert [s["life"] for s in spans if s["lane"] == "network"] == [0, 0, 0, 0, 1, 1, 1]


def test_damage_in_another_line_is_an_error_that_names_the_line(folder):
    text = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text("rubbish\n" + text)
    with pytest.raises(ValueError, match=r"events\.jsonl, line 1 is damaged"):
        _ = read_run(folder).events


def test_a_run_without_any_event_is_empty(tmp_path):
    write_settings(tmp_path, {"sync": "wbsp"})
    run = read_run(tmp_path)
    assert run.events == [] and run.spans == {} and run.evaluations.t.shape == (0,)
    assert run.time_to(0.0) is None


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run's folder"):
        read_run(tmp_path)
