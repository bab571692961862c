"""The page's numbers: those of the summary when there is one, and the same before."""

import json
import shutil

import pytest
from jobs import until
from made_runs import made_of_site, write_run

from wbsp.core.stats import PHASES, Member, Report
from wbsp.runlog.files import from_json
from wbsp.runlog.folder import write_settings
from wbsp.runlog.server import ServerLog
from wbsp.runlog.worker import WorkerLog
from wbsp.watch.metrics import exposition
from wbsp.watch.run import WatchedRun
from wbsp.watch.state import members, totals

MODELS = ["bsp", "asp", "wbsp", "pcc", "ksync"]


def state_of(folder):
    run = WatchedRun(folder, "it")
    run.refresh()
    return run.state()


def unfinished(folder, tmp_path):
    """The same run without its end."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("summary.*"))
    return copy


@pytest.mark.parametrize("sync", MODELS)
def test_numbers_of_a_finished_run_are_those_of_its_summary(bad_day, sync):
    state = state_of(bad_day(sync))
    assert state["ended"]
    assert state["summary"] == from_json((bad_day(sync) / "summary.json").read_bytes())


@pytest.mark.parametrize("sync", MODELS)
def test_without_a_summary_events_and_spans_say_the_same(bad_day, sync, tmp_path):
    state = state_of(unfinished(bad_day(sync), tmp_path))
    mine, summary = state["summary"], from_json((bad_day(sync) / "summary.json").read_bytes())
    assert not state["ended"]
    assert mine["staleness"] == summary["staleness"] and mine["version"] == summary["version"]
    exact = ("steps", "samples", "pushes", "rejected", "rejected_why", "finished",
             "compute_seconds", "speed", "vs_best", "vs_own_best", "pulls")
    for worker, one in summary["workers"].items():
        assert {k: mine["workers"][worker][k] for k in exact} == {k: one[k] for k in exact}
        assert mine["workers"][worker]["shares"] == pytest.approx(one["shares"])
    assert {k: mine["total"][k] for k in ("steps", "samples", "pushes", "rejected")} \
        == {k: summary["total"][k] for k in ("steps", "samples", "pushes", "rejected")}


def test_straggler_scores_are_measured_where_the_server_measures_them(tmp_path):
    """At evaluations, and with the same meter."""
    write_run(tmp_path / "run", "wbsp", ended=True)
    mine = state_of(unfinished(tmp_path / "run", tmp_path))["summary"]["workers"]
    summary = from_json((tmp_path / "run" / "summary.json").read_bytes())["workers"]
    for worker in summary:
        assert {k: mine[worker][k] for k in ("steps", "pushes")} \
            == {k: summary[worker][k] for k in ("steps", "pushes")}


def test_joins_losses_and_rejections_are_shown(bad_day):
    state = state_of(bad_day("ksync"))
    told = [(e["kind"], e["worker"], e["text"]) for e in state["happenings"]["events"]]
    assert ("join", 4) in [(kind, worker) for kind, worker, _ in told]
    [lost] = [text for kind, worker, text in told if (kind, worker) == ("leave", 3)]
    assert lost.startswith("lost: ")
    [left] = [text for kind, worker, text in told if (kind, worker) == ("leave", 4)]
    assert not left.startswith("lost")
    [rejection] = state["rejections"]
    assert rejection["pushes"] == state["summary"]["total"]["rejected"] > 0
    assert rejection["reason"] == "late: its round was over"
    assert sum(rejection["workers"].values()) == rejection["pushes"]
    assert sum(map(sum, state["rejected"]["pushes"].values())) == rejection["pushes"]


def test_the_workers_loss_is_a_curve_and_the_server_measures_speeds_with_it(tmp_path, written):
    log, run = written()
    log.event(0.0, "join", worker=0, version=0)
    log.event(0.0, "start", workers=[0])
    member = Member(active=True)
    for second, speed in enumerate((100, 400, 200), 1):
        log.event(second, "accept", worker=0, seq=second, base=0, version=0, steps=1,
                  samples=speed, seconds=1.0, weight=1.0)
        member.count(1, speed, 1.0, 0)
        log.training(second, 0, 2.0 / second, speed, {0: member}, {})
        log.evaluation(second, 0, 1.0, 0.5, 0.5, {0: member}, {})
    run.refresh()
    state = run.state()
    assert state["training"] == {"t": [1, 2, 3], "steps": [1, 2, 3],
                                 "loss": [2.0, 1.0, pytest.approx(2 / 3)]}
    log.summary(3.0, {0: member}, {}, 0, 0.5, "done")
    known = from_json((run.folder / "summary.json").read_bytes())["workers"]["0"]
    assert state["summary"]["workers"]["0"]["vs_own_best"] == known["vs_own_best"] < 0.6


def test_curves_hold_every_evaluation_and_version(tmp_path):
    write_run(tmp_path / "run", "bsp", rounds=10, stale=(0, 2))
    state = state_of(tmp_path / "run")
    assert state["evaluations"]["version"] == list(range(1, 11))
    assert state["evaluations"]["accuracy"][-1] == pytest.approx(0.9)
    assert state["versions"]["t"] == pytest.approx([i + 0.9 for i in range(10)])
    assert state["versions"]["version"] == list(range(1, 11)) and state["versions"]["all"]
    assert max(state["staleness"]["max"]) == 2


def test_scores_over_time_show_the_straggler(bad_day):
    scores = state_of(bad_day("asp"))["scores"]
    slow = scores["vs_best"][scores["workers"].index(2)]
    assert all(0.1 < score < 0.4 for score in slow[3:])
    lost = scores["vs_best"][scores["workers"].index(3)]  # at 6 s, which is known a second later
    assert all((score is not None) == (t < 7.5) for t, score in zip(scores["t"], lost, strict=True)
               if not 6.0 <= t < 7.5)
    assert len(scores["t"]) == len(slow)


def test_a_run_is_followed_from_before_its_first_event_to_its_end(written, tmp_path):
    log, run = written()
    run.refresh()
    state = run.state()
    assert not state["ended"] and not state["started"]
    assert state["summary"]["total"]["pushes"] == 0
    json.dumps(state)
    log.event(1.0, "join", worker=0, version=0)
    log.event(2.0, "start", workers=[0])
    run.refresh()
    assert run.state()["began"] == 2.0 and run.state()["active"] == [0]
    before = run.stamp
    run.refresh()
    assert run.stamp == before
    log.event(3.5, "accept", worker=0, seq=0, base=0, version=0, steps=4, samples=32, seconds=1.0,
              weight=1.0)
    log.event(3.5, "commit", version=1, merged=1)
    log.flush()
    run.refresh()
    state = run.state()
    assert state["summary"]["total"]["steps"] == 4 and state["summary"]["version"] == 1
    assert state["versions"]["t"] == [1.5]
    log.event(4.0, "leave", worker=0, reason="no word", finished=False)
    log.event(5.0, "reattach", worker=0, version=1, finished=False)
    log.flush()
    run.refresh()
    assert [e["kind"] for e in run.state()["happenings"]["events"]] \
        == ["join", "start", "leave", "reattach"]
    log.summary(6.0, {0: Member(steps=4, samples=32, pushes=1)}, {0: Report(steps=4)}, 1, None,
                "enough")
    run.refresh()
    assert run.state()["ended"] and run.state()["summary"]["reason"] == "enough"


def test_work_that_was_sent_again_counts(written):
    log, run = written()
    log.event(0.0, "join", worker=0, version=0)
    log.event(0.0, "start", workers=[0])
    log.event(1.0, "checkpoint", version=0)
    log.event(2.0, "accept", worker=0, seq=0, base=0, version=0, steps=4, samples=32, seconds=1.0,
              weight=1.0)
    log.event(1.0, "resume", version=0)
    log.event(1.5, "resent", worker=0, first=0, last=2, steps=9, samples=72, seconds=2.0, base=0,
              rejected={"late": 1}, mark=0, version=0)
    log.event(1.5, "reattach", worker=0, version=0, finished=False)
    log.flush()
    run.refresh()
    one = run.state()["summary"]["workers"]["0"]
    assert (one["steps"], one["pushes"], one["rejected"], one["rejected_why"]) \
        == (9, 3, 1, {"late": 1})
    assert run.state()["active"] == [0]


@pytest.mark.parametrize("older", [False, True], ids=["", "of an older release"])
def test_the_summary_of_a_run_that_was_resumed_and_continues_is_not_shown(written, tmp_path, older):
    log, run = written()
    path = tmp_path / "summary.json"

    def refresh():
        if older and path.exists():
            summary = from_json(path.read_bytes())
            summary.pop("failures", None)
            path.write_text(json.dumps(summary))
        log.flush()
        run.refresh()

    accept = {"worker": 0, "base": 0, "version": 0, "steps": 1, "samples": 8, "seconds": 1.0,
              "weight": 1.0}
    log.event(0.0, "join", worker=0, version=0)
    log.event(0.0, "start", workers=[0])
    log.event(1.0, "accept", seq=0, **accept)
    log.event(1.0, "checkpoint", version=0)
    log.event(1.0, "leave", worker=0, reason="interrupted", finished=False)
    log.summary(1.0, {0: Member(steps=1, pushes=1)}, {}, 0, None, "interrupted")
    refresh()
    assert run.state()["ended"]
    log.resume(1.0, 0, {}, {})
    log.event(2.0, "join", worker=0, version=0)
    log.event(3.0, "accept", seq=1, **accept)
    refresh()
    assert not run.state()["ended"] and run.state()["summary"]["total"]["steps"] == 2
    log.event(4.0, "leave", worker=0, reason="finished", finished=True)
    log.summary(4.0, {0: Member(steps=2, pushes=2)}, {}, 0, None, "enough")
    refresh()
    assert run.state()["ended"] and run.state()["summary"]["total"]["steps"] == 2


def test_a_standby_that_took_over_has_a_summary_of_the_whole_run(written):
    """Its log begins where it took over; it knows of a resumption before that."""
    log, run = written()
    log.resume(9.0, 5, {"pushes": 8, "sum": 3, "max": 1}, {"resume": 1})
    log.event(9.0, "took_over", epoch=2, version=5)
    log.event(9.5, "reattach", worker=0, version=5, finished=False)
    log.event(10.0, "leave", worker=0, reason="finished", finished=True)
    log.flush()
    run.refresh()
    assert not run.state()["ended"]
    log.summary(11.0, {0: Member(steps=90, pushes=9)}, {}, 6, None, "enough")
    run.refresh()
    assert run.state()["ended"] and run.state()["summary"]["total"]["pushes"] == 9
    assert "the standby took over" in run.state()["happenings"]["events"][1]["text"]


def test_every_event_has_a_sentence(written):
    log, run = written()
    log.event(1.0, "error", traceback=["Traceback ...\n", "ValueError: no\n"])
    log.event(1.0, "malformed", count=3, total=3, reason="no message")
    log.event(1.0, "refused", worker=None, reason="a stranger")
    log.event(1.0, "alone", epoch=2)
    log.event(1.0, "lost", worker=1, first=2, last=3)
    log.event(1.0, "epoch", epoch=1, epochs=3, version=9)
    log.event(1.0, "measured", worker=1, epoch=0, values={"val_loss": 0.25, "val_accuracy": 0.5})
    log.event(1.0, "learning_rate", worker=1, epoch=0, rate=0.001)
    log.event(1.0, "news", of="tomorrow", long="x" * 1000)
    log.flush()
    run.refresh()
    told = {e["kind"]: e["text"] for e in run.state()["happenings"]["events"]}
    assert told["error"] == "ValueError: no" and told["refused"] == "a stranger"
    assert told["news"].startswith("of tomorrow, long x") and len(told["news"]) == 200
    assert "3 malformed messages" in told["malformed"] and told["lost"] == "pushes 2 to 3 are lost"
    assert told["epoch"] == "epoch 1 of 3 is trained", "epochs count from 1 on, as on the console"
    assert told["measured"] == "epoch 1: val_loss 0.25, val_accuracy 0.5"
    assert told["learning_rate"] == "epoch 1: learning rate 0.001"
    assert run.state()["epoch"] == {"trained": 1, "of": 3}
    assert 'wbsp_epochs_trained{run="it",sync="pcc"} 1.0' in exposition([("it", run.state())])


def test_workers_that_are_sites_count_their_own_workers(written):
    log, run = written()
    for worker in range(3):
        log.event(0.0, "join", worker=worker, version=0)
    for worker, workers in ((0, 0), (1, 5), (0, 3), (0, 2)):
        log.event(1.0, "site", worker=worker, workers=workers)
    log.flush()
    run.refresh()
    state = run.state()
    assert state["sites"] == {0: 2, 1: 5} and state["above"] is None
    assert "a site with 5 workers" in {e["text"] for e in state["happenings"]["events"]}
    assert 'wbsp_worker_behind{run="it",sync="pcc",worker="1"} 5.0' in exposition([("it", state)])
    assert 'behind{run="it",sync="pcc",worker="2"}' not in exposition([("it", state)])


def test_a_site_reports_its_traffic_with_the_server_above(written):
    log, run = written(upstream="top.example:2606", site="3")
    above = {"site": "3", "upstream": "top.example:2606"}
    run.refresh()
    assert run.state()["above"] == {**above, "pushes": 0, "adopted": 0, "version": None}
    for event in made_of_site():
        log.event(*event[:2], **event[2])
    log.flush()
    run.refresh()
    state = run.state()
    assert state["above"] == {**above, "pushes": 2, "adopted": 1, "version": 40}
    assert state["summary"]["version"] == 3 and state["versions"]["version"] == [1, 2, 3]
    assert state["summary"]["total"]["pushes"] == 2 and state["summary"]["total"]["samples"] == 16
    assert {e["kind"] for e in state["happenings"]["events"]} == {"join", "start"}


def test_a_folder_that_was_made_again_is_read_again(written, tmp_path):
    log, run = written()
    for t in range(100):
        log.event(float(t), "commit", version=t, merged=1)
    log.flush()
    run.refresh()
    assert run.state()["summary"]["version"] == 99
    (tmp_path / "events.jsonl").write_bytes(b'{"t":1.0,"kind":"commit","version":5,"merged":1}\n')
    run.refresh()
    assert run.state()["summary"]["version"] == 5


def test_the_noise_scale_is_a_curve_and_goodput_a_sentence(tmp_path):
    """Also before the run has a summary."""
    def noisy(log):
        for worker in range(2):
            log.event(0.0, "join", worker=worker, version=0, sgd=True)
        log.event(0.0, "start", workers=[0, 1])
        for version in range(1, 31):
            for worker in range(2):
                log.event(float(version), "accept", worker=worker, seq=version - 1,
                          base=version - 1, version=version - 1, steps=1, samples=8, seconds=0.5,
                          weight=0.5, norm2=2.0)
            log.event(float(version), "commit", version=version, merged=2, norm2=1.5)
            if version % 10 == 0:
                log.training(float(version), version, 1.0, 16, {0: Member(steps=version)}, {})

    log = ServerLog(tmp_path, "bsp", tensorboard=False)
    write_settings(tmp_path, {"sync": "bsp"})
    noisy(log)
    log.flush()
    spans = WorkerLog(tmp_path, 0, "bsp")
    spans.span("compute", "compute", 0.0, 15.0)
    spans.span("compute", "wait", 15.0, 30.0)
    spans.close()
    known = state_of(tmp_path)
    assert known["noise"] == {"t": [10.0, 20.0, 30.0], "steps": [10, 20, 30], "scale": 3 * [8.0]}
    assert known["summary"]["noise"]["batch"] == 8
    assert known["goodput"].startswith("goodput: this run used ")


def test_phases_are_in_the_order_of_their_numbers():
    from wbsp.figures.colors import PHASE_COLORS
    assert tuple(PHASE_COLORS) == PHASES


def test_a_real_run_is_followed_while_it_continues(jobs):
    """With a server that is killed and resumed in between."""
    server = jobs.server("--check_period=0.2", sync="asp").listens()
    workers = [jobs.integer_worker(server.address, i, steps=150, seconds=0.01) for i in range(2)]
    run = WatchedRun(server.folder, "it")
    seen = []

    def steps():
        run.refresh()
        state = run.state()
        seen.append(state["summary"]["total"]["steps"])
        return seen[-1]

    until(lambda: steps() > 50, "fifty steps")
    server.kill()
    again = jobs.server("--resume", "--check_period=0.2", sync="asp",
                        port=int(server.address.partition(":")[2])).listens()
    until(lambda: steps() and run.state()["ended"], "the end")
    assert [worker.ends() for worker in workers] == [0, 0]
    again.ends_well()
    run.refresh()
    state, summary = run.state(), from_json((server.folder / "summary.json").read_bytes())
    assert state["summary"] == summary and summary["total"]["steps"] == 300
    kinds = [event["kind"] for event in state["happenings"]["events"]]
    assert kinds.count("resume") == 1 and kinds.count("reattach") == 2
    mine = totals(run._events, run._spans, members(run._events))
    exact = ("steps", "samples", "pushes", "rejected", "compute_seconds", "speed", "vs_best")
    for worker, one in summary["workers"].items():
        assert {k: mine["workers"][worker][k] for k in exact} == {k: one[k] for k in exact}


@pytest.mark.parametrize("kind, worker", [("accept", -1 << 63), ("join", 1 << 63), ("join", 1e308)])
def test_an_impossible_number_in_a_file_is_reported_in_one_line(tmp_path, kind, worker):
    """A person has edited the log; the page and the report name that, without a traceback."""
    write_run(tmp_path / "run", "wbsp", ended=False)
    path = tmp_path / "run" / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    next(event for event in events if event["kind"] == kind)["worker"] = worker
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(ValueError, match="that no server wrote") as found:
        state_of(tmp_path / "run")
    assert str(found.value).isprintable()


def test_the_loss_of_text_is_shown_in_bits_a_byte(written):
    log, run = written()
    log.event(0.0, "start", workers=[0])
    log.evaluation(1.0, 0, 2.0, 0.5, 0.5, {}, {})
    log.evaluation(2.0, 1, 1.0, 0.5, 0.5, {}, {}, {"bits_per_byte": 1.44})
    run.refresh()
    assert run.state()["evaluations"]["bits_per_byte"] == [None, 1.44]
