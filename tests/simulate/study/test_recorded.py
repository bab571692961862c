"""What a recorded run shows about its machines, and what is predicted from it."""

import json
import re

import pytest
from finished import finished, simulate

from wbsp.runlog.folder import read_settings
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.recorded import predicted, recorded
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.runs import simulate as run_plan
from wbsp.simulate.study.screen import screen
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.variants import variants
from wbsp.sync import MODELS

LINE = {"up": 1e6, "down": 2e6}
CLUSTER = ClusterSpec((Group(step_seconds=0.1, jitter=0.1, **LINE),
                       Group(step_seconds=0.25, jitter=0.1, **LINE)), model_bytes=1e4)


def made(folder, sync="pcc", losses=(), noise=None, **plan):
    """A run of CLUSTER with these losses of its steps: (seconds, steps, loss)."""
    folder.mkdir()
    run_plan(Plan(CLUSTER, None, 16, until=30.0, **plan), MODELS[sync], {}, 0, folder, Progress())
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    lines += [{"t": t, "kind": "training", "version": 1, "steps": steps, "loss": loss,
               "samples": 16 * steps} for t, steps, loss in losses]
    (folder / "events.jsonl").write_text("".join(
        json.dumps(line) + "\n" for line in sorted(lines, key=lambda one: one["t"])))
    if noise is not None:
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "noise": {"scale": noise}}))
    return folder


def test_a_run_shows_its_machines_and_its_batch(tmp_path):
    found = recorded(made(tmp_path / "run"))
    assert (found.batch, found.cluster.model_bytes) == (16, 1e4)
    quick, slow = found.cluster.groups
    assert quick.mini_batch == pytest.approx(0.1, rel=0.05)
    assert slow.mini_batch == pytest.approx(0.25, rel=0.05)
    assert quick.up == pytest.approx(1e6, rel=0.05) and quick.down == pytest.approx(2e6, rel=0.05)
    assert found.cluster.trains(8).groups[0].mini_batch == pytest.approx(0.05, rel=0.05)


def test_batches_of_several_sizes_reveal_the_fixed_part_of_a_step(tmp_path):
    folder = made(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for number, event in enumerate(lines):
        if event["kind"] == "accept":
            size = (8, 16, 32)[number % 3]
            event |= {"steps": 1, "samples": size, "seconds": 0.02 + 0.001 * size}
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = recorded(folder)
    for group in found.cluster.groups:
        assert group.fixed_seconds == pytest.approx(0.02)
        assert group.example_seconds == pytest.approx(0.001)
    assert not any("follows its batch" in one for one in found.unknown)


def test_a_model_is_predicted_as_the_run_was(tmp_path):
    losses = [(10, 130, 2.0), (20, 265, 1.5), (28, 375, 1.2)]
    found = recorded(made(tmp_path / "run", losses=losses))
    assert found.reached(None) == (28, 375, 1.2) and found.reached(1.6) == (20, 265, 1.5)
    [pcc, bsp] = variants(["pcc", "bsp"], [])
    plan = Plan(found.cluster, None, found.batch)
    text = predicted(found, [(pcc, plan), (bsp, plan)], 0, None)
    rows = dict(re.findall(r"^\| ([a-z ]+?) +\| ([\d.]+) +\|", text, re.MULTILINE))
    assert float(rows["pcc"]) == pytest.approx(28, rel=0.1), text
    assert float(rows["bsp"]) == pytest.approx(375 / screen(bsp, plan, 0).rate, rel=0.01)
    assert float(rows["the fastest machine alone"]) == pytest.approx(37.5, rel=0.05)
    assert "at most" in text and "nothing was trained" in text
    with pytest.raises(ValueError, match="came to training loss 1.2 only; give a higher loss"):
        predicted(found, [(pcc, plan)], 0, 1.0)


def test_by_a_little_noise_a_mean_of_two_batches_is_worth_less_than_two(tmp_path):
    noisy, quiet = (recorded(made(tmp_path / name, "bsp", [(28, 220, 1.2)], noise))
                    for name, noise in (("noisy", 1e6), ("quiet", 0.016)))
    [bsp] = variants(["bsp"], [])

    def alone(found):
        text = predicted(found, [(bsp, Plan(found.cluster, None, 16))], 0, None)
        assert "of which count" in text and "at most" not in text
        return float(re.search(r"alone +\| ([\d.]+)", text)[1])
    assert alone(noisy) == pytest.approx(22, rel=0.05)
    assert alone(quiet) == pytest.approx(11, rel=0.05), "half of the mini-batches would do"


def test_missing_facts_of_a_run_are_listed(tmp_path):
    folder = made(tmp_path / "run")
    for path in folder.glob("events_wk*"):
        path.unlink()
    settings = {**read_settings(folder), "model_bytes": None}
    (folder / "run.json").write_text(json.dumps(settings))
    said = "\n".join(recorded(folder).unknown)
    for words in ("the bytes of its model", "smaller ones are taken to need less time in",
                  "the transfers of worker 0, 1: no timeline", "the noise of the gradients",
                  "its loss: it has neither", "what staleness costs"):
        assert words in said


def test_the_command_advises_by_a_run_without_a_cluster(tmp_path):
    made(tmp_path / "run", losses=[(28, 375, 1.2)])
    done = finished(tmp_path, "-m", "wbsp", "advise", "--from=run", "--sync=pcc,bsp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("predicted from a run of 2 workers, 375 steps of 16 examples")
    for flags, words in (
            (("--from=nowhere",), "nowhere"),
            (("--from=run", "--cluster=wan"), "--from=run and wan both describe the cluster"),
            (("--from=run", "--workers=3"), "--workers and run both describe the cluster")):
        bad = simulate(tmp_path, *flags)
        assert bad.returncode == 1 and words in bad.stderr and bad.stderr.count("\n") == 1


def test_a_run_without_steps_is_refused(tmp_path):
    folder = made(tmp_path / "run")
    (folder / "events.jsonl").write_text("")
    with pytest.raises(ValueError, match="no step was accepted in this run"):
        recorded(folder)
