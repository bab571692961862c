"""`runcifar10gpu.py` as people start it: real processes, real TensorFlow, a small model."""

import itertools
import json
import math
import signal

import forked
import psutil
import pytest
from conservation import steps_of
from finished import finished
from jobs import ROOT, ServerJob, free_port, interrupted, until

from data import stdlib
from wbsp.ps.checkpoint import format as checkpoint

LAUNCHER = ROOT / "runcifar10gpu.py"
SMALL = ["--model=small", "--dataset=shapes10", "--check_period=1", "--heterogeneity=none",
         "--test_images=200"]

EVALUATE = """
import sys
import keras
import data

class Refused:  # of what this process has imported, a model's file finds nothing
    def find_spec(name, path=None, target=None):
        assert name.partition(".")[0] != "wbsp", name

for name in [name for name in sys.modules if name.partition(".")[0] == "wbsp"]:
    del sys.modules[name]
sys.meta_path.insert(0, Refused)
assert not keras.saving.get_custom_objects()
model = keras.models.load_model(sys.argv[1])
print("accuracy", model.evaluate(data.test_dataset("shapes10", count=200), verbose=0,
                                 return_dict=True)["accuracy"])
"""


def ps(jobs, port, *flags, fork=forked.WBSP):
    server = jobs.start("ps", LAUNCHER, "--job_name=ps", f"--port_base={port}", *flags,
                        kind=ServerJob, fork=fork, CUDA_VISIBLE_DEVICES="")
    server.address, server.cwd = f"localhost:{port}", jobs.folder
    return server


def worker(jobs, port, index, *flags, gpu="", fork=forked.KERAS, **environment):
    return jobs.start(f"wk{index}", LAUNCHER, "--job_name=worker", f"--worker_index={index}",
                      f"--port_base={port}", *flags, fork=fork, CUDA_VISIBLE_DEVICES=gpu,
                      **environment)


def evaluator(server):
    """The server's own child, by whose death it must not end."""
    return next(child for child in psutil.Process(server.process.pid).children()
                if "spawn_main" in " ".join(child.cmdline()))


def columns(path):
    return [[float(word) for word in line.split(", ")] for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_run_from_its_start_to_the_model_it_leaves(jobs):
    port = free_port()
    workers = [worker(jobs, port, 0, "--base_dir=wbsp/", gpu="0", fork=""),
               worker(jobs, port, 1, "--BUFF_SIZE=1024", "--epsilon=0.3")]
    workers[0].until("worker 0: waiting for the server at localhost")
    server = ps(jobs, port, *SMALL, "--worker_num=2", "--base_dir=wbsp/", "--epochs=1",
                "--check_period=5", fork="")
    for job in (*workers, server):
        job.ends_well(200)
    for job in (workers[0], server):  # which import TensorFlow themselves
        assert not job.find("cuInit|cuda driver|InitializeLog"), "TensorFlow's, not for our users"

    warning = "warning: CUDA_VISIBLE_DEVICES=0, but TensorFlow finds no GPU; using the CPU"
    assert len(workers[0].find(warning)) == 1 and not workers[1].find(warning)
    for flag in ("BUFF_SIZE", "epsilon"):
        assert len(workers[1].find(f"--{flag} is kept for compatibility and has no effect")) == 1
    assert not workers[0].find("compatibility")
    for index, job in enumerate(workers):  # neither command names the model
        assert job.find(f"worker {index}: training small on shapes10 under wbsp")
        assert job.find(f"worker {index}: done \\(10,.* samples were trained\\)")

    folder = server.folder
    assert folder == jobs.folder / "runs/wbsp/run-001"
    left = {path.name for path in folder.iterdir()}
    assert left >= {
        "run.json", "events.jsonl", "ps_global_loss_wbsp.txt", "model.keras", "summary.json",
        "summary.txt", "checkpoint.safetensors",
        *(f"wk_{what}_{index}_wbsp.txt" for what in ("loss", "time") for index in range(2))}
    summary = json.loads((folder / "summary.json").read_text())
    settings = json.loads((folder / "run.json").read_text())
    assert (settings["sync"], settings["model"], settings["workers"]) == ("wbsp", "small", 2)
    assert summary["total"]["samples"] >= 10_000
    for index in range(2):
        one = summary["workers"][str(index)]
        assert one["steps"] > 10 and one["pulls"] > 1 and one["finished"], "it contributed"
        losses = columns(folder / f"wk_loss_{index}_wbsp.txt")
        times = columns(folder / f"wk_time_{index}_wbsp.txt")
        assert len(losses) == len(times) == one["steps"]
        assert {len(line) for line in losses} == {4} and {len(line) for line in times} == {10}
    assert {event["worker"] for event in server.events("accept")} == {0, 1}
    evaluations = columns(folder / "ps_global_loss_wbsp.txt")
    assert len(evaluations) >= 2 and {len(line) for line in evaluations} == {10}
    assert evaluations[-1][3] < evaluations[0][3], "the loss did not fall"
    assert summary["accuracy"] > 0.2, "ten classes: chance is 0.1"
    assert abs(1 - evaluations[-1][4] - summary["accuracy"]) < 1e-6

    script = jobs.folder / "evaluate.py"
    script.write_text(EVALUATE)
    plain = jobs.start("keras", script, folder / "model.keras", fork=forked.KERAS)
    plain.ends_well()
    assert abs(float(plain.find("^accuracy")[0].split()[1]) - summary["accuracy"]) < 1e-3


OWN = """
import keras

def network():  # which trains until its optimizer has counted 4 steps
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.05, 0.0])
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(),
                              keras.layers.Dense(10)])
    model.compile(keras.optimizers.SGD(rate),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_schedule_may_count_the_mean_workers_steps(jobs):
    """The slow worker has its rate from the steps of the fast one."""
    (jobs.folder / "own.py").write_text(OWN)
    port = free_port()
    server = ps(jobs, port, "--model=own:network", "--dataset=shapes10", "--base_dir=asp/",
                "--heterogeneity=none", "--worker_num=2", "--lr_steps=mean", "--epochs=100",
                "--check_period=0.1", "--test_images=100")
    slow = worker(jobs, port, 1, "--sleep_time=1", "--max_steps=7")
    fast = worker(jobs, port, 0, "--max_steps=20", "--sleep_time=0.1")
    for job in (slow, fast, server):
        job.ends_well()
    steps, known, trained = 0, {0: 0, 1: 0}, 0  # each step makes a version
    for event in server.events("accept"):
        steps += 1
        if known[event["worker"]] // 2 <= 3:  # when this step began
            trained = steps
        known[event["worker"]] = steps
    assert steps == 27 and trained < 20, "by their own steps, the slow one trained longer"
    losses = [(event["version"], event["loss"]) for event in server.events("evaluation")]
    after = [loss for version, loss in losses if version >= trained]
    assert len(set(after)) == 1 < len(after) and losses[0][1] != after[0]


BSP = [*SMALL, "--worker_num=1", "--base_dir=bsp/", "--epochs=50", "--optimizer=nesterov"]


@pytest.mark.slow
def test_refusal_max_steps_and_no_evaluator(jobs):
    port = free_port()
    server = ps(jobs, port, *BSP, "--lr_decays=6:0.1,8:0")
    stranger = worker(jobs, port, 0, "--model=cnn", "--base_dir=bsp/", fork="",
                      PYTHONPROFILEIMPORTTIME="1")
    assert stranger.ends() == 1
    stranger.was_clean()
    assert stranger.find(r"\| +numpy$") and not stranger.find(r"\| +(keras|tensorflow)$"), "at once"
    (line,) = stranger.find("refused")
    words = "model is 'cnn' on the worker and 'small' on the server; start both with the same value"
    assert words in line and server.find(f"refused: .*{words}")
    first = worker(jobs, port, 0, "--max_steps=12", "--batch_size=32")
    server.until("worker 0 joined")
    evaluator(server).kill()
    for job in (first, server):
        job.ends_well()
    assert first.find(r"worker 0: done \(max_steps reached\)")
    assert first.find("training small on shapes10 under bsp, by nesterov$")
    died = r"the evaluator process was killed by signal 9 \(Killed\)"
    assert len(server.find(f"no final accuracy, no model.keras: {died}")) == 1
    saved = checkpoint.load(server.folder / "checkpoint.safetensors").state
    assert steps_of(saved) == {0: 12} and saved.totals == (12, 12 * 32)
    moved = [event["norm2"] for event in server.events("accept")]
    assert [after / before for before, after in itertools.pairwise(moved[9:])] == pytest.approx(
        2 * [0.81], rel=1e-3), "at rate 0 only the momentum is left"
    assert len(columns(server.folder / "wk_loss_0_bsp.txt")) == 12


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_has_ended_is_resumed(jobs):
    port = free_port()
    server = ps(jobs, port, *BSP)
    first = worker(jobs, port, 0, "--max_steps=12", "--batch_size=32")
    for job in (first, server):
        job.ends_well()
    again = ps(jobs, port, *BSP, "--resume=run-001", "--lr=0.02")  # it has come to its end
    second = worker(jobs, port, 0, "--max_steps=20", "--batch_size=32")
    for job in (second, again):
        job.ends_well()
    assert again.find(r"settings differ from the original run: lr '', now '0.02'$")
    assert again.folder == server.folder and again.find("resuming from version 12")
    after = checkpoint.load(again.folder / "checkpoint.safetensors").state
    assert after.version == 20 and steps_of(after) == {0: 20}
    losses = columns(again.folder / "wk_loss_0_bsp.txt")
    assert len(losses) == 20, "the files continue"
    assert losses == sorted(losses), "and so does the time"
    assert len(again.events("commit")) == 20


@pytest.mark.slow
def test_an_interrupted_worker_leaves_and_an_interrupted_server_ends_the_run(jobs):
    port = free_port()
    server = ps(jobs, port, *SMALL, "--worker_num=2", "--base_dir=pcc/", "--published_files")
    workers = [worker(jobs, port, index, "--sleep_time=0.05", "--batch_size=16")
               for index in range(2)]
    losses = [server.folder / f"wk_loss_{index}_wbsp.txt" for index in range(2)]
    until(lambda: all(path.exists() and path.stat().st_size for path in losses), "first steps")
    assert columns(losses[0])[0][1:3] == [0, 1] and len(columns(losses[0])[0]) == 5
    assert workers[0].find("under pcc, and sleeping 0.05 s before each step")
    workers[1].signal(signal.SIGTERM)
    interrupted(workers[1], signal.SIGTERM)
    assert workers[1].find(r"worker 1: done \(interrupted by SIGTERM\)")
    server.until("worker 1 left: interrupted by SIGTERM")
    judge = evaluator(server)
    judge.suspend()  # an evaluation that takes for ever
    server.signal(signal.SIGINT)
    workers[0].ends_well()
    interrupted(server, signal.SIGINT)
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    summary = json.loads((server.folder / "summary.json").read_text())
    assert saved.state.version == summary["version"] > 0
    assert summary["reason"] == "interrupted by SIGINT"
    assert not judge.is_running(), "it outlived its server"


@pytest.mark.parametrize("runner, seconds, workers", [
    ("runcifar10gpu.py", "0.5", 2), ("runalexgpu.py", "0.5", 8), ("runimagenetgpu.py", "200", 8)])
def test_odd_workers_sleep_as_published_and_the_first_lines_report_it(
        jobs, runner, seconds, workers):
    server = jobs.start("ps", ROOT / runner, "--job_name=ps", f"--port_base={free_port()}",
                        "--model=small", "--dataset=shapes10", "--use_bn", kind=ServerJob,
                        fork=forked.WBSP)
    server.until(f"waiting for {workers} worker")
    assert server.lines[0] == "--use_bn is kept for compatibility and has no effect"
    assert any(line.startswith(f"workers 1, 3, 5, ... sleep {seconds} s before each step, as publi")
               for line in server.lines[:3])
    [run] = jobs.folder.glob("runs/*/run-001/run.json")
    assert json.loads(run.read_text())["workers"] == workers


@pytest.mark.parametrize("flags, says", [
    (["--base_dir=runs/mine"], "unknown synchronization model 'mine'; known: bsp, asp, ssp, wbsp"),
    (["--sync_option=refresh=push"], "wbsp: unknown option 'refresh'; known: commit, trigger"),
    (["--sync_option=commit=never"], "wbsp: option commit='never' is not one of slowest, every"),
    (["--lr_decays=9:0.1,3"], "--lr_decays: '9:0.1,3' is not a list of step:factor"),
    (["--token_file=absent"], "absent"),
    (["--host=0.0.0.0", "--token_file="], "refusing to listen on 0.0.0.0 without a token"),
    (["--dataset=shapes10", "--test_images=2001"],
     "--test_images=2001: the test set of shapes10 has 2000"),
    (["extra"], "unknown argument 'extra'; flags are written --name=value"),
    (["--optimizer=lion"], "--optimizer=lion: choose sgd, nesterov, adam, or adamw with its optio"),
    (["--optimizer=adamw", "--lr_decays=9:0.1"], "--lr_decays=9:0.1 has no effect on adamw"),
    (["--model=gpt", "--lr_steps=mean"], "--lr_steps=mean has no effect on adamw"),
    (["--target=loss"], "--target=loss: write METRIC:VALUE, such as accuracy:0.9"),
    (["--target=loss:2", "--target_accuracy=0.5"], "are both targets; give one"),
    (["--dataset=stdlib"], "stdlib is text, which model 'cnn' does not read: choose gpt"),
    (["--model=gpt:heads=3"], "a width of 64 does not divide into 3 heads"),
    (["--model=gpt", "--test_images=99999999"], "the test set of stdlib has "),
])
def test_a_bad_value_is_one_line_and_exit_code_1(jobs, flags, says):
    server = ps(jobs, free_port(), *flags)
    assert server.ends() == 1
    (line,) = server.lines
    assert line.startswith("runcifar10gpu: ") and says in line
    assert not (jobs.folder / "runs").exists(), "a run's folder, and no run"


@pytest.mark.parametrize("flags, says", [
    (["--sync=wsbp"], "bsp.*asp.*ssp.*wbsp.*pcc"), (["--worker_num=0"], "worker_num"),
    (["--epochs=-1"], "epochs"), (["--port_base=70000"], "port_base"),
    (["--sink=1"], "sink"), (["--check_period=often"], "check_period"),
    (["--lr=nan"], "lr=nan: it must be a number"), (["--seed=-1"], "seed=-1: .* range"),
    (["--target_accuracy=60"], "target_accuracy=60: .* range")])
def test_a_bad_flag_is_named_without_a_traceback(jobs, flags, says):
    server = ps(jobs, free_port(), *flags)
    assert server.ends() != 0
    server.was_clean()
    assert server.find(says)


def test_a_worker_of_another_text_is_refused_and_the_rate_follows_the_runs_examples(tmp_path):
    script = """
from types import SimpleNamespace
from data import stdlib
from launcher.datasets import look_of, network_of, train_size
from launcher.worker import schedule_of

run = {"dataset": "stdlib", "model": "gpt:context=32", "text": stdlib.text().name, "lr": "0.5",
       "optimizer": "adamw:warmup=0.5", "epochs": "2"}
assert look_of(run).context == 32
assert train_size(run) == stdlib.size(None, "train", look_of(run))
known = SimpleNamespace(run_examples=0)
rate = schedule_of(run, 100, known)
rates = []
for known.run_examples in (0, 50, 100, 150, 200, 210):
    rates.append(round(rate(), 2))
assert rates == [0.0, 0.25, 0.5, 0.26, 0.03, 0.03], rates
assert schedule_of(run | {"optimizer": "adam"}, 100, known) is None
assert schedule_of(run | {"optimizer": ""}, 100, known) is not None, "the usual one of gpt"
try:
    train_size(run | {"text": "Python 3.1, SHA-256 ab"})
except ValueError as error:
    print(error)
"""
    (tmp_path / "check.py").write_text(script)
    done = finished(tmp_path, "check.py", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the text here is that of Python 3.")
    assert "and the run's of Python 3.1, SHA-256 ab: start this process with" in done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_a_language_model_trains_to_a_loss(jobs):
    port = free_port()
    server = ps(jobs, port, "--model=gpt:width=32:layers=2:heads=2:context=32", "--worker_num=2",
                "--target=loss:3.2", "--epochs=1", "--test_images=200", "--check_period=1",
                "--heterogeneity=none", "--lr=0.01")
    workers = [worker(jobs, port, index) for index in range(2)]
    for job in (server, *workers):
        job.ends_well(200)
    assert server.find("stopped: target loss 3.2 reached")
    assert workers[0].find("training gpt:width=32:layers=2:heads=2:context=32 on stdlib under wbsp")
    settings = json.loads((server.folder / "run.json").read_text())
    assert settings["text"] == stdlib.text().name and settings["target"] == "loss:3.2"
    last = server.events("evaluation")[-1]
    assert last["metrics"]["bits_per_byte"] == pytest.approx(last["loss"] / math.log(2), rel=1e-4)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_of_no_epochs_ends_well(jobs):
    port = free_port()
    server = ps(jobs, port, *SMALL, "--worker_num=1", "--epochs=0")
    member = worker(jobs, port, 0)
    member.ends_well()
    server.ends_well()
    assert server.find("stopped: 0 samples were trained")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("flags, says", [
    (["--data_dir=absent"], "absent"), (["--model=lenet", "--dataset=shapes10"], "lenet")])
def test_a_file_that_the_evaluator_misses_is_one_line(jobs, flags, says):
    server = ps(jobs, free_port(), *flags)
    assert server.ends() == 1
    server.was_clean()
    assert len(server.find(f"stopping: .*{says}")) == 1


@pytest.mark.slow
def test_a_worker_that_waits_for_its_server_may_be_interrupted(jobs):
    lonely = worker(jobs, free_port(), 0)
    lonely.until("worker 0: waiting for the server at localhost")
    lonely.signal(signal.SIGINT)
    interrupted(lonely, signal.SIGINT)
    assert len(lonely.find("worker 0: interrupted while waiting for the server at localhost")) == 1


@pytest.mark.slow
def test_a_launchers_worker_refuses_a_plain_server(jobs):
    server = jobs.server().listens()
    stranger = worker(jobs, int(server.address.rpartition(":")[2]), 0)
    assert stranger.ends() == 1
    stranger.was_clean()
    (line,) = stranger.find("^runcifar10gpu: ")
    assert f"the server at {server.address} was started by `python -m wbsp.ps`" in line
    assert "start runcifar10gpu.py --job_name=ps instead" in line


@pytest.mark.slow
def test_a_worker_without_a_server_gives_up(jobs):
    lonely = worker(jobs, free_port(), 0, "--connect_timeout=1")
    assert lonely.ends() == 1
    lonely.was_clean()
    assert len(lonely.find("runcifar10gpu: no server answered at localhost:.* within 1 s")) == 1


@pytest.mark.parametrize("job, flags, says", [
    ("ps", ["--max_steps=60"], "--max_steps=60 has no effect on the server: give it to a worker; "
     "here --epochs and --until end a run"),
    ("ps", ["--sleep_time=1"], "--sleep_time=1.0 has no effect on the server: give it to a worker"),
    ("ps", ["--server=h:1"], "--server=h:1 has no effect on the server"),
    ("ps", ["--patience=9"], "--patience=9.0 has no effect on the server"),
    ("ps", ["--batch_size=64"], "--batch_size=64 has no effect on the server: give it to the "
     "workers, which each have their own under wbsp"),
    ("worker", ["--check_period=9"], "--check_period=9.0 has no effect on a worker: give it to the "
     "server"),
    ("worker", ["--until=9s"], "--until=9s has no effect on a worker"),
    ("worker", ["--resume"], "--resume=True has no effect on a worker"),
    ("worker", ["--wire=int8"], "--wire=int8 has no effect on a worker"),
    ("shard", ["--model=cnn"], "--model=cnn has no effect on a shard: give it to the server")])
def test_a_flag_that_has_no_effect_on_a_job_is_refused(jobs, job, flags, says):
    process = jobs.start(job, LAUNCHER, f"--job_name={job}", f"--port_base={free_port()}", *flags,
                         fork=forked.WBSP)
    assert process.ends() == 1
    (line,) = process.lines
    assert line.startswith(f"runcifar10gpu: {says}")


@pytest.mark.parametrize("job, flag", [("ps", "worker_index"), ("worker", "worker_num")])
def test_a_published_flag_without_effect_prints_a_line(jobs, job, flag):
    process = jobs.start(job, LAUNCHER, f"--job_name={job}", f"--port_base={free_port()}",
                         f"--{flag}=1", "--dataset=shapes10", "--connect_timeout=1",
                         fork=forked.WBSP)
    process.until(f"--{flag} has no effect on {'the server' if job == 'ps' else 'a worker'}$")


def test_every_flag_of_the_launcher_is_in_one_group_and_read_by_a_job():
    from launcher import flags

    grouped = [name for names in flags.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(set(grouped))
    assert not set(flags.OF_WORKERS) & set(flags.OF_SERVERS)
    assert {*flags.OF_WORKERS, *flags.OF_SERVERS, *flags.OF_SHARDS} <= set(grouped)
