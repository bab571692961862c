"""Runs on real Ray clusters of several nodes, whose workers, servers and nodes are killed.

All but the first take minutes: `WBSP_RAY=1 python -m pytest tests/ray`. Of a worker that dies under
bsp the result must differ: the round continues without it, and weighs the others' pushes more.
"""

import json
import os
import re
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from conservation import IntegerRun, assert_conserved, steps_of
from docs_code import python_of
from jobs import ROOT, free_port, until
from ray_cluster import NotUpError, RayCluster

from wbsp.ps.checkpoint import format as checkpoint

pytestmark = pytest.mark.skipif(find_spec("ray") is None,
                                reason="these tests need Ray: pip install 'ray[default]'")
DRIVER = ROOT / "tests/helpers/ray_driver.py"
GPU = {"CPU": 0.2, "GPU": 1}  # what a worker needs: there is one on a node
# Ray's heartbeats may be too slow for it: then it sees only that the node's processes are gone.
NODE_DIED = "its (node|process) has died"


def long(test):
    """Mark a test that runs where it is asked for only."""
    asked = pytest.mark.skipif("WBSP_RAY" not in os.environ, reason="takes minutes: WBSP_RAY=1")
    return pytest.mark.slow(pytest.mark.timeout(900)(asked(test)))


@pytest.fixture(scope="module")
def machine():
    """A cluster of a single node, with room for two workers."""
    with RayCluster(gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster():
    """A head, on which the server runs, and two nodes, each for a worker."""
    with RayCluster(nodes=2) as cluster:
        yield cluster


class Run:
    """A driver and its run, of integer workers, which stop at three quarters of their steps until
    `go`."""

    def __init__(self, jobs, cluster, *, workers=(GPU, GPU), sync="pcc", die=None, name="it",
                 flags=("--check_period=0.3",), server=None, steps=200, seconds=0.02, **options):
        self.jobs, self.steps = jobs, steps
        self.number = len(workers)
        plan = {"address": cluster.address, "die": die or {},
                "worker": {"record": str(jobs.folder), "steps": steps, "seconds": seconds,
                           "hold_at": 3 * steps // 4},
                "run": {"workers": list(workers), "sync": sync, "storage": str(jobs.folder),
                        "name": name, "flags": list(flags), "server": server or {"CPU": 0.2},
                        **options}}
        self.files = jobs.folder / name
        self.driver = jobs.start("driver", DRIVER, json.dumps(plan))

    def path(self, pattern):
        return until(lambda: next(iter(self.files.glob(pattern)), None), f"{pattern} to be there")

    def trains(self, version=5):
        """Wait until a checkpoint has at least this version."""
        path = self.path("*/run-001/checkpoint.safetensors")
        until(lambda: checkpoint.load(path).state.version >= version, "a version")

    def server(self):
        """The server's own process."""
        return int(re.match(r"process (\d+) ", self.path("*/run-001/.server").read_text())[1])

    def kill_server(self):
        os.kill(self.server(), signal.SIGKILL)

    def pid(self, worker):
        return int(self.path(f"../pid-{worker}").read_text())

    def starts(self, worker, times):
        """Wait until a worker has joined for so many times."""
        until(lambda: len(self.driver.find(rf"worker {worker} .*starts with seq")) >= times,
              f"worker {worker} to start {times} times")

    def go(self):
        (self.jobs.folder / "go").touch()

    def ends(self, missing=(), told=False):
        """Continue to the result; all planned steps were made, once, by those that are not missing.

        `told`: a server was killed, and its log may lack what the workers were told
        """
        self.go()
        self.driver.ends_well()
        [line] = self.driver.find("^RESULT ")
        self.result = json.loads(line.removeprefix("RESULT "))
        assert sorted(self.result["missing"]) == sorted(map(str, missing))
        for worker, returned in enumerate(self.result["returned"]):
            assert returned is None if worker in missing else returned["worker"] == worker
        total = self.result["summary"]["total"]["steps"]
        self.saved = checkpoint.load(Path(self.result["folder"]) / "checkpoint.safetensors")
        assert total == sum(steps_of(self.saved.state).values())
        for worker in set(range(self.number)) - set(missing):
            assert self.saved.state.members[worker].steps == self.steps
        run = IntegerRun.of_processes(Path(self.result["folder"]), self.jobs.folder, told)
        assert set(run.finals) == set(range(self.number)) - set(missing)
        assert_conserved(run)
        return self.result


@pytest.mark.slow
def test_a_worker_that_dies_is_restarted(jobs):
    """On a single node, and in a few seconds; what it returned is that of its second life."""
    small = {"CPU": 0.2}
    try:
        cluster = RayCluster()
    except NotUpError as error:
        pytest.skip(str(error))
    with cluster:
        run = Run(jobs, cluster, workers=[small, small], die={"1": 20}, steps=40)
        run.starts(1, times=2)
        result = run.ends()
    assert result["returned"][1]["pid"] == run.pid(1) != result["returned"][0]["pid"]
    assert result["returned"][0]["gpus"] == "", "it asked for none"
    assert run.driver.find("worker 1: its process has died; restarting it")


@long
def test_ray_restarts_a_killed_worker(jobs, machine):
    run = Run(jobs, machine, sync="wbsp")
    run.trains()
    os.kill(run.pid(0), signal.SIGKILL)
    run.starts(0, times=2)
    run.ends()
    assert run.driver.find("worker 0: its process has died; restarting it")


@long
def test_the_server_is_killed(jobs, machine):
    run = Run(jobs, machine)
    run.trains()
    before = run.pid(0), run.pid(1)
    run.kill_server()
    result = run.ends(told=True)
    assert run.driver.find("server: it was killed by signal 9; restarting it")
    assert tuple(one["pid"] for one in result["returned"]) == before, "workers live through it"
    assert "resuming from version" in (run.files / "server.log").read_text()


@long
def test_under_bsp_a_failure_of_the_server_changes_nothing(jobs, machine):
    finals = []
    for name in ("undisturbed", "disturbed"):
        for file in (*jobs.folder.glob("*-[01]*"), *jobs.folder.glob("go")):
            file.unlink()
        run = Run(jobs, machine, sync="bsp", name=name)
        if name == "disturbed":
            run.trains()
            run.kill_server()
        run.ends(told=name == "disturbed")
        # which of the two workers brings W_0 is a matter of who joins first
        finals.append((run.saved.vector - run.saved.vector[0]).tolist())
    assert finals[0] == finals[1]
    assert run.driver.find("server: it was killed by signal 9")


@long
def test_the_node_of_a_worker_dies_and_another_takes_its_place(jobs, cluster):
    run = Run(jobs, cluster)
    run.trains()
    cluster.kill(cluster.node_of(run.pid(1)))
    cluster.add()
    run.starts(1, times=2)
    run.ends()
    assert run.driver.find(f"worker 1: {NODE_DIED}; restarting it")


@long
def test_without_room_for_it_a_lost_worker_is_missing_and_the_others_end_well(jobs, cluster):
    run = Run(jobs, cluster)
    run.trains()
    cluster.kill(cluster.node_of(run.pid(1)))
    try:
        result = run.ends(missing=[1])
    finally:
        cluster.add()
    assert re.match(NODE_DIED, result["missing"]["1"])
    assert run.driver.find(f"missing at the end: worker 1 .{NODE_DIED}")


@long
def test_the_node_of_the_server_dies(jobs, cluster):
    """It is started again on another node, which sees the same storage; all nodes of this cluster
    have one address."""
    cluster.add()
    run = Run(jobs, cluster, server={"GPU": 0.6}, workers=({"CPU": 0.2, "GPU": 0.7}, GPU))
    run.trains()
    cluster.kill(cluster.node_of(run.server()))
    cluster.add()
    run.ends(told=True)
    assert run.driver.find(f"server: {NODE_DIED}; restarting it")


@long
def test_a_standby_takes_over(jobs, machine):
    run = Run(jobs, machine, standby=True, flags=["--check_period=3600"])
    run.trains(0)
    log = run.path("standby.log")
    until(lambda: "holding version" in log.read_text(), "a version that the standby holds")
    run.kill_server()
    result = run.ends(told=True)
    assert "standby" in result["folder"] and result["summary"]["failures"]["took_over"] == 1


@long
def test_a_cluster_without_room_ends_in_a_line(jobs, machine):
    began = time.monotonic()
    run = Run(jobs, machine, workers=[GPU] * 9, placement_timeout=3)
    assert run.driver.ends() == 1
    assert time.monotonic() - began < 60
    run.driver.was_clean()
    [line] = run.driver.find("^driver: ")
    assert re.search("no room on the cluster within 3 s .*asked for 1 x server of CPU 0.2, "
                     "9 x worker of CPU 0.2, GPU 1; it has CPU .*, GPU 2 on 1 node, ", line)


@long
def test_a_server_that_cannot_begin_ends_with_the_reason(jobs, machine):
    run = Run(jobs, machine, flags=["--sync_option=s=3"])
    assert run.driver.ends() == 1
    run.driver.was_clean()
    [line] = run.driver.find("^driver: ")
    assert "the server: wbsp.ps: pcc: unknown option 's'; known: commit" in line


@long
def test_an_error_of_train_is_raised_by_run(jobs, machine):
    run = Run(jobs, machine, seconds="a while")
    assert run.driver.ends() == 1
    assert run.driver.find("TypeError: 'str' object cannot be interpreted as an integer")
    assert "stopped: interrupted by SIGTERM" in (run.files / "server.log").read_text(), "in order"


@long
def test_a_users_own_script_runs_unchanged(jobs, machine):
    (jobs.folder / "train.py").write_text(python_of("tutorial/your-model.md"))
    driver = jobs.start("driver", "-m", "wbsp.ray", "--workers=2", "--resources=GPU=1",
                        f"--storage={jobs.folder}", "--name=it", "train.py",
                        RAY_ADDRESS=machine.address)
    driver.ends_well()
    assert len(driver.find("Epoch 5/5")) == 2
    assert driver.find("all 5 epochs are trained; the files are in .*/it/pcc/run-001")
    saved = checkpoint.load(jobs.folder / "it/pcc/run-001/checkpoint.safetensors")
    assert sum(steps_of(saved.state).values()) == 1000


@long
def test_the_example_runs_as_a_job(jobs):
    port = free_port()
    for folder in ("examples", "wbsp"):
        shutil.copytree(ROOT / folder, jobs.folder / folder)
    with RayCluster(cpus=2, dashboard=port):
        job = jobs.run("job", "ray", "job", "submit", "--address", f"http://127.0.0.1:{port}",
                       "--working-dir", ".", "--", "python", "examples/train_on_ray.py",
                       "--workers=2", "--cpus=0.3", f"--storage={jobs.folder}")
        assert job.ends() == 0, job.text
    assert len(job.find("worker [01]: .*%")) == 2
    assert job.find("1,000 steps in all; the files are in")


FITS = """
import dataclasses, json, sys
import ray
import wbsp.ray

def train():
    import keras
    import numpy as np
    import wbsp
    x = np.random.default_rng(0).normal(size=(160, 4)).astype("float32")
    hook = wbsp.SyncCallback()
    data = hook.examples(lambda i: (x[i], x[i, :1]), n=160, batch_size=16)
    for epochs in (1, 3):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(data, epochs=epochs, steps_per_epoch=hook.UNTIL_TOLD, verbose=0,
                  validation_data=(x, x[:, :1]), callbacks=[hook])
    return [value.tolist() for value in model.get_weights()]

ray.init(address=sys.argv[1])
result = wbsp.ray.run(train, workers=[{"CPU": 0.2}] * 2, flags=["--best=loss"],
                      storage=sys.argv[2], name="fits", server={"CPU": 0.2})
print("RESULT", json.dumps(dataclasses.asdict(result)), flush=True)
"""


@long
def test_each_fit_has_a_folder_and_the_last_has_a_best_version(jobs, machine):
    (jobs.folder / "fits.py").write_text(FITS)
    driver = jobs.start("driver", "fits.py", machine.address, jobs.folder)
    driver.ends_well(300)
    result = json.loads(driver.find("^RESULT ")[0].removeprefix("RESULT "))
    assert [Path(folder).name for folder in result["folders"]] == ["run-001", "run-002"]
    assert result["folder"] == result["folders"][1]
    final = checkpoint.load(Path(result["folder"]) / "checkpoint.safetensors")
    assert result["returned"][0] == result["returned"][1]
    kernel, bias = result["returned"][0]
    assert [*(x for row in kernel for x in row), *bias] == pytest.approx(final.vector.tolist())
    best = checkpoint.load(Path(result["best"]))
    score = json.loads((Path(result["folder"]) / "best.json").read_text())
    assert score["metric"] == "loss" and best.state.version == score["version"]
