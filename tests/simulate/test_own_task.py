"""`--task`: a file of four functions as the network of simulate and advise."""

import json
import re

import pytest
from finished import simulate

from wbsp.runlog.reader import read_run

LINEAR = """
import numpy as np

rng = np.random.default_rng(7)
x = rng.normal(size=(512, 10)).astype(np.float32)
y = x @ np.arange(10, dtype=np.float32) / 10 + rng.normal(size=512, scale=0.1)


def make(seed):
    return np.random.default_rng(seed).normal(size=10), 400


def make_state():
    return 0


def step(values, state, indices, rate):
    off = x[indices] @ values - y[indices]
    return values - rate * x[indices].T @ off / len(off), state + 1, (off ** 2).mean()


def evaluate(values):
    return {"loss": ((x[400:] @ values - y[400:]) ** 2).mean(), "steepness": values.max()}
"""
NORMED = """
import numpy as np


def make(seed):
    return {"w": np.zeros(3), "norm": {"running_var": np.ones(3)}}, 64


def make_state():
    return None


def step(values, state, indices, rate):
    values["norm"]["running_var"] += 0.1 * (0.01 - values["norm"]["running_var"])
    values["w"] -= rate
    return values, state, 1.0


def evaluate(values):
    return {"loss": 1.0, "least": values["norm"]["running_var"].min()}
"""
THREE = "[[workers]]\nspeed = 1\n[[workers]]\nspeed = 0.6\n[[workers]]\nspeed = 0.3\n"
TASK = "--task=linear.py", "--batch_size=16", "--lr=0.02"


@pytest.fixture
def here(tmp_path):
    (tmp_path / "linear.py").write_text(LINEAR)
    (tmp_path / "three.toml").write_text(THREE)
    return tmp_path


def test_a_task_trains_to_a_loss_and_repeats(here):
    flags = (*TASK, "--cluster=three.toml", "--step_seconds=4ms+1ms", "--sync=bsp,pcc",
             "--target=loss:0.05", "--epochs=50", "--check_period=0.1s", "--nofigures")
    first, second = (simulate(here, *flags, f"--out={name}") for name in "ab")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and "seconds to loss 0.05" in first.stdout
    run = read_run(here / "a/bsp/run-001")
    assert run.settings["task"] == "linear.py" and run.settings["step_seconds"] == "4ms+1ms"
    assert run.settings["model_bytes"] == 40
    assert run.time_to("loss:0.05") is not None
    assert run.events == read_run(here / "b/bsp/run-001").events
    evaluations = [one for one in run.events if one["kind"] == "evaluation"]
    assert {"loss", "steepness"} <= evaluations[0]["metrics"].keys()
    assert evaluations[0]["loss"] > 1 > evaluations[-1]["loss"]
    steps = [one["seconds"] / one["steps"] for one in run.events if one["kind"] == "accept"]
    assert (min(steps), max(steps)) == pytest.approx((0.02, 0.02 / 0.3))


def test_a_version_of_auto_has_no_negative_variance(here):
    (here / "normed.py").write_text(NORMED)
    done = simulate(here, "--task=normed.py", "--batch_size=4", "--lr=0.1", "--sync=auto",
                    "--workers=4", "--step_seconds=4ms+1ms", "--epochs=20", "--check_period=0.1s",
                    "--out=runs", "--nofigures")
    assert done.returncode == 0, done.stderr
    events = read_run(here / "runs/auto/run-001").events
    least = [one["metrics"]["least"] for one in events if one["kind"] == "evaluation"]
    assert len(least) > 5 and min(least) >= 0.01 and least[-1] < 0.02


@pytest.mark.parametrize(("flags", "words"), [
    (("--lr=1e3",), "the fastest machine alone does not improve its first values: loss "),
    (("--target=loss:1e9",), "the first values have loss 1e+09, untrained: give a target that ta")])
def test_a_training_without_a_target_prints_one_line(here, flags, words):
    done = simulate(here, "--advise=three.toml", *TASK, *flags, "--sync=auto", "--max_steps=60",
                    "--step_seconds=4ms+1ms", "--nofigures")
    assert done.returncode == 1 and words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_an_advice_measures_the_step_and_chooses_length_and_target(here):
    done = simulate(here, "--advise=three.toml", *TASK, "--sync=pcc,bsp", "--nofigures")
    assert done.returncode == 0, done.stderr
    law = re.search(r"--step_seconds=([\d.e-]+ms\+[\d.e-]+ms): a step of linear.py", done.stderr)[1]
    target = re.search(r"--target=(loss:[\d.e-]+) \(none is given\)", done.stderr)[1]
    assert re.search(r"--max_steps=\d+ \(no end is given\)", done.stderr)
    assert re.match("it (may pay|pays|does not pay): ", done.stdout)
    assert "learning rate 0.0" in done.stdout
    settings = json.loads((here / "runs/simulate/pcc/run-001/run.json").read_text())
    assert (settings["step_seconds"], settings["target"]) == (law, target)


def test_a_recorded_run_may_train_a_task_on_its_machines(here):
    made = simulate(here, "--model=timing", "--cluster=three.toml", "--step_seconds=10ms+1ms",
                    "--batch_size=16", "--until=5s", "--sync=pcc", "--out=o", "--nofigures")
    assert made.returncode == 0, made.stderr
    done = simulate(here, "--from=o/pcc/run-001", "--task=linear.py", "--lr=0.02", "--sync=pcc",
                    "--max_steps=300", "--nofigures")
    assert done.returncode == 0, done.stderr
    assert "it does not pay" in done.stdout and "--step_seconds" not in done.stderr
    settings = read_run(here / "runs/simulate/alone/run-001").settings
    assert (settings["batch_size"], settings["task"]) == (16, "linear.py")


@pytest.mark.parametrize(("flags", "words"), [
    (("--lr=0.1", "--epochs=1"), "--batch_size: how many examples has a step of linear.py? give"),
    (("--batch_size=16", "--epochs=1"), "--lr: at which learning rate does linear.py train? give"),
    (("--lr=0.1", "--batch_size=16"), "--task=linear.py needs an end: give --epochs, --max_steps"),
    (("--lr=0.1", "--batch_size=500", "--epochs=1"), "--batch_size=500: make of linear.py says"),
    (("--model=small",), "--task=linear.py and --model=small both say what is trained; give one"),
    (("--optimizer=adam",), "--optimizer=adam has no effect on a task, which has its own data, op"),
    (("--lr=0.1", "--batch_size=16", "--epochs=1", "--target=speed:3", "--sync=bsp"),
     "no evaluation reports 'speed'; reported: loss, steepness"),
])
def test_bad_flags_of_a_task_are_refused_in_one_line(here, flags, words):
    bad = simulate(here, "--task=linear.py", *flags, "--nofigures")
    lines = [one for one in bad.stderr.splitlines() if not one.startswith("--step_seconds=")]
    assert bad.returncode == 1 and not bad.stdout
    assert len(lines) == 1 and words in lines[0]
