"""What the simulation has found: plans that broke a law before it was mended."""

import re

import pytest
from simulated.cluster import Cluster
from simulated.command import scratch
from simulated.plan import Plan

from wbsp.ps.dispatcher import Dispatcher

# Standby and shards, and all that strikes them: what failed lay in several parts.
BOTH = Plan("asp", workers=4, standby=True, shards=2, kills=1, kill_shards=2, cuts=1, breaks=2,
            sleeps=1, naps=(3.0, 65.0), slow=0.0, speeds=(0.3,),
            aimed=(("farewell", "isolate"), ("rendezvous", "kill")))

# A server sleeps, and its standby is elected, ends the run without a worker, and is not there any
# more. The server wakes, and that worker finishes there.
IN_DOUBT = Plan("decoupled", workers=2, steps=30, chunk=5, standby=True, kills=1, power=True,
                kill_workers=1, isolations=2, absences=2, slow=0.02, speeds=(1.0, 3.0),
                aimed=(("take-over", "break"), ("take-over", "sleep")))


@pytest.mark.long
@pytest.mark.parametrize(("plan", "seeds"), [
    (Plan("pcc", kill_workers=2, breaks=1, steps=20), range(24)),  # joins as the others end: law 2
    (Plan("pcc", steps=4, standby=True, period=1.0, kills=1, power=True, breaks=1, storm=0.03,
          sleeps=1), [679]),  # a standby that came early holds a copy that names one worker: law 9
    (Plan("adsp", wire="int8", standby=True, period=1.0, kills=1, kill_workers=1, breaks=3,
          storm=0.01, sleeps=2, drift=0.001), [4311]),  # an answer from before a new epoch: law 9
    (Plan("lbbsp", workers=4, steps=4, shards=2, period=0.1, kills=2, power=True, kill_shards=2,
          storm=0.03, slow=0.3, aimed=(("farewell", "sleep"), ("begin", "sleep"))),
     [13252]),  # a push that is sent again, and answered meanwhile, is summed up in place: law 5
    (Plan("elasticbsp", workers=4, standby=True, kills=1, kill_workers=2, isolations=1, breaks=3,
          storm=0.03, aimed=(("rendezvous", "kill"), ("rendezvous", "sleep"))),
     [36249]),  # a repeated answer of a new epoch with the ticket of the earlier one: law 9
    (Plan("asp", workers=2, steps=8, standby=True, shards=2, period=1.0, kills=2, sleeps=2,
          naps=(12.0, 40.0), speeds=(1.0, 2.0)),
     [706]),  # whose shards follow a later server goes back to a checkpoint, and serves: law 4
    (Plan("asp", workers=2, steps=40, standby=True, period=0.1, kills=1, soon=3, breaks=60,
          storm=0.15, slow=0.05, latency=(0.005, 0.01), speeds=(0.02, 0.03)),
     [145]),  # no log has the answer to a dead worker's push, which the standby has: the law erred
    (Plan("esync", steps=30, uncounted=0.4, standby=True, period=1.0, kills=2, power=True,
          kill_workers=2, storm=0.01, sleeps=1, absences=1, soon=2, drift=0.02,
          speeds=(3.0,)),
     [4002044]),  # the log lacks which pushes are lost, as its machine lost its power, too: law 1
    (Plan("esync", workers=2, steps=30, data=(72, 4, 2), wire="topk:0.1", shards=3, kills=2,
          power=True, leaves=1, cuts=1, breaks=1, worker_absences=2, speeds=(1.0, 3.0)),
     [3004685]),  # the same, and some of the data are trained again: law 17
    (Plan("lbbsp", {"controller": "gpu"}, steps=30, wire="topk:0.1", standby=True, period=0.1,
          kills=1, power=True, kill_workers=1, isolations=2, breaks=9, absences=1,
          worker_absences=2, slow=0.3, speeds=(1.0, 3.0), aimed=(("take-over", "kill"),)),
     [3004668]),  # the same in a lossy format: law 1
    (Plan("pcc", {"weight": "work"}, workers=2, steps=4, data=(24, 4, 2), shards=3, period=0.1,
          kills=1, kill_shards=1, cuts=2, breaks=2, storm=0.01, sleeps=2, soon=3, drift=0.02,
          strangers=1, wild=0.2, evaluator="dies", aimed=(("last push", "kill"),)),
     [3006337]),  # restarts to train the rest, when the others have finished: law 17
    (Plan("decoupled", {"tau": 1, "quorum": 1, "grace": 0.0}, workers=4, steps=20,
          wire="topk:0.1", standby=True, kills=2, cuts=1, breaks=2, storm=0.03, absences=2, soon=3,
          drift=0.001, speeds=(3.0,)),
     [4001832]),  # joins an earlier server, and is let in by the later one: judged as if not
    (Plan("elasticbsp", steps=30, data=(180, 4, 2), standby=True, memory=True, period=1.0, kills=1,
          leaves=2, breaks=8, sleeps=2, absences=1, full=0.1, drift=0.001, speeds=(1.0, 3.0),
          aimed=(("take-over", "kill"),)),
     [4002196]),  # the simulated pool held what it could not write: law 12
    (Plan("asp", {"refresh": "published"}, workers=2, steps=30, data=(135, 4, 1), standby=True,
          memory=True, period=0.1, kills=3, breaks=9, storm=0.01, absences=1, worker_absences=1,
          full=0.1, speeds=(1.0, 3.0)),
     [3000164]),  # the same
    (Plan("adsp", {"period": 0.2}, steps=30, standby=True, memory=True, kills=3, kill_workers=2,
          breaks=8, absences=2, slow=0.3, speeds=(1.0, 3.0)),
     [810006]),  # follows anew, and keeps what its earlier connection brought: law 12
    (Plan("lbbsp", steps=30, wire="int8", standby=True, shards=3, period=1.0, kills=1,
          kill_shards=2, breaks=3, absences=2, worker_absences=1, soon=2, evaluator="dies",
          speeds=(3.0,), aimed=(("take-over", "kill"),)),
     [7000269]),  # is elected, dies before it serves, and later takes over by proof: law 11
    (Plan("ssp", steps=30, standby=True, period=0.1, kills=1, power=True, breaks=8, absences=1,
          slow=0.3, wild=0.2, speeds=(3.0,), aimed=(("rendezvous", "cut"),)),
     [7002168]),  # dies as it continues without its standby, before it has saved: law 1
    (Plan("rennala", {"s": 2}, workers=2, uncounted=0.4, wire="int8", shards=2, period=1.0,
          kills=2, kill_workers=2, cuts=2, breaks=1, storm=0.03, soon=1, wild=0.2,
          evaluator="hangs"),
     [7001021]),  # an evaluator that has connected again hangs, and no one looks: law 9
    (BOTH, [961]),  # none of no workers elect one that waits to serve: law 4
    (BOTH, [912]),  # who knows a new server's epoch counts what it keeps as the old one did: law 1
    (BOTH, [1118]),  # who has taken over waits for a shard, and the other one is elected: law 4
    (BOTH, [1158]),  # those elect it who lose nothing, while the newer state sleeps: law 1
    (BOTH, [937]),  # a run ends without a worker, whose newest pushes are with that alone: law 1
    (Plan("asp", steps=20, standby=True, kills=1, victims=("server",),
          aimed=(("take-over", "kill"),)),
     range(12)),  # dies when its folder has a name, and nothing in it: law 9
    (Plan("ssp", wire="int8", standby=True, shards=2, kills=1, kill_shards=2, cuts=1, sleeps=1,
          naps=(6.0, 65.0), strangers=2, aimed=(("take-over", "isolate"),)),
     [152]),  # waits for shards that follow a later server, until that has ended: law 2
    (Plan("asp", standby=True, kills=1, victims=("server",), cuts=1, sleeps=1, naps=(6.0, 20.0),
          speeds=(0.1,), aimed=(("take-over", "isolate"),)),
     [23, 58, 74, 81, 100]),  # is cut off when it takes over, and another is elected: law 2
    (Plan("esync", workers=4, steps=4, data=(24, 7, 1), period=1.0, kills=1, leaves=1, sleeps=1,
          aimed=(("rendezvous", "sleep"),)),
     [2591]),  # holds work, and waits for one who has none: law 9
    (BOTH, [930, 943]),  # a run that has ended without a worker continues with it: law 2
    (Plan("ssp", {"s": 2, "refresh": "published"}, workers=4, steps=8, standby=True, shards=2,
          kills=1, kill_shards=1, breaks=2, sleeps=1, drift=0.001, wild=0.2,
          aimed=(("rendezvous", "cut"), ("take-over", "kill"))),
     [72]),  # who asks workers for their votes hears that the other one holds nothing: law 9
    (Plan("lbbsp", workers=4, wire="topk:0.1", kills=1, kill_workers=1, cuts=2, isolations=2,
          storm=0.01, drift=0.02),
     [81967]),  # who joined after the checkpoint is away, and has a version with that number: law 3
    (Plan(workers=4, steps=8, data=(24, 7, 1), wire="int8", period=1.0, kills=2, kill_workers=2,
          cuts=2, breaks=2, sleeps=1, full=0.1, aimed=(("farewell", "cut"),)),
     [201140]),  # is told that the run has ended, and the server dies before that is safe: law 17
    (Plan("wbsp", workers=4, steps=4, data=(45, 7, 3), wire="topk:0.1", shards=3, period=0.1,
          kill_workers=1, cuts=2, isolations=1, aimed=(("last push", "break"),)),
     [1050663]),  # loses with a shard what a worker had that died, when all have finished: law 17
    (Plan("rennala", workers=2, data=(45, 4, 3), wire="int8", shards=2, period=0.1, kills=1,
          power=True, leaves=2, cuts=1, full=0.1, slow=0.0, aimed=(("rendezvous", "break"),)),
     [1006535]),  # continues without one that its checkpoint does not know: judged as if it had not
    (Plan("auto", data=(24, 7, 2), memory=True, period=1.0, kills=2, leaves=1, cuts=1, slow=0.02,
          drift=0.02),
     [1008559]),  # reads what a server that has died lent, over a link that is closed: law 12
    (Plan("dssp", workers=2, steps=3, power=True, kill_workers=2, storm=0.03, full=0.3,
          speeds=(0.03,)),
     [124, 1026]),  # joins a run that has ended, whose disk was full at the end: law 2
    (Plan("saps", workers=2, steps=4, data=(60, 7, 3), wire="int8", kills=1, power=True,
          kill_workers=2, leaves=2, breaks=2, storm=0.01),
     [2059230]),  # has an earlier process's push that no disk has, and was told nothing: law 10
    (Plan("nbsync", workers=2, steps=4, data=(24, 7, 3), wire="topk:0.1", standby=True, period=0.1,
          kills=1, leaves=2, isolations=2, breaks=1, sleeps=2, full=0.1,
          aimed=(("take-over", "kill"), ("take-over", "kill"))),
     [3003868]),  # ends with a full disk, and a standby that is cut off: judged as if that had it
    (Plan("bsp", steps=4, data=(24, 4, 2), wire="int8", standby=True, period=1.0, leaves=2,
          full=0.1),
     [4005460]),  # ends with a full disk and is started again: does all once more
    (Plan("dssp", {"s_l": 0, "s_u": 2}, steps=8, wire="int8", shards=2, period=0.1, kills=2,
          cuts=2, isolations=2, storm=0.01, sleeps=2, slow=0.3, drift=0.02, mistakes=1),
     [5021025]),  # begins again beside its own write, which a pool's end waits for: judged wrongly
    (Plan("esync", workers=2, memory=True, period=0.1, kills=2, storm=0.01, sleeps=2, drift=0.02,
          mistakes=1),
     [6018011]),  # sleeps twice at once, and was judged as if awake after the shorter sleep
    (Plan("lbbsp", {"controller": "federated", "tau": 2}, workers=4, steps=8, wire="topk:0.1",
          standby=True, shards=3, power=True, breaks=1, storm=0.01, sleeps=2, wild=0.2),
     [8001687]),  # its last word is held back by a broken line: spun until that was given up
    (Plan("lbbsp", workers=4, data=(24, 4, 3), shards=2, period=1.0, kills=2, kill_shards=1,
          cuts=2, storm=0.01, sleeps=1, slow=0.0, drift=0.001, aimed=(("rendezvous", "kill"),)),
     [9042787]),  # waits with the rest of a larger batch for one that has no examples left: law 9
    (Plan("msync", {"s": 1.0}, data=(45, 4, 2), wire="topk:0.1", shards=2, slow=0.3, mistakes=2),
     [9044977]),  # another run's server took the shards before their own: judged as if after it
    (Plan("adsp", workers=2, steps=40, standby=True, chosen=True, kills=1, soon=3, speeds=(0.1,)),
     [4, 9, 10]),  # who waits for most of the workers counts none without an index: law 9
    (Plan("asp", workers=2, wire="int8", chosen=True, period=0.1, kills=3, storm=0.03, full=0.1,
          slow=0.02, drift=0.001),
     [100261]),  # one was welcomed by a server that dies before the run, others are there: law 18
    (Plan("adsp", workers=2, steps=40, standby=True, chosen=True, kills=1, soon=3, speeds=(0.1,)),
     [8]),  # of three servers in a row, the third trains a run on that the first had ended: law 2
    (Plan("dssp", {"s_l": 0, "s_u": 2}, steps=20, wire="int8", standby=True, kills=1, cuts=2,
          breaks=9, sleeps=2, absences=2, drift=0.02, speeds=(1.0, 3.0),
          aimed=(("take-over", "cut"),)),
     [610250]),  # votes, goes back to its server, and is answered there before that dies: law 1
    (Plan("asp", steps=20, standby=True, power=True, kill_workers=2, cuts=2, breaks=8, sleeps=2,
          absences=2, full=0.1, speeds=(3.0,)),
     [3001764]),  # votes and dies: judged as if its next process had not voted
    (Plan("ringmaster", steps=20, wire="topk:0.1", standby=True, period=0.1, kills=2, power=True,
          breaks=8, sleeps=2, absences=2, full=0.1, speeds=(3.0,)),
     [3006944]),  # one alone was there when the copy was made: judged as if all decided
    (Plan("fedasync", workers=4, steps=30, wire="topk:0.1", standby=True, shards=3, kills=1,
          breaks=3, storm=0.01, absences=2, full=0.1, strangers=2, speeds=(3.0,),
          aimed=(("take-over", "kill"),)),
     [3001093]),  # has its first version at the standby alone, as the disk was full once: law 9
    (Plan(workers=2, steps=30, data=(180, 7, 3), validate="wait", standby=True, period=1.0,
          leaves=1, cuts=2, absences=2, worker_absences=1, readers=1, speeds=(3.0,)),
     [402]),  # a machine is away without power, and with it the log's end: judged as if it had one
    (Plan("ssp", steps=20, standby=True, period=1.0, kills=1, cuts=2, breaks=8, sleeps=2,
          absences=2, fences=1, full=0.1, drift=0.02,
          rates=(0.9028341103038542, 1.0692910486819949), evaluator="hangs", speeds=(1.0,),
          aimed=(("take-over", "sleep"),)),
     [3006728]),  # votes, and is given the next version by its server, too: law 3
    (Plan("ringmaster", {"r": 2, "weight": "mean"}, workers=4, steps=20, size=9000, sparse=True,
          dense=0.3, data=(135, 7, 3), standby=True, leaves=2, absences=2, wild=0.2,
          speeds=(1.0, 3.0)),
     [3007264]),  # its next process joins the server that wakes, and knows of no other: law 3
    (IN_DOUBT, [53]),  # goes back to a server in the second before that doubts: law 3
    (Plan("auto", workers=4, steps=20, data=(135, 4, 1), wire="topk:0.1", standby=True, period=1.0,
          sleeps=1, absences=2, full=0.1, drift=0.001, wild=0.2, speeds=(3.0,),
          aimed=(("last push", "kill"), ("last push", "isolate"))),
     [11001356]),  # follows anew, and is judged by the copy that it discarded then: law 11
    (Plan("wbsp", workers=4, steps=30, uncounted=0.4, chunk=5, wire="int8", standby=True,
          period=0.1, kills=1, cuts=2, sleeps=2, absences=2, worker_absences=1, fences=1, full=0.1,
          drift=0.02, rates=(0.9107742269398931, 1.0703447139407178), readers=2, kill_readers=1,
          speeds=(1.0,), aimed=(("take-over", "kill"),)),
     [11003212]),  # dies as it serves, and the file before it is of between two kept marks: law 9
    (Plan(options={"commit": "every_push"}, steps=20, uncounted=0.4, standby=True, kills=3,
          storm=0.01, absences=1, worker_absences=2, speeds=(3.0,), aimed=(("begin", "isolate"),)),
     [12002576]),  # two servers end the run, each without workers of the other: law 19
], ids=["joins as the others end", "copy that names one", "answer of an earlier epoch",
        "sent again", "answer of an earlier epoch, later",
        "shards follow a later server", "no log has the answer", "the log's end is lost",
        "the log's end is lost, of shared data", "the log's end is lost, of a lossy format",
        "comes again for the rest", "joins an earlier server",
        "memory of a write that failed", "memory of a write that failed, later",
        "memory of an earlier connection",
        "is elected, and dies", "dies before it has saved",
        "hangs over its later connection", "none of no workers",
        "epoch before the answer",
        "elected beside one that waits for a shard", "elected by who loses nothing",
        "ends without a worker", "folder without a checkpoint",
        "shards have followed a later server", "another is elected meanwhile",
        "holds work while it waits", "goes on when it has ended", "heard during an election",
        "a number given twice", "too late before it was safe",
        "loses what the dead had", "does again what one had done", "reads what the dead lent",
        "joins a run that has ended", "told nothing yet", "last version on no disk",
        "last version not saved at once", "begins again beside its own write",
        "sleeps twice at once", "last word is held back", "holds the rest of a batch",
        "came before the server", "none without an index counts",
        "an index is given twice", "an end is forgotten",
        "votes and goes back to its server", "votes and dies", "is alone in the copy",
        "first version is not tried again", "log ends with the power", "is given a number twice",
        "joins a server that wakes", "goes back before a doubt",
        "is judged by a discarded copy", "file is of between two marks", "two ends"])
def test_a_fixed_fault_stays_fixed(plan, seeds):
    with scratch() as folder:
        for seed in seeds:
            Cluster(plan, seed, folder).run()


def first_run(plan, *words, first=0):
    """The first run in which a line has these words: the seed changes with the code, and so may
    `first`, from which to look."""
    with scratch() as folder:
        for seed in range(first, first + 200):
            cluster = Cluster(plan, seed, folder).run()
            if any(all(word in line for word in words) for line in cluster.said):
                return cluster
    raise AssertionError(f"no seed comes to {words}")


def test_a_run_that_the_standby_may_have_ended_does_not_end_with_code_0():
    """Two had the final version of one run, and no process reported it."""
    cluster = first_run(IN_DOUBT, " was given up: not known whether the standby at", first=185)
    assert cluster.codes == {"standby": [0], "server": [1]}
    assert [one.final is not None for one in cluster.members].count(True) == 1
    assert any("was given up: not known whether" in (one.given_up or "")
               for one in cluster.members), "and it need not try the two servers any more"


def test_a_server_that_ended_in_doubt_is_not_revived_by_the_standbys_end(monkeypatch):
    """It is started again, and the worker has not heard the refusal: one of two is not enough, nor
    is one that has voted for the standby."""
    monkeypatch.setattr(Dispatcher, "send_off", lambda self, session, reason: None)
    cluster = first_run(IN_DOUBT, "stopping: not known whether the standby at standby:2606 has",
                        first=185)
    assert len(cluster.codes["server"]) > 1 and set(cluster.codes["server"]) == {1}
    assert any(re.search("[01] of 2 workers voted for this process, more than half", line)
               for line in cluster.said)


# A worker is killed as the others end, and the refusal of its next process is lost: it comes to
# the server of the next run.
@pytest.mark.parametrize("plan", [
    Plan("adsp", {"period": 0.2}, workers=4, steps=4, kill_workers=2, breaks=3, storm=0.03),
    Plan("fedasync", {"tau": 1}, workers=2, wire="int8", period=1.0, kill_workers=2, cuts=2,
         breaks=3, sleeps=2)])
def test_a_worker_that_missed_the_end_of_its_run_stays_out_of_the_next(plan):
    cluster = first_run(plan, "its fit has ended")
    assert all(codes == [0] for codes in cluster.codes.values())
    assert cluster.world.now < 150, "nobody waits longer than for a start"


def test_a_worker_that_joins_as_the_run_ends_stays_out_of_the_next():
    cluster = first_run(Plan("nbsync", {"normalize": True}, workers=2, steps=4, period=1.0,
                             kill_workers=1, storm=0.03, slow=0.02, evaluator="dies",
                             aimed=(("last push", "sleep"),)), "is too late for run", first=60)
    assert cluster.codes["server"] == [0]
    assert "ending this server" in "".join(cluster.said[-2:]), "and has begun no other run"
