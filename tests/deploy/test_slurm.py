"""deploy/slurm/wbsp.sbatch under a real Slurm of three nodes on this machine, if installed.

They take some minutes: `WBSP_SLURM=1 python -m pytest tests/deploy/test_slurm.py`.
"""

import os
import re
import signal

import pytest
import slurm
from docs_code import python_of
from jobs import ROOT, surroundings, until

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.reader import read_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    "WBSP_SLURM" not in os.environ, reason="takes some minutes: WBSP_SLURM=1")]

BATCH = str(ROOT / "deploy/slurm/wbsp.sbatch")
LAUNCHER = str(ROOT / "runcifar10gpu.py")
# A worker that starts in a moment, because it has no TensorFlow. Its first argument is most of its
# Plan, its second one that of a job that was requeued.
LIGHT = """
import json, os, sys
from integer_worker import Plan, main
from wbsp.environment import Task
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
address, index = Task.complete(None, None)
plan = json.loads(sys.argv[2 if "SLURM_RESTART_COUNT" in os.environ else 1])
sys.exit(main(Plan(address, index, os.getcwd(), token_file=os.environ["WBSP_TOKEN_FILE"], **plan)))
"""


@pytest.fixture(scope="module")
def cluster():
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.Slurm() as cluster:
        yield cluster


@pytest.fixture
def submit(cluster, tmp_path):
    """submit(words of sbatch, variables of its environment) -> Batch"""
    (tmp_path / "light.py").write_text(LIGHT)
    batches = []

    def submit(*words, **environment):
        batches.append(Batch(cluster, tmp_path, words, environment))
        return batches[-1]

    yield submit
    for batch in batches:
        batch.cancel()


class Batch:
    """A job of wbsp.sbatch and its files."""

    def __init__(self, cluster, folder, words, environment):
        self.cluster, self.folder = cluster, folder
        self.job = cluster.submit(*words, cwd=folder, **surroundings(), **environment)
        self.files = folder / f"runs/slurm-{self.job}"

    def text(self, step=None):
        """The output of a step, or of the batch script itself."""
        path = self.files / f"{step}.log" if step else self.folder / f"wbsp-{self.job}.out"
        return path.read_text() if path.exists() else ""

    def until(self, step, pattern, times=1):
        """Wait until that many lines of a step, or of the batch script, have the pattern."""
        until(lambda: len(re.findall(pattern, self.text(step))) >= times,
              f"{step} of job {self.job} in {self.folder} to say {pattern!r}")

    def kill(self, step):
        """kill -9 the processes of a step, by which it ends."""
        found = until(lambda: self.cluster.processes(self.job, step), f"a {step}", 20)
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def state(self):
        return self.cluster.state(self.job)

    def ends(self):
        """Wait for the job's end; return its state."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.state() in ended, f"the end of job {self.job} in {self.folder}")
        return self.state()

    def cancel(self):
        if self.state() not in ("COMPLETED", "FAILED", "CANCELLED"):
            self.cluster.ask("scancel", "--full", "--signal=KILL", self.job)
            self.cluster.ask("scancel", self.job)

    @property
    def run(self):
        (folder,) = self.files.glob("*/run-*")
        return folder

    def saved(self):
        return checkpoint.load(self.run / "checkpoint.safetensors").state


def test_a_users_own_script_runs_unchanged(submit, tmp_path):
    (tmp_path / "train.py").write_text(python_of("tutorial/your-model.md"))
    batch = submit(BATCH, "train.py")
    assert batch.ends() == "COMPLETED", batch.text()
    assert "no checkpoint found; starting a new run" in batch.text("ps")
    for index in range(2):
        assert "Epoch 5/5" in batch.text(f"worker-{index}")
    assert (tmp_path / "model.keras").exists()
    assert sum(batch.saved().steps.values()) == 1000
    assert (batch.files / "token").stat().st_mode & 0o077 == 0, "others can read the secret"


def test_the_published_experiment_runs_to_its_end(submit):
    batch = submit(
        BATCH, LAUNCHER, "--job_name=worker", "--log_root=runs/slurm-%j",
        WBSP_PS=f"{LAUNCHER} --job_name=ps --model=small --dataset=shapes10 --base_dir=pcc/ "
        "--epochs=3 --check_period=1 --heterogeneity=none")
    assert batch.ends() == "COMPLETED", batch.text()
    assert read_run(batch.run).summary["accuracy"] > 0.3, "ten classes: chance is 0.1"
    assert (batch.run / "model.keras").exists()
    assert all((batch.run / f"wk_loss_{index}_pcc.txt").exists() for index in range(2))


def test_killed_steps_of_a_job_are_restarted_alone(submit, cluster):
    batch = submit("--gres=gpu:1", BATCH, "light.py", '{"steps": 500, "seconds": 0.02}',
                   WBSP_PS="-m wbsp.ps --check_period=0.5")
    batch.until("worker-0", "step 50 done")
    batch.kill("worker-1")
    batch.until("worker-1", "starts with seq", times=2)
    (server,) = cluster.processes(batch.job, "ps")
    with open(f"/proc/{server}/environ") as variables:
        assert "CUDA_VISIBLE_DEVICES=" in variables.read().split("\0"), "it sees a GPU"
    batch.kill("ps")
    batch.until("ps", "resuming from version")
    assert batch.ends() == "COMPLETED", batch.text()
    again = [line.split()[2] for line in batch.text().splitlines() if "; restarting it" in line]
    assert again == ["worker-1", "ps"]
    assert batch.text("worker-0").count("starts with seq") == 1, "it lived through both"
    for index in range(2):
        assert "GPUs 0" in batch.text(f"worker-{index}")
    assert batch.saved().steps[0] == 500


def test_several_workers_of_a_node_share_it(submit):
    batch = submit("--ntasks-per-node=2", "--mem=400", "--gres=gpu:2", BATCH, "light.py",
                   '{"steps": 200, "seconds": 0.02}')
    assert batch.ends() == "COMPLETED", batch.text()
    gpus = [re.search("GPUs (.*)", batch.text(f"worker-{index}"))[1] for index in range(4)]
    assert sorted(gpus[:2]) == sorted(gpus[2:]) == ["0", "1"]
    assert batch.saved().steps == dict.fromkeys(range(4), 200)


def test_a_requeued_job_continues_where_it_was(submit, cluster):
    batch = submit(BATCH, "light.py", '{"seconds": 0.02}', '{"steps": 300}')
    batch.until("worker-0", "step 100 done")
    cluster.ask("scontrol", "requeue", batch.job)
    batch.until("ps", "resuming from version")
    assert batch.ends() == "COMPLETED", batch.text()
    assert batch.saved().steps[0] > 300, "steps of both times"
    assert len(list(batch.files.glob("*/run-*"))) == 1


def test_a_command_that_keeps_failing_fails_the_job(submit):
    batch = submit(BATCH, "light.py", "{}", WBSP_PS="-m wbsp.ps --sync_option=s=3")
    assert batch.ends() == "FAILED"
    assert "ps exited with 1 five times in a row" in batch.text()
    assert "pcc: unknown option 's'; known: commit" in batch.text(), "the server's own words"


def test_a_job_without_a_script_is_refused_in_one_line(submit):
    batch = submit(BATCH)
    assert batch.ends() == "FAILED"
    assert batch.text() == "wbsp.sbatch: give the workers' script: sbatch wbsp.sbatch train.py\n"


def test_a_node_that_is_cut_off_is_replaced_and_its_worker_refused(tmp_path):
    if reason := slurm.missing(apart=True):
        pytest.skip(reason)
    (tmp_path / "light.py").write_text(LIGHT)
    plans = ['{"seconds": 0.02, "patience": 100}', '{"steps": 500, "seconds": 0.02}']
    with slurm.Slurm(apart=True) as cluster:
        batch = Batch(cluster, tmp_path, [BATCH, "light.py", *plans],
                      {"WBSP_PS": "-m wbsp.ps --check_period=0.2"})
        batch.until("worker-1", "step 50 done")
        (lost,) = cluster.processes(batch.job, "worker-1")
        cluster.cut("n1")
        batch.until("ps", "worker 1 joined", times=2)
        assert "NodeList=n[0,2]" in cluster.ask("scontrol", "show", "job", batch.job)
        assert re.search("resuming from version [1-9]", batch.text("ps"))
        assert alive(lost), "it was ended before it could come back"
        cluster.mend("n1")
        until(lambda: not alive(lost), "the end of the worker that was replaced")
        assert re.search("worker 1.*refused|refused.*worker 1", batch.text("ps"))
        assert batch.ends() == "COMPLETED", batch.text()
        assert batch.text("worker-0").count("starts with seq") == 2, "the job was requeued"


def alive(pid):
    """False for a process that has ended, if its parent has noted that or not."""
    try:
        return " Z " not in open(f"/proc/{pid}/stat").read()
    except FileNotFoundError:
        return False
