"""The files of the server: events, the published evaluation file, TensorBoard, the summary."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from full_disk import full_at

from wbsp.core.engine import Engine
from wbsp.core.stats import Member, count_rejected
from wbsp.core.store import Store
from wbsp.figures.load import gather
from wbsp.runlog.folder import write_settings
from wbsp.runlog.reader import read_run
from wbsp.runlog.server import ServerLog
from wbsp.runlog.straggler import StragglerScore
from wbsp.sync import Push, create
from wbsp.sync.noise import NoiseScale
from wbsp.watch.run import WatchedRun


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_fits_the_engine_and_reports_staleness(tmp_path):
    log = ServerLog(tmp_path, "asp", tensorboard=False)
    engine = Engine(create("asp"), Store(np.zeros(2, np.float32)), expected=2, log=log.event)
    engine.join(0, 0.0)
    engine.join(1, 0.5)
    for seq, worker in enumerate([0, 0, 0]):
        engine.push(Push(worker, seq, seq, 1, 8, 0.1), np.ones(2, np.float32), 1.0 + seq)
    engine.push(Push(1, 0, 0, 1, 8, 0.1), np.ones(2, np.float32), 5.0)  # three versions behind
    log.summary(6.0, engine.members, {}, 4, None, "test")
    log.close()
    events = lines_of(tmp_path / "events.jsonl")
    assert [event["kind"] for event in events][:3] == ["join", "join", "start"]
    accepted = [event for event in events if event["kind"] == "accept"]
    assert [event["version"] - event["base"] for event in accepted] == [0, 0, 0, 3]
    assert accepted[3] | {"t": 5.0, "worker": 1, "seq": 0, "steps": 1, "samples": 8} == accepted[3]
    staleness = json.loads((tmp_path / "summary.json").read_text())["staleness"]
    assert staleness == {"mean": 0.75, "max": 3, "pushes": 4}


def test_events_take_numpy_values_and_not_finite_ones(tmp_path):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    log.event(np.float64(0.5), "odd", a=np.float32(0.25), b=np.int64(3), c=float("nan"),
              d=np.arange(2), e=np.bool_(True))
    log.close()
    assert lines_of(tmp_path / "events.jsonl") == [
        {"t": 0.5, "kind": "odd", "a": 0.25, "b": 3, "c": None, "d": [0, 1], "e": True}]


def test_the_published_evaluation_line(tmp_path, cluster):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    log.evaluation(12.5, 7, 1.25, 0.75, 0.875, cluster.members, cluster.reports)
    # on the disk before the run ends
    row = np.loadtxt(tmp_path / "ps_global_loss_wbsp.txt", delimiter=",")
    #        time, slowest, sum, loss, top-1 err, top-5 err, push s, MiB, pull s, MiB
    assert row.tolist() == [12.5, 10, 40, 1.25, 0.25, 0.125, 0.75, 2.0, 0.625, 4.0]
    event, = lines_of(tmp_path / "events.jsonl")
    assert event == {"t": 12.5, "kind": "evaluation", "version": 7, "steps": 40, "loss": 1.25,
                     "accuracy": 0.75, "top5": 0.875}
    log.close()


def test_a_lost_worker_is_not_the_slowest(tmp_path, cluster):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    cluster.members[1].active = False
    log.evaluation(1.0, 1, 1.0, 0.5, 0.5, cluster.members, cluster.reports)
    cluster.members[1].finished = True
    log.evaluation(2.0, 2, 1.0, 0.5, 0.5, cluster.members, cluster.reports)
    log.close()
    rows = np.loadtxt(tmp_path / "ps_global_loss_wbsp.txt", delimiter=",")
    assert rows[:, 1].tolist() == [30, 10] and rows[:, 2].tolist() == [40, 40]


def test_an_evaluation_before_the_first_join_is_written(tmp_path):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    log.evaluation(0.0, 0, 2.5, 0.125, 0.5, {}, {})
    log.close()
    row = np.loadtxt(tmp_path / "ps_global_loss_wbsp.txt", delimiter=",")
    assert row.tolist() == [0, 0, 0, 2.5, 0.875, 0.5, 0, 0, 0, 0]


def test_tensorboard_reads_the_curves(tmp_path, cluster):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = ServerLog(tmp_path, "wbsp")
    for base in (0, 0, 2):
        log.event(1.0, "accept", worker=0, seq=0, base=base, version=3)
    log.evaluation(2.0, 3, 1.25, 0.75, 0.875, cluster.members, cluster.reports)
    log.evaluation(4.0, 4, 1.0, 0.875, 1.0, cluster.members, cluster.reports)
    log.close()
    curves = EventAccumulator(str(tmp_path)).Reload()
    first = {tag: curves.Scalars(tag)[0].value for tag in curves.Tags()["scalars"]}
    assert first == pytest.approx({
        "evaluation/loss": 1.25, "evaluation/accuracy": 0.75, "evaluation/top5_accuracy": 0.875,
        "version": 3, "staleness/mean": 7 / 3, "staleness/max": 3,
        "compute_share/worker_0": 0.6, "compute_share/worker_1": 0.8,
        "speed/worker_0": 100, "speed_vs_best/worker_0": 1, "speed_vs_own_best/worker_0": 1,
        "speed/worker_1": 25, "speed_vs_best/worker_1": 0.25, "speed_vs_own_best/worker_1": 1})
    accuracy = curves.Scalars("evaluation/accuracy")
    assert [point.value for point in accuracy] == [0.75, 0.875]
    assert [point.step for point in accuracy] == [40, 40]  # the sum of the worker steps
    assert accuracy[1].wall_time - accuracy[0].wall_time == pytest.approx(2.0)
    assert len(curves.Scalars("staleness/mean")) == 1  # nothing was accepted between the two


def test_the_summary_adds_up(tmp_path, cluster):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    text = log.summary(50.0, cluster.members, cluster.reports, 9, 0.8125, "40 steps were trained")
    log.close()
    summary = json.loads((tmp_path / "summary.json").read_text())
    total, workers = summary["total"], summary["workers"]
    assert summary["sync"] == "wbsp" and summary["version"] == 9 and summary["accuracy"] == 0.8125
    assert {k: total[k] for k in ("steps", "samples", "pushes", "pulls", "rejected")} == {
        "steps": 40, "samples": 4000, "pushes": 40, "pulls": 18, "rejected": 2}
    for one in [*workers.values(), total]:
        assert sum(one["shares"].values()) == pytest.approx(1.0)
        assert sum(one["seconds"].values()) == pytest.approx(one["wall_seconds"])
    assert total["seconds"]["compute"] == 70.0 and total["shares"]["compute"] == 0.7
    assert workers["1"]["rejected_why"] == {"not finite": 2}
    assert (workers["1"]["speed"], workers["1"]["vs_best"]) == (25.0, 0.25)
    assert (tmp_path / "summary.txt").read_text() == text
    assert "stopped: 40 steps were trained" in text and "final accuracy 0.8125" in text
    assert "rejected pushes: 2 not finite" in text
    row = next(line for line in text.splitlines() if line.split()[:2] == ["1", "50.0"])
    assert row.split()[2:4] == ["40.0", "80.0%"]


def test_a_summary_needs_neither_reports_nor_accuracy(tmp_path, cluster):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    text = log.summary(1.0, cluster.members, {}, 0, None, "stopped by hand")
    log.close()
    assert "accuracy" not in text
    assert json.loads((tmp_path / "summary.json").read_text())["total"]["shares"]["wait"] == 0.0


def test_a_summary_compares_with_a_workers_own_best_stretch(tmp_path, cluster):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    log.evaluation(1.0, 1, 1.0, 0.5, 0.5, cluster.members, {})
    cluster.members[0].samples, cluster.members[0].seconds = 3600, 60.0  # was 100/s, now 20/s
    log.summary(2.0, cluster.members, {}, 1, None, "done")
    log.close()
    worker = json.loads((tmp_path / "summary.json").read_text())["workers"]["0"]
    assert worker["speed"] == 60.0 and worker["vs_own_best"] == pytest.approx(0.6)


def test_a_resumed_run_appends(tmp_path, cluster):
    for append in (False, True):
        log = ServerLog(tmp_path, "wbsp", append=append)
        log.evaluation(1.0 + append, 1, 1.0, 0.5, 0.5, cluster.members, cluster.reports)
        log.close()
    rows = np.loadtxt(tmp_path / "ps_global_loss_wbsp.txt", delimiter=",")
    assert rows[:, 0].tolist() == [1.0, 2.0]
    assert len(lines_of(tmp_path / "events.jsonl")) == 2
    with pytest.raises(FileExistsError, match="holds an earlier run"):
        ServerLog(tmp_path, "wbsp")


def test_a_resumed_run_cuts_off_later_evaluations(tmp_path, cluster):
    log = ServerLog(tmp_path, "wbsp", tensorboard=False)
    for t in (1.0, 2.123456789123, 3.0):
        log.event(t, "accept", worker=0, seq=0, base=0, version=4)
        log.evaluation(t, 1, 1.0, 0.5, 0.5, cluster.members, cluster.reports)
        if t == 2.123456789123:
            staleness = json.loads(json.dumps(log.staleness))
    log.close()
    log = ServerLog(tmp_path, "wbsp", tensorboard=False, append=True)
    log.resume(2.123456789123, 7, staleness)
    log.evaluation(2.5, 8, 1.0, 0.5, 0.5, cluster.members, cluster.reports)
    log.summary(9.0, cluster.members, cluster.reports, 8, None, "done")
    log.close()
    rows = np.loadtxt(tmp_path / "ps_global_loss_wbsp.txt", delimiter=",")
    assert rows[:, 0].tolist() == [1.0, 2.12345679, 2.5]
    events = lines_of(tmp_path / "events.jsonl")
    assert len(events) == 8, "of the events nothing is cut off"
    assert events[6] == {"t": 2.123456789123, "kind": "resume", "version": 7}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["staleness"] == {"mean": 4.0, "max": 4, "pushes": 2}


def test_a_full_disk_does_not_end_the_run(tmp_path, cluster):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = []
    log = ServerLog(tmp_path, "wbsp", say=said.append)
    with full_at(1500):
        for t in range(20):
            log.evaluation(t, t, 1.0, 0.5, 0.5, cluster.members, cluster.reports)
        curve = EventAccumulator(str(tmp_path)).Reload().Scalars("version")
        assert 1 <= len(curve) < 20, "what was written can be read"
    with full_at(500):
        text = log.summary(9.0, cluster.members, cluster.reports, 8, None, "done")
    assert "stopped: done" in text and not (tmp_path / "summary.json").exists()
    log.close()
    curve = EventAccumulator(str(tmp_path)).Reload().Scalars("version")
    assert [point.value for point in curve] == list(range(20))
    assert len(lines_of(tmp_path / "events.jsonl")) == 20
    starts = [line.split(str(tmp_path))[0] for line in said]
    assert sorted(starts) == ["", "", "cannot write ", "cannot write ",
                              "cannot write the summary into "]
    assert all("0 lines were lost" in line for line in said if line.startswith(str(tmp_path)))


def test_importing_and_logging_needs_no_tensorflow(tmp_path):
    code = ("import sys\n"
            "from wbsp.runlog import console, folder, reader, server, worker\n"
            "heavy = {'tensorflow', 'keras', 'zmq', 'tensorboard', 'rich', 'matplotlib'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
            "log = server.ServerLog(sys.argv[1], 'wbsp')\n"
            "log.evaluation(0.0, 0, 1.0, 0.5, 0.5, {}, {})\n"
            "log.close()\n"
            "assert 'tensorflow' not in sys.modules\n")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def noisy(log, versions=40, sgd=True):
    """The events of two workers whose gradients are as long as their noise, at a batch of 8."""
    for worker in range(2):
        log.event(0.0, "join", worker=worker, version=0, **({"sgd": True} if sgd else {}))
    for version in range(1, versions + 1):
        for worker in range(2):
            log.event(float(version), "accept", worker=worker, seq=version, base=version - 1,
                      version=version - 1, steps=1, samples=8, seconds=0.5, weight=0.5, norm2=2.0)
        log.event(float(version), "commit", version=version, merged=2, norm2=1.5)


def test_the_noise_scale_is_in_evaluations_and_in_the_summary(tmp_path, cluster):
    log = ServerLog(tmp_path, "bsp", tensorboard=False)
    noisy(log)
    log.evaluation(41.0, 40, 1.0, 0.5, 0.9, cluster.members, cluster.reports)
    text = log.summary(42.0, cluster.members, cluster.reports, 40, 0.5, "test")
    log.close()
    expected = {"scale": 8.0, "batch": 8.0, "efficiency": pytest.approx(2 / 3, abs=1e-3),
                "half": 1.5}
    assert lines_of(tmp_path / "events.jsonl")[-1]["noise"] == expected
    assert json.loads((tmp_path / "summary.json").read_text())["noise"] == expected
    # 4000 examples; at their speeds of 100 and 25 examples/s they could have made 6250
    assert ("goodput: this run used 43% of what its machines could give; 36% went to waiting and "
            "transfers, 21% to noise (noise scale about 8 examples; half of a worker's batch of 8 "
            "would gain 50% at most)") in text


def test_no_noise_scale_is_shown_of_updates_that_are_no_sums_of_gradients(tmp_path, cluster):
    """A worker with momentum or Adam does not report plain SGD."""
    log = ServerLog(tmp_path, "bsp", tensorboard=False)
    noisy(log, sgd=False)
    assert log.noise is None
    assert "goodput" not in log.summary(42.0, cluster.members, cluster.reports, 40, 0.5, "test")
    log.close()


def test_a_failed_record_is_one_line_and_the_rest_continues(tmp_path, cluster,
                                                            monkeypatch):
    said = []
    log = ServerLog(tmp_path, "bsp", tensorboard=False, say=said.append)
    monkeypatch.setattr(NoiseScale, "push", lambda *_: 1 / 0)
    noisy(log, sgd=True)
    assert log.noise is None
    log.event(43.0, "odd", value=object())  # no JSON
    log.event(44.0, "odd", value=object())
    monkeypatch.setattr(StragglerScore, "update", lambda *_: 1 / 0)
    for t in (45.0, 46.0):
        log.training(t, 40, 0.5, 8, cluster.members, cluster.reports)
    log.close()
    assert [line.partition(" failed:")[0] for line in said] == [
        "the meter of the noise scale", "writing events of kind odd", "the meter of speeds"]
    kinds = [event["kind"] for event in lines_of(tmp_path / "events.jsonl")]
    assert kinds.count("error") == 3 and kinds.count("training") == 2


def test_a_long_runs_events_end_in_sums_of_which_page_and_figures_make_the_same_totals(tmp_path):
    def write(folder, most):
        folder.mkdir()
        write_settings(folder, {"sync": "asp"})
        said = []
        log = ServerLog(folder, "asp", tensorboard=False, say=said.append, most=most)
        members = {worker: Member(active=True) for worker in range(2)}
        for worker in members:
            log.event(0.0, "join", worker=worker, version=0)
        log.event(0.0, "start", workers=[0, 1])
        for step in range(1, 500):
            t, worker, bad = step / 2, step % 3 % 2, step % 50 == 0
            if bad:
                count_rejected(members[worker].rejected, "not finite")
                log.event(t, "reject", worker=worker, seq=step, steps=1, samples=8, seconds=0.1,
                          reason="not finite", version=step, base=step)
            else:
                log.event(t, "accept", worker=worker, seq=step, base=max(0, step - 1 - worker),
                          version=step - 1, steps=1, samples=8, seconds=0.1, weight=1.0)
                log.event(t, "commit", version=step)
            members[worker].count(1, 8, 0.1, step)
            log.tally(t, step, members)
            if step % 10 == 0:
                log.event(t, "checkpoint", version=step)
        log.event(250.0, "stop", reason="enough", version=499)
        log.tally(1000.0, 499, members)
        log.close()
        run = WatchedRun(folder, "run")
        run.refresh()
        (stats,) = gather([read_run(folder)])
        return run.state(), stats, said, (folder / "events.jsonl").stat().st_size

    whole, whole_stats, nothing, size = write(tmp_path / "whole", math.inf)
    short, short_stats, said, less = write(tmp_path / "short", 20_000)
    assert nothing == [] and len(said) == 1 and "has the sums of each worker's pushes" in said[0]
    assert size > 80_000 and 20_000 < less < 40_000
    for one in (whole, short):
        one["summary"]["t"] = one["summary"]["noise"] = None
        for worker in one["summary"]["workers"].values():
            del worker["vs_own_best"]
    assert short["summary"] == whole["summary"] and short["rejections"] == whole["rejections"]
    assert short["versions"]["version"][-1] == 499 == short_stats.version_number
    assert short_stats.steps == whole_stats.steps
