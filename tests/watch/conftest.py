"""Runs in virtual time, to be watched."""

from pathlib import Path

import pytest

from wbsp.runlog.folder import write_settings
from wbsp.runlog.server import ServerLog
from wbsp.simulate.study.cluster_file import read_cluster
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.runs import Plan, simulate
from wbsp.simulate.study.spec import Group, published
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import MODELS
from wbsp.watch.run import WatchedRun

BAD_DAY = """
model_bytes = "600kB"
[server]
bandwidth = "1Gbit"
detect_seconds = "1s"
[[workers]]
count = 2
step_seconds = "100ms"
jitter = 0.2
latency = "1ms"
bandwidth = "1Gbit"
[[workers]]
step_seconds = "400ms"
[[workers]]
step_seconds = "100ms"
lose = "6s"
[[workers]]
step_seconds = "100ms"
join = "3s"
leave = "9s"
"""


@pytest.fixture(scope="session")
def bad_day(tmp_path_factory):
    """bad_day(sync) is the folder of a run in which a worker is lost, one comes late and leaves."""
    folder = tmp_path_factory.mktemp("bad_day")
    (folder / "cluster.toml").write_text(BAD_DAY)
    plan = Plan(read_cluster(folder / "cluster.toml"), None, 8, until=12.0)

    def run(sync: str) -> Path:
        if not (folder / sync).exists():
            (folder / sync).mkdir()
            simulate(plan, MODELS[sync], {}, 0, folder / sync, Progress())
        return folder / sync
    return run


@pytest.fixture(scope="session")
def forty(tmp_path_factory):
    """The folder of a run of forty workers."""
    folder = tmp_path_factory.mktemp("forty")
    like = Group(step_seconds=0.02, jitter=0.2, latency=1e-3, up=1.25e8, down=1.25e8)
    plan = Plan(published(40, "H1", like, ServerSpec(1.25e8, 1.25e8), 6e5), None, 8,
                stop_samples=40 * 8 * 60)
    simulate(plan, MODELS["pcc"], {}, 0, folder, Progress())
    return folder


@pytest.fixture
def written(tmp_path):
    """written(sync="pcc", settings...) begins a run's folder: (ServerLog, WatchedRun)."""
    logs = []

    def begin(sync: str = "pcc", **settings) -> tuple[ServerLog, WatchedRun]:
        write_settings(tmp_path, {"sync": sync, **settings})
        logs.append(ServerLog(tmp_path, sync, tensorboard=False))
        return logs[-1], WatchedRun(tmp_path, "the run")
    yield begin
    for log in logs:
        log.close()
