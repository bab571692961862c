"""Whole runs under faults, in virtual time: 4 seeds a model here, thousands at night."""

import contextlib
import errno
import mmap
import random
import subprocess
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
import zmq
from simulated.cluster import Cluster
from simulated.command import Tally, as_json, from_json, main
from simulated.mistakes import MISTAKES
from simulated.plan import TABLE, Plan, drawn
from simulated.strangers import Forger

from wbsp.core.store import Snapshot
from wbsp.process.host import HOST
from wbsp.sync import MODELS
from wbsp.wire.messages import codec as m
from wbsp.wire.session import Session

SEEDS = 2  # of each model; the night has more


@pytest.mark.parametrize("sync", MODELS)
def test_no_law_is_broken(sync, folder):
    tally, models = Tally(), list(MODELS)
    for number in range(SEEDS):  # as the command's first seeds are
        seed = models.index(sync) + number * len(models)
        tally.play(drawn(sync, seed), seed, folder)
    assert not tally.failed, "\n".join(tally.failed)


@pytest.mark.parametrize("outer", ["identity", "nesterov"])
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8"])
def test_sparse_updates_and_versions_go_as_blocks_under_faults(wire, outer, folder, monkeypatch):
    sparse = Counter()

    def counted(self, held, real=Snapshot.sendable):
        found = real(self, held)
        sparse["version"] += found.in_blocks
        return found

    def parts(self, words, group, real=Session.parts):
        found = real(self, words, group)
        sparse["update"] += sum(part.size for part in found) < words.size
        return found
    monkeypatch.setattr(Snapshot, "sendable", counted)
    monkeypatch.setattr(Session, "parts", parts)
    plan = Plan(sparse=True, size=TABLE, wire=wire, outer=outer, kills=1, breaks=1)
    Cluster(plan, 0, folder).run()
    Cluster(replace(plan, shards=2, standby=True), 1, folder).run()
    assert sparse["version"] > 5 and sparse["update"] > 20


def test_a_seed_and_its_plan_give_the_same_run_again(folder):
    plan = Plan("pcc", standby=True, shards=2, kills=1, kill_shards=1, cuts=1, sleeps=1, drift=0.01)
    runs = [Cluster(one, 5, folder).run() for one in (plan, from_json(as_json(plan)))]
    assert runs[0].said == runs[1].said
    assert runs[0].world.digest == runs[1].world.digest


@pytest.mark.parametrize("use", [
    lambda: time.sleep(0), lambda: time.monotonic(), lambda: threading.Thread(target=print).start(),
    lambda: subprocess.Popen(["true"]),
    lambda: HOST.clock.sleep(0.0), lambda: HOST.network.context(),
    lambda: HOST.memory.create(1, True), lambda: mmap.mmap(-1, 4096)])
def test_a_call_outside_of_the_simulation_is_found(folder, monkeypatch, use):
    def uses(process, frames):
        if frames:
            use()
    cluster = Cluster(Plan(), 0, folder)
    cluster.world.on_send = uses
    with pytest.raises(AssertionError, match="a simulated run uses the real"):
        cluster.run()


@pytest.mark.parametrize("real", [True, False], ids=["libzmq", "simulated"])
@pytest.mark.parametrize("use", [
    lambda one: one.send(b"", zmq.NOBLOCK), lambda one: one.recv_multipart(zmq.NOBLOCK),
    lambda one: one.routing_id, lambda one: setattr(one, "linger", 0),
    lambda one: one.disconnect("tcp://server:2606"), lambda one: one.disable_monitor()])
def test_a_closed_socket_raises(folder, use, real):
    if real:
        with zmq.Context() as context:
            one = context.socket(zmq.DEALER)
            one.close(0)
    else:
        one = Cluster(Plan(), 0, folder).process("other").host.network.context().socket(zmq.DEALER)
        one.close(0)
    one.close(0)
    with pytest.raises(zmq.ZMQError) as error:
        use(one)
    assert error.value.errno == errno.ENOTSOCK


def test_a_child_that_ends_with_its_parent_does_nothing_more(folder):
    """Its next step kills the parent, as when it writes a file in the parent's folder."""
    world, did = Cluster(Plan(), 0, folder).world, []
    parent, child = (world.process(name, "server") for name in ("parent", "child"))
    parent.files.append(child)
    child.die, world.on_doom, world.doomed[parent] = child.kill, lambda one: one.kill(), 0

    def body():
        world.step(parent)
        did.append("went on")
    child.start(body)
    world.run(lambda: False, 1.0)
    assert not did and not child.alive


@pytest.mark.parametrize(("seed", "plan"), [
    pytest.param(60003057, Plan(
        workers=2, steps=20, shards=2, kills=3, kill_workers=1, cuts=2, storm=0.03, sleeps=1,
        worker_absences=2, soon=3, slow=0.3, strangers=1, readers=1, speeds=(3.0,),
        aimed=(("begin", "sleep"),)), id="its number is another push's since"),
    pytest.param(60001820, Plan(
        "rennala", steps=30, wire="topk:0.1", standby=True, shards=3, period=1.0, kills=2,
        kill_shards=1, kill_workers=1, isolations=2, breaks=8, absences=1, full=0.1, slow=0.3,
        speeds=(3.0,)), id="its copy has died, and its server starts again from a full disk"),
    pytest.param(60010604, Plan(
        "esync", workers=2, steps=20, size=9000, sparse=True, outer="nesterov", wire="int8",
        standby=True, period=1.0, kills=1, power=True, cuts=1, breaks=11, sleeps=2, absences=2,
        slow=0.3, speeds=(3.0,), aimed=(("begin", "kill"), ("rendezvous", "kill"))),
        id="its server was alone, and has lost power"),
    pytest.param(61009632, Plan(
        "nbsync", workers=4, steps=20, chunk=7, wire="int8", standby=True, period=0.1, kills=3,
        cuts=2, absences=1, slow=0.3, evaluator="dies", speeds=(3.0,),
        aimed=(("take-over", "kill"),)),
        id="its standby has taken over, and died before the workers were back")])
def test_a_push_that_is_said_to_be_lost_counts_for_nobody(seed, plan, folder):
    Cluster(plan, seed, folder).run()


def test_an_elected_server_goes_on_with_the_next_run_beside_the_one_that_was_cut_off(folder):
    plan = Plan("asp", {"weight": "time"}, workers=2, steps=30, uncounted=0.4, standby=True,
                period=0.1, kill_workers=2, storm=0.03, absences=2, drift=0.02, speeds=(1.0, 3.0))
    Cluster(plan, 61001844, folder).run()


def test_an_idle_hour_costs_no_time(folder):
    """A worker waits for its `patience` for a server that is away."""
    plan = Plan(kills=1, outage=(550.0, 580.0), steps=40, speeds=(0.1,))
    cluster = Cluster(plan, 0, folder).run()
    assert cluster.world.now > 550 and cluster.notes["kills"] == 1


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_wrongly_started_process_ends_with_the_reason(mistake, folder):
    plan = Plan(shards=0 if mistake.fits(Plan()) else 2, mistakes=1, mistake=mistake.name,
                steps=40, speeds=(0.3,))
    assert Cluster(plan, 0, folder).run().codes["m0"] == [1]


def test_every_message_type_is_forged():
    forger, made = Forger(random.Random(0)), set()
    for union in (m.FromWorker, m.ToShard):
        for _ in range(2000):
            with contextlib.suppress(m.WireError):
                made.add(type(m.decode(union, forger.message(union)[0])))
    assert made >= {*m.FromWorker.__args__, *m.ToShard.__args__}


@pytest.mark.parametrize("how", ["works", "hangs", "dies"])
def test_a_run_ends_however_its_evaluator_behaves(how, folder):
    cluster = Cluster(Plan("asp", evaluator=how), 0, folder).run()
    assert cluster.codes["server"] == [0]
    there = any(path.endswith("model.keras") for path in cluster.machine("server").names)
    assert there == (how == "works")


def test_the_command_counts_its_runs(capsys):
    assert main(["--runs=3", "--models=bsp,asp", "--kinds=standby,shards"]) == 0
    out = capsys.readouterr().out
    assert "3 runs, 0 failed; 2 with a standby, 1 with shards, 0 with both" in out
    assert "kinds: shards 1, standby 2" in out and "models: asp 1, bsp 2" in out


def test_two_processes_make_the_same_runs_as_one(capsys):
    outs = []
    for jobs in ("1", "2"):
        assert main(["--seeds=4:10", "--kinds=sites,any", f"--jobs={jobs}"]) == 0
        outs.append([line for line in capsys.readouterr().out.splitlines()
                     if "processor time" not in line])
    assert outs[0] == outs[1]


def test_a_failure_prints_the_command_that_repeats_it(folder, monkeypatch):
    monkeypatch.setattr(Cluster, "run", lambda self: 1 / 0)
    tally = Tally()
    tally.play(Plan("asp", kills=2), 7, folder)
    assert "ZeroDivisionError" in tally.failed[0]
    assert """--seeds=7:8 --loud --plan='{"sync": "asp", "kills": 2}'""" in tally.failed[0]
