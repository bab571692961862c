"""Data that all workers share, in the whole runtime under faults: each example is exactly once an
epoch in accepted pushes, whoever dies (law 17)."""

import os
from dataclasses import replace

import pytest
from simulated.cluster import Cluster
from simulated.command import scratch
from simulated.laws import Broken
from simulated.plan import Plan

from wbsp.core.work_ledger import WorkLedger
from wbsp.sync import MODELS

SEEDS = 3 if "WBSP_LONG" in os.environ else 2
QUIET = Plan(data=(60, 4, 2), speeds=(0.05, 0.3))
DEATHS = replace(QUIET, kills=2, kill_workers=1, breaks=2, storm=0.01, sleeps=1, naps=(0.2, 12.0))
SHARDS = replace(QUIET, standby=True, shards=2, kills=1, kill_shards=1, kill_workers=1, breaks=2)


@pytest.mark.parametrize("sync, plan", [
    pytest.param(sync, plan, id=f"{sync}-{name}",
                 marks=[pytest.mark.long] * (plan is SHARDS and place % 3 != 0))
    for place, sync in enumerate(MODELS)
    for name, plan in (("quiet", QUIET), ("deaths", DEATHS), ("shards", SHARDS))])
def test_each_example_is_once_an_epoch_in_accepted_pushes(sync, plan):
    with scratch() as folder:
        for seed in range(SEEDS if plan is not QUIET else 1):
            validate = "wait" if seed == 1 else "newest"  # its epochs do not overlap
            Cluster(replace(plan, sync=sync, validate=validate), seed, folder).run()


# A server dies as a worker has finished, with decisions that no checkpoint has.
LAST = Plan("asp", workers=2, data=(24, 4, 2), period=0.1, kills=1, victims=("server",),
            aimed=(("last push", "kill"),))


@pytest.mark.parametrize("away", [20.0, 40.0], ids=["soon", "late"])
def test_a_worker_that_dies_last_trains_the_rest_when_it_returns(away):
    """Later than a server waits, those that have finished train it, too: as new processes."""
    def dies(run):
        if any("reconnected, and has finished" in line for line in run.said):
            for member in (one for one in run.members if one.left_at > run.world.now):
                run.say(f"--- kill w{member.index}")
                member.process.kill()
                member.deaths.append(run.world.now)
                member.joined = None
                run.world.after(away, member.start)
        elif not run.over:
            run.world.after(0.003, lambda: dies(run))
    with scratch() as folder:
        for seed in range(200):
            cluster = Cluster(LAST, seed, folder)
            cluster.world.after(0.1, lambda run=cluster: dies(run))
            said = "".join(cluster.run().said)
            assert cluster.codes["server"] == [0] and "not trained" not in said
            if "to train the rest (" in said:
                assert ("start these workers again, and they train them" in said) == (away > 30)
                return
    raise AssertionError("no seed has a worker that dies last")


@pytest.mark.parametrize("sync", ["auto", "asp"])
def test_others_train_what_a_sleeping_worker_holds(sync):
    """Each of its epochs lasted until it woke, or had been silent for five minutes."""
    plan = Plan(sync, workers=2, data=(60, 4, 2), speeds=(0.3,), naps=(250.0,))
    with scratch() as folder:
        run = Cluster(plan, 0, folder)
        run.world.after(3.0, lambda: run.sleep("w1"))
        said = run.run().said
    assert any("worker 1 has been silent for 10 s" in line for line in said)
    [last] = [line for line in said if "epoch 2 of 2 is trained" in line]
    assert float(last.partition("[")[2].partition("s]")[0]) < 60


@pytest.mark.parametrize("data", [(300, 1, 1), None], ids=["shared", "its own"])
def test_a_worker_starved_by_its_model_is_reported_once(data):
    plan = Plan("ksync", {"b": 1}, workers=2, data=data, steps=300, speeds=(0.3, 4.0))
    with scratch() as folder:
        for seed in range(9):
            cluster = Cluster(plan, seed, folder)
            slow = max(cluster.members, key=lambda member: member.speed)
            if {member.speed for member in cluster.members} == {*plan.speeds}:
                break
        for member in cluster.members:
            member.steps = 300 if member is not slow else 24
        lines = [line for line in cluster.run().said if "starves" in line]
    [line] = lines
    assert f"worker {slow.index} starves: ksync has accepted none of its last 20 pushes" in line
    assert f"Its work {'is repeated by others' if data else 'is lost'}" in line


def test_results_that_were_lost_with_a_connection_are_sent_again():
    """All others waited for them, and the worker that had sent them waited for examples."""
    plan = Plan("asp", data=(60, 4, 3), validates=True, validate="wait", storm=0.03, hours=0.2)
    with scratch() as folder:
        for seed in range(12, 15):
            Cluster(plan, seed, folder).run()


def test_work_that_is_given_twice_is_found(monkeypatch):
    give = WorkLedger.give

    def gives_again(self, *args, **options):  # the first range of each worker stays free
        given = give(self, *args, **options)
        if given is not None and given.at == 0:
            self.free.add(given.start, given.stop)
        return given
    monkeypatch.setattr(WorkLedger, "give", gives_again)
    with scratch() as folder, pytest.raises(Broken, match="law 17|RuleBroken.* settles positions"):
        for seed in range(20):
            Cluster(replace(DEATHS, sync="asp"), seed, folder).run()
