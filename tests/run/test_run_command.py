"""`wbsp run` with real processes: a server and workers that are killed or interrupted."""

import json
import os
import signal
import time

import psutil
import pytest
from jobs import ROOT, free_port, until

# A worker that counts in whole numbers (`integer_worker.py`), and leaves its task and the ids of
# its process and of a child. STEPS of SECONDS; `dies` in the folder: a signal for worker 1.
WORKER = """
import json, os, signal, subprocess, sys
from pathlib import Path
from integer_worker import Plan, main
from wbsp.environment import Task

task = Task.complete(None, None)
child = subprocess.Popen(["sleep", "600"])
Path(f"started-{task.worker}-{os.getpid()}.json").write_text(json.dumps(
    [os.getpid(), child.pid, os.getppid(), sys.argv, sys.path[0], dict(os.environ)]))
Path("dies").exists() and task.worker == 1 and os.kill(os.getpid(), signal.SIGKILL)
steps, seconds = sys.argv[1:]
sys.exit(main(Plan(task.address, task.worker, ".", steps=int(steps), seconds=float(seconds),
                   token_file=os.environ.get("WBSP_TOKEN_FILE"), all_lives=True)))
"""


class Run:
    """`wbsp run` of WORKER, or of a script of one's own."""

    def __init__(self, jobs):
        self._jobs, self.folder = jobs, jobs.folder

    def start(self, *words, script=WORKER, workers=2, **environment):
        (self.folder / "train.py").write_text(script)
        flags = [] if workers is None else [f"--workers={workers}"]
        joins = any(str(word).startswith("--server=") for word in words)
        own = [] if joins else [f"--port_base={free_port()}", "--check_period=0.2"]
        self.job = self._jobs.start("run", "-m", "wbsp.run", *flags, *own, *words, **environment)
        return self.job

    def started(self, worker, times=1):
        """[pid, pid of a child, ...] of all processes of that worker, once it has had so many."""
        def found():
            files = sorted(self.folder.glob(f"started-{worker}-*.json"), key=os.path.getmtime)
            return len(files) >= times and all(file.stat().st_size for file in files) and files
        return [json.loads(file.read_text()) for file in until(found, f"worker {worker}")]

    def server(self):
        return next(one for one in psutil.Process(self.job.process.pid).children()
                    if "wbsp.ps" in one.cmdline())

    def processes(self):
        """Ids of all that it has started and of their children."""
        return [one.pid for one in psutil.Process(self.job.process.pid).children(recursive=True)]


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def none_lives(pids):
    until(lambda: not any(map(lives, pids)), "all processes to end", 30)


@pytest.fixture
def run(jobs):
    return Run(jobs)


def test_it_trains_and_ends_with_the_run(run):
    job = run.start("train.py", "20", "0.02", SLURM_PROCID="9", WBSP_WORKER_INDEX="7",
                    WBSP_SERVER="nowhere:1", TF_CONFIG="{", WBSP_WORKER_NUM="99")
    tasks = [run.started(worker)[0] for worker in (0, 1)]
    job.ends_well()
    assert job.find(r"^server   \| .* worker 1 left: finished")
    assert job.find(r"^worker 0 \| step 20 done") and job.find(r"^worker 1 \| step 20 done")
    assert job.lines[-1] == ("wbsp run: all workers finished; the files are in runs/pcc/run-001")
    none_lives(pid for task in tasks for pid in task[:2])  # a child that was left, too
    for task in tasks:
        assert task[3:5] == [["train.py", "20", "0.02"], str(run.folder)]


def test_a_killed_worker_is_restarted(run):
    job = run.start("train.py", "500", "0.02")  # on a busy machine the start takes long
    job.until(r"worker 1 \| step 20 done")
    os.kill(run.started(1)[0][0], signal.SIGKILL)
    job.until("wbsp run: worker 1 was killed by SIGKILL; restarting it")
    assert len(run.started(1, times=2)) == 2
    job.ends_well()
    assert "; worker 1 was restarted once; the files are in" in job.lines[-1]


def test_a_killed_server_resumes(run):
    job = run.start("train.py", "150", "0.02")
    job.until(r"worker 1 \| step 20 done")
    until(lambda: list(run.folder.glob("runs/pcc/run-001/checkpoint*")), "a checkpoint")
    run.server().kill()
    job.until("wbsp run: the server was killed by SIGKILL; restarting it with --resume")
    job.until(r"server   \| .* resuming from version")
    job.ends_well()
    assert job.lines[-1] == ("wbsp run: all workers finished; the server was restarted once; the "
                             "files are in runs/pcc/run-001")


def test_others_join_by_the_servers_address_and_get_free_indices(run):
    script = """
import time
import jax.numpy as jnp
import wbsp
with wbsp.Worker({"x": jnp.zeros(4)}, n=400, batch_size=4, epochs=2) as w:
    x = w.values
    for epoch in w.epochs():
        for indices in w.indices():
            time.sleep(0.01)
            x = w.step(0.0, {"x": x["x"] + 1})
    print("I am worker", w.worker)
"""
    first = run.start("--worker_num=3", "train.py", script=script, workers=1)
    address = first.until("the server is ").rpartition(" ")[2]
    second = run.start(f"--server={address}", "train.py", script=script)
    first.ends_well(), second.ends_well()
    assert {line.rpartition(" ")[2] for job in (first, second)
            for line in job.find("I am worker")} == {"0", "1", "2"}
    assert second.lines[-1] == "wbsp run: all workers have ended"


@pytest.mark.long
def test_the_tutorials_script_survives_a_killed_worker_and_a_killed_server(run):
    page = (ROOT / "docs/tutorial/first-training.md").read_text()
    script = page.partition("```python\n")[2].partition("```")[0]
    job = run.start("train.py", script=script, PAUSE="0.05")
    job.until(r"epoch 1 of 5 is trained")
    next(one for one in psutil.Process(job.process.pid).children()
         if one.environ().get("WBSP_WORKER_INDEX") == "1").kill()
    job.until(r"epoch 2 of 5 is trained")
    run.server().kill()
    job.ends_well()
    assert job.lines[-1] == (
        "wbsp run: all 5 epochs are trained; the server was restarted once; worker 1 was "
        "restarted once; the files are in runs/pcc/run-001")


def test_a_worker_that_dies_each_time_is_given_up_and_the_others_finish(run):
    (run.folder / "dies").touch()
    job = run.start("--max_restarts=1", "train.py", "10", "0.02")
    assert job.ends() == 128 + signal.SIGKILL
    assert job.find("worker 1 was killed by SIGKILL; giving it up by --max_restarts=1; the oth")
    assert job.find(r"^worker 0 \| step 10 done")


def test_a_worker_that_raises_leaves_and_its_code_is_returned(run):
    job = run.start("train.py", script="""
import os, sys
from integer_worker import Plan, main
from wbsp.environment import Task
task = Task.complete(None, None)
task.worker == 1 and sys.exit(7)
sys.exit(main(Plan(task.address, task.worker, ".", steps=10)))
""")
    assert job.ends() == 7
    assert job.find("wbsp run: worker 1 ended with exit code 7; the others continue")
    assert job.find("starting with 1 of 2 workers: no other will come")  # and not after a time
    assert job.find(r"^worker 0 \| step 10 done")
    assert "; worker 1 ended with exit code 7; the files are in" in job.lines[-1]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_in_good_order(run, signum):
    job = run.start("train.py", "100000", "0.02")
    job.until(r"worker 1 \| step 5 done")
    processes = run.processes()
    job.signal(signum)
    assert job.ends() == 128 + signum
    none_lives(processes)
    assert job.find("worker 1 left: interrupted") and job.find("stopped: interrupted by SIG")
    assert "Traceback" not in job.text


def test_a_second_signal_ends_all_at_once(run):
    deaf = "import signal, time\n" + "".join(
        f"signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in ("SIGINT", "SIGTERM")
    ) + "print('ready')\ntime.sleep(600)"
    job = run.start("train.py", script=deaf)
    job.until(r"worker 0 \| ready"), job.until(r"worker 1 \| ready")
    processes = run.processes()
    job.signal(signal.SIGINT)
    job.until("SIGINT: ending the run in good order; a second signal ends it at once")
    time.sleep(0.2)  # else it is taken for the first, which came by two ways
    job.signal(signal.SIGINT)
    assert job.ends() == 128 + signal.SIGINT
    none_lives(processes)


def test_no_process_survives_a_run_that_is_killed(run):
    job = run.start("train.py", "100000", "0.02")
    job.until(r"worker 1 \| step 5 done")
    run.started(0)
    processes = run.processes()
    assert len(processes) >= 6  # a server, two workers with a child each, and who ends them
    job.kill()
    none_lives(processes)


def test_a_worker_that_is_started_again_when_the_run_ends_does_not_wait_for_its_server(run):
    late = 'Path("late").exists() and task.worker == 1 and time.sleep(600)\nsteps, seconds ='
    job = run.start("train.py", "40", "0.05", script="import time\n" + WORKER.replace(
        "steps, seconds =", late))
    job.until(r"worker 1 \| step 5 done")
    (run.folder / "late").touch()
    os.kill(run.started(1)[0][0], signal.SIGKILL)
    assert job.ends() == 0
    assert job.find("worker 1 was started again too late: the run has ended without it")
    none_lives(pid for start in run.started(1, times=2) for pid in start[:1])


def test_a_script_that_joins_no_run_is_reported(run):
    (run.folder / "trains.py").write_text("import sys; print(sys.argv[1:])")
    job = run.start("-m", "trains", "a")
    assert job.ends() == 1
    assert job.find(r"worker 0 \| \['a'\]")
    assert job.find("no worker joined the run: does the script have a wbsp.SyncCallback or")


def test_a_script_that_trains_alone_is_reported_while_it_trains(run):
    (run.folder / "sitecustomize.py").write_text(
        "from wbsp import timeouts\ntimeouts.UNJOINED = 1.0\n")
    (run.folder / "alone.py").write_text("import time; time.sleep(6); print('done')")
    job = run.start("alone.py", PYTHONPATH=str(run.folder))
    assert job.ends() == 1
    [line] = job.find("no worker has joined the run within 1 s; a script without a wbsp.Sync")
    assert job.lines.index(line) < job.lines.index(job.find(r"worker 0 \| done")[0])


def test_a_server_that_refuses_its_flags_ends_the_command(run):
    job = run.start("--sync=nope", "train.py", "1", "0")
    assert job.ends() == 1
    assert job.find(r"server   \| wbsp.ps: .*nope")
    assert not list(run.folder.glob("started-*"))


def test_lines_are_whole_and_a_bar_is_readable(run):
    job = run.start("train.py", script="""
import sys, time
for percent in range(101):
    print(f"\\r{percent}%", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
print("out", end="")
""", workers=1)
    job.ends()
    said = [line for line in job.lines if line.startswith("worker 0 | ")]
    assert said[0] == "worker 0 | 0%" and "worker 0 | 100%" in said and "worker 0 | out" in said
    assert len(said) < 10


def test_each_visible_gpu_gets_a_worker(run):
    job = run.start("train.py", script="""
import os
print("GPU", os.environ["CUDA_VISIBLE_DEVICES"], os.environ["WBSP_WORKER_INDEX"])
""", workers=None, CUDA_VISIBLE_DEVICES="5,3")
    job.ends()
    assert job.find(r"^worker 0 \| GPU 5 0$") and job.find(r"^worker 1 \| GPU 3 1$")
    job = run.start("train.py", script="", workers=3, CUDA_VISIBLE_DEVICES="5,3")
    job.ends()
    assert job.find("3 workers share 2 GPUs, in turn: worker 0 has GPU 5, worker 1 has GPU 3, wor")


def test_the_servers_address_is_that_of_host_and_port(run):
    job = run.start("--host=*", f"--log_root={run.folder / 'elsewhere'}", "train.py", "5", "0.02",
                    WBSP_TOKEN_FILE=str(_token(run.folder)))
    address = run.started(0)[0][5]["WBSP_SERVER"]
    job.ends_well()
    assert address.startswith("localhost:")
    assert (run.folder / "elsewhere/pcc/run-001").exists()


def _token(folder):
    path = folder / "token"
    path.write_text("0123456789abcdef0123456789abcdef")
    path.chmod(0o600)
    return path
