"""A model in several processes: the same bytes as in one, and any of them may die.

Each worker records its cuts, and the weight of each answered push. The final model must be W_0 plus
the weighted sum of these, each once, to the last bit.

`WBSP_KILLS=30` runs all of this, which takes minutes, and kills, 30 times each, the server,
one of its shards or its standby, with 1, 2 and 4 shards, with a standby and without;
`WBSP_KILLS_SEED` chooses the processes and the moments.
"""

import json
import os
import random
import signal
import statistics

import numpy as np
import psutil
import pytest
from fake_worker import FakeWorker, all_end
from hostile_peer import Peer
from integer_replica import IntegerReplica
from jobs import ROOT, free_port, until
from server_and_standby import OFTEN, ServerAndStandby, run_json

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.reader import read_run
from wbsp.wire.messages import codec as m

KILLS = int(os.environ.get("WBSP_KILLS", "0"))
SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))
when_asked = pytest.mark.skipif(not KILLS, reason="takes longer: WBSP_KILLS=2")


class FloatReplica(IntegerReplica):
    """A replica whose sums depend on their order: its steps are not whole numbers."""

    def step(self):
        self.x = self.x + self._draw.standard_normal(self.x.size).astype(np.float32)


def gone(processes):
    """True if all have ended."""
    return all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in processes)


def test_versions_are_the_same_bytes_with_and_without_shards(jobs):
    """One worker, so that there is one order; more than a chunk a shard, and another outer step.
    Norms are equal as well, and a version's of one push is that of the push.
    """
    final, norms = {}, {}
    for count in (1, 2, 4):
        server = jobs.server(f"--shards={count}", f"--base_dir=run{count}", "--outer=nesterov",
                             sync="asp", workers=1).listens()
        member = FakeWorker(server.address, 0, 12, replica=FloatReplica(0, 600_001))
        all_end([member])
        server.ends_well()
        assert run_json(server)["shards"] == count
        saved = checkpoint.load(server.folder / "checkpoint.safetensors")
        assert saved.vector.tobytes() == member.replica.x.tobytes()
        final[count] = saved.vector.tobytes(), saved.outer["velocity"].tobytes()
        norms[count] = [event["norm2"] for event in server.events("accept")]
        told = {event["version"]: event["norm2"]
                for kind in ("commit", "norm") for event in server.events(kind)
                if "norm2" in event}
        assert len(told) >= 6 and told == {version: norms[count][version - 1] for version in told}
    assert final[1] == final[2] == final[4]
    assert norms[1] == norms[2] == norms[4]


@pytest.mark.parametrize("sync, shards", [
    ("pcc", 2), pytest.param("bsp", 4, marks=when_asked)])
def test_a_shard_may_die(jobs, sync, shards):
    run = ServerAndStandby(jobs, sync, shards=shards, standby=False, flags=[OFTEN])
    run.trains()
    victims = run.shards()
    assert len(victims) == shards
    victims[-1].kill()
    run.server.until("ended with exit code -9; resuming from the newest checkpoint")
    until(lambda: len(run.server.find("shards at")) == 2, "other shards")
    assert gone(victims), "none outlives a start of its server"
    run.go()
    run.ends(run.server)
    (lost,) = run.server.events("shard_lost")
    assert lost["epoch"] == 3 and "ended with exit code -9" in lost["reason"]
    assert {e["worker"] for e in run.server.events("reattach")} == {0, 1}
    assert read_run(run.server.folder).summary["failures"]["shard_lost"] == 1


@when_asked
def test_the_server_of_shards_may_die_and_resume_with_more_shards(jobs):
    run = ServerAndStandby(jobs, shards=2, standby=False, flags=[OFTEN])
    run.trains()
    orphans = run.shards()
    run.server.kill()
    until(lambda: gone(orphans), "shards to end with their server", 10)
    run.flags[-1] = "--shards=4"
    run.server = run.start_server("--resume")
    run.server.until("worker . reconnected")
    assert len(run.shards()) == 4
    run.server.kill()
    run.flags[-1] = "--shards=1"
    run.server = run.start_server("--resume")
    run.go()
    run.ends(run.server)


@pytest.mark.parametrize("victim", [
    "shard", pytest.param("server", marks=when_asked), pytest.param("standby", marks=when_asked)])
def test_shards_work_with_a_standby(jobs, victim):
    pair = ServerAndStandby(jobs, shards=2)
    pair.trains()
    if victim == "shard":
        until(lambda: pair.held({}), "the server to know that")
        pair.shards()[0].kill()
        pair.standby.until("taking over from the server at")
        until(lambda: len(pair.shards()) == 2, "shards of its own")
    else:
        getattr(pair, victim).kill()
    pair.go()
    if victim == "shard":
        pair.ends(pair.standby, pair.server)
    else:
        pair.ends(pair.server if victim == "standby" else pair.standby)


def test_remote_shards_wait_for_one_server_after_the_other(jobs):
    ports = free_port(), free_port()
    shards = [jobs.shard(port) for port in ports]
    run = ServerAndStandby(jobs, shards=",".join(f"localhost:{port}" for port in ports),
                           standby=False, flags=[OFTEN])
    run.trains()
    shards[0].kill()
    run.server.until("lost the connection to the shard at .*; resuming from the newest checkpoint")
    shards[0] = jobs.shard(ports[0])
    until(lambda: len(run.server.find("shards at")) == 2, "the shard that was started again")
    shards[1].until("has been replaced|is lost")
    run.server.kill()
    shards[0].until("is lost; waiting for the next")
    run.server = run.start_server("--resume")
    run.go()
    run.ends(run.server)
    for shard in shards:
        shard.ends_well()
        assert shard.find("the run has ended: all workers finished")


def test_a_standby_waits_with_a_server_that_waits_for_a_shard(jobs):
    """The wait outlasts the timeout of a silent peer; and an end during it is reported at once."""
    ports = free_port(), free_port()
    shards = [jobs.shard(port) for port in ports]
    run = ServerAndStandby(jobs, shards=",".join(f"localhost:{port}" for port in ports))
    run.trains()
    until(lambda: run.held({}), "the server to know that")
    shards[0].kill()
    run.standby.until("taking over from the server at")
    run.go()
    run.server.until("no server at .* for 10 of 600 s; that process does not serve yet")
    shards[0] = jobs.shard(ports[0])
    run.ends(run.standby, run.server)
    assert run.server.find(r"the run has ended: all workers finished")
    for shard in shards:
        shard.ends_well()


def test_a_server_prints_for_which_shard_it_waits(jobs):
    port = free_port()
    server = jobs.server("--base_dir=run", f"--shards=localhost:{port}").listens()
    server.until(f"waiting for the shard at localhost:{port}")
    worker = jobs.integer_worker(server.address, 0)
    worker.until("the server is waiting for the shard")
    with Peer(server.address) as standby:  # to which silence would be the server's end
        standby.send(m.Follow(m.PROTOCOL, {}, 1, "", 0))
        standby.hears(m.NotServing)
    worker.signal(signal.SIGTERM)
    server.signal(signal.SIGTERM)
    assert server.ends() == 128 + signal.SIGTERM
    server.was_clean()
    worker.ends()
    shard = jobs.shard(port)
    shard.until("listening on port")
    shard.signal(signal.SIGINT)
    assert shard.ends() == 128 + signal.SIGINT
    shard.was_clean()


def test_a_wrong_number_of_shards_is_refused_in_one_line(jobs):
    server = jobs.server("--base_dir=run", "--shards=none")
    assert server.ends() == 1
    assert server.lines == ["wbsp.ps: shards='none' is neither a number from 1 to 64 nor a list of "
                            "addresses: address 'none' is not host:port, for example "
                            "localhost:2606"]


@when_asked
@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 4])
@pytest.mark.parametrize("victim", ["shard", "server", "server with a standby", "standby"])
def test_fit_continues_when_any_process_dies(jobs, shards, victim):
    """Two workers with Keras, on the public interface."""
    victim, _, standby = victim.partition(" with ")
    run = ServerAndStandby(jobs, shards=shards, standby=bool(standby) or victim == "standby",
                           flags=[OFTEN])
    steps = [120, 60]
    workers = [jobs.start(f"keras{index}", ROOT / "tests/helpers/keras_worker.py",
                          json.dumps({"address": ",".join(run.addresses), "worker": index,
                                      "steps": planned, "pause": 0.03}))
               for index, planned in enumerate(steps)]
    path = run_json(run.server)["folder"] / "checkpoint.safetensors"
    until(lambda: path.exists() and checkpoint.load(path).state.version >= 3, "versions")
    if run.standby is not None:
        until(lambda: run.held({}), "the server to know what the standby holds")
    if victim == "shard":
        victims = run.shards()
        assert len(victims) == shards, run.server.text
        victims[0].kill()
    else:
        getattr(run, victim).kill()
    if victim == "server":
        if standby:
            run.standby.until("taking over")
        else:
            run.server = run.start_server("--resume")
    for job in workers:
        job.ends_well()
    served = run.serving
    served.ends_well()
    (_, digest), (_, other) = [job.find("RESULT")[0].rsplit(maxsplit=1) for job in workers]
    assert digest == other, "both hold the final version"
    saved = checkpoint.load(run_json(served)["folder"] / "checkpoint.safetensors")
    assert [saved.state.members[worker].steps for worker in range(2)] == steps
    if victim != "standby":
        assert {e["worker"] for e in served.events("reattach")} == {0, 1}


@when_asked
@pytest.mark.slow
@pytest.mark.timeout(240 + 60 * KILLS)
@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("standby", [True, False])
def test_a_run_survives_repeated_deaths_of_server_shards_and_standby(jobs, shards, standby):
    """A server or standby that was killed is started again by the same command."""
    draw = random.Random(f"{shards} {standby} {SEED}")
    pair = ServerAndStandby(jobs, draw.choice(["pcc", "wbsp", "asp"]), shards=shards,
                            standby=standby, flags=[OFTEN])
    for seconds in (0.004, 0.01):
        pair.worker(1_000_000, seconds=seconds, stop_when_told=True)
    pair.workers[0].until("step 5 done")
    waits = pair.kill_repeatedly(KILLS, draw)
    pair.go()
    for worker in pair.workers:
        worker.ends_well()
    pair.ends(pair.serving)
    print(f"{shards} shards, {'a' if standby else 'no'} standby: {len(waits)} kills; seconds to "
          f"the next version: median {statistics.median(waits):.2f}, most {max(waits):.2f}")
