"""A run's folder is read back, finished or killed."""

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


def test_what_was_written_is_read(folder):
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


def test_damage_elsewhere_is_told_with_its_place(folder):
    text = (folder / "events.jsonl").read_text()
    (folder / "events.jsonl").write_text("rubbish\n" + text)
    with pytest.raises(ValueError, match=r"events\.jsonl, line 1 is damaged"):
        _ = read_run(folder).events


def test_a_run_without_any_event_is_empty(tmp_path):
    write_settings(tmp_path, {"sync": "wbsp"})
    run = read_run(tmp_path)
    assert run.events == [] and run.spans == {} and run.evaluations.t.shape == (0,)
    assert run.time_to(0.0) is None


def test_no_run_no_reading(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run's folder"):
        read_run(tmp_path)
