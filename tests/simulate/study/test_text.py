"""A language model in virtual time: by the name of the command's flags, to a loss."""

import math

import pytest
from finished import simulate

from data import stdlib
from wbsp.core.goal import Goal
from wbsp.runlog.reader import read_run

SMALL = ("--model=gpt:width=16:layers=1:heads=2:context=16", "--step_seconds=10ms",
         "--test_images=50", "--nofigures", "--out=o")


def test_a_language_model_trains_to_a_loss(tmp_path):
    done = simulate(tmp_path, *SMALL, "--sync=asp,auto", "--target=loss:3.8", "--max_steps=400",
                    "--check_period=0.05s", "--optimizer=adamw:beta1=0:warmup=0.1", "--lr=0.01")
    assert done.returncode == 0, done.stderr
    head = done.stdout.splitlines()[0]
    assert "| seconds to loss 3.8 |" in head and "| best loss | bits a byte |" in head
    for sync in ("asp", "auto"):
        run = read_run(tmp_path / f"o/{sync}/run-001")
        assert run.settings["text"] == stdlib.text().name
        assert run.settings["dataset"] == "stdlib" and run.settings["batch_size"] == 8
        assert run.settings["optimizer"] == "adamw:beta1=0:warmup=0.1"
        assert run.summary["reason"].startswith("loss 3.")
        losses = run.evaluations.loss
        assert losses[0] == pytest.approx(math.log(256), abs=0.05), "W_0 knows nothing"
        assert losses[-1] <= 3.8 < losses[-3]
        bits = run.metric(Goal("bits_per_byte", False))
        assert bits == pytest.approx(losses / math.log(2))
        assert run.time_to("loss:3.8") == run.time_to("bits_per_byte:5.48224") > 0
        assert run.time_to(0.99) is None


def test_equal_runs_give_equal_files(tmp_path):
    flags = (*SMALL, "--sync=pcc", "--max_steps=20", "--check_period=0.05s", "--jitter=0.1")
    for out in ("a", "b"):
        done = simulate(tmp_path, *flags, f"--out={out}")
        assert done.returncode == 0, done.stderr
    assert "| best loss |" in done.stdout.splitlines()[0], "a text has no target of accuracy"
    first, second = ((tmp_path / out / "pcc/run-001/events.jsonl").read_bytes()
                     for out in ("a", "b"))
    assert first == second


def test_workers_may_share_the_text(tmp_path):
    done = simulate(tmp_path, *SMALL, "--sync=lbbsp", "--workers=2", "--heterogeneity=none",
                    "--max_steps=20", "--check_period=1s")
    assert done.returncode == 0, done.stderr
    assert read_run(tmp_path / "o/lbbsp/run-001").summary["total"]["samples"] >= 160


@pytest.mark.parametrize("flags, words", [
    (["--target=loss:2", "--target_accuracy=0.5"], "--target=loss:2 and --target_accuracy=0.5"),
    (["--target=loss"], "--target=loss: write METRIC:VALUE"),
    (["--target=perplexity:4", "--max_steps=9"], "no evaluation reports 'perplexity'; reported: "
                                                 "accuracy, bits_per_byte, loss, top5"),
    (["--optimizer=sgd", "--max_steps=9"], "--optimizer=sgd: gpt"),
    (["--optimizer=lion", "--max_steps=9"], "--optimizer=lion: choose sgd, nesterov, adam, or"),
    (["--lr_decays=9:0.1", "--max_steps=9"], "--lr_decays=9:0.1 has no effect on adamw"),
    (["--until=5s"], "the rate of adamw follows the run's examples, and --until does not say"),
    (["--dataset=cifar10"], "reads bytes, not cifar10: its data set is stdlib"),
    (["--data_dir=."], "has no effect on --dataset=stdlib, which comes with Python"),
    (["--test_images=999999999"], "--test_images=999999999: the validation split of stdlib has"),
    (["--model=gpt:depth=3"], "'depth=3' is no option of gpt"),
    (["--model=gpt:width=32", "--step_seconds="], "--step_seconds: '' is not a"),
    (["--model=cnn", "--dataset=stdlib"], "stdlib is text, which model 'cnn' does not read")])
def test_bad_input_is_refused_in_one_line(tmp_path, flags, words):
    done = simulate(tmp_path, *SMALL, "--sync=asp", *flags)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
