"""Runs of real processes on shared data, in which any of these is killed: each example is in the
model once an epoch.

The check is from outside: the model has one float per example, and the test records each worker's
cuts and which of them a server has accepted.

`WBSP_SHARED_RUNS=200` makes 200 runs, for a long night; `WBSP_KILLS_SEED` chooses others.
"""

import itertools
import json
import os
import random
import signal

import forked
import numpy as np
import pytest
from jobs import ROOT, until
from one_an_example import dense
from server_and_standby import OFTEN, ServerAndStandby
from sharing_worker import Plan

from wbsp.runlog.reader import read_run
from wbsp.sync import MODELS
from wbsp.testing.once import Pushes, assert_each

RUNS = int(os.environ.get("WBSP_SHARED_RUNS", "1"))
SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))
WORKER = ROOT / "tests/helpers/sharing_worker.py"
SYNC = sorted(MODELS, key=lambda sync: sync != "ksync")  # which starves a slow worker, first
N, BATCH, EPOCHS = 96, 4, 3
OPTIONS = {"adsp": ["--sync_option=period=0.2"], "lbbsp": [f"--sync_option=batch={BATCH}"]}
SECONDS = 0.01, 0.1  # of a step, of each worker
STRIKES = "server", "server", "standby", "kill 0", "kill 1", "end 0", "end 1"


def pushes_of(path):
    """One worker's pushes and their answers, over all its processes, by its notes."""
    pushes, first = Pushes(path.stem), 0
    for line in path.read_text().splitlines():
        what, seq, *rest = json.loads(line)
        if what == "begins":  # what an earlier process cut behind that is no more
            first = seq
            for known in (pushes.made, pushes.weights):
                for later in [later for later in known if later >= seq]:
                    del known[later]
        elif what == "cut":
            pushes.made[seq] = dense(N, *rest)
        elif what == "told":
            pushes.weights[seq] = rest[0]
        else:
            pushes.weights |= {push: 0.0 for push in pushes.weights if push >= max(seq, first)}
    return pushes


class SharedRun(ServerAndStandby):
    """Workers of unequal speed, and their faults."""

    def __init__(self, jobs, sync, standby):
        super().__init__(jobs, sync, standby=standby, flags=(OFTEN, *OPTIONS.get(sync, ())))
        self.lives = []  # all processes of workers
        self.killed = set()  # workers, and "server" for one that served
        self.workers = [self.start_worker(index) for index in range(2)]
        for worker in self.workers:
            worker.until("^begins")

    def start_worker(self, index):
        """They train three quarters of the run, and the rest at a signal."""
        plan = Plan(",".join(self.addresses), index, str(self.jobs.folder), N, BATCH, EPOCHS,
                    SECONDS[index], hold=N * EPOCHS * 3 // 4)
        self.lives.append(self.jobs.start(f"worker{index}", WORKER, json.dumps(vars(plan)),
                                          fork=forked.WBSP))
        return self.lives[-1]

    def steps(self):
        return sum(len(job.find("^step")) for job in self.lives)

    def stand(self):
        """True if the workers have trained their part before the signal."""
        hold = [worker.find("^holds") for worker in self.workers]
        return any(hold) and all(held or not worker.find("^begins")  # it waits for a version
                                 for held, worker in zip(hold, self.workers, strict=True))

    def strike(self, what):
        """Kill a process, or let a worker leave, and restart it; return when all continue."""
        if what in ("server", "standby"):
            if self.standby is not None:
                until(lambda: self.held({}) or self.stand(),
                      "who does not serve to hold what is there")
                if not self.held({}):
                    return  # the next version, and a snapshot of it, come when the workers continue
            told = [len(worker.find("connected again")) for worker in self.workers]
            serves = self.serving is getattr(self, what)
            self.killed |= {"server"} if serves else set()
            self.kill(what)
            for worker, before in zip(self.workers, told, strict=True) if serves else ():
                until(lambda one=worker, least=before: len(one.find("connected again")) > least,
                      "a worker to continue with another server")
            return
        index = int(what[-1])
        if what.startswith("kill"):
            self.killed.add(index)
            self.workers[index].kill()
        else:
            self.workers[index].signal(signal.SIGTERM)
            assert self.workers[index].ends() == 128 + signal.SIGTERM
        self.workers[index].was_clean()
        self.workers[index] = self.start_worker(index)
        self.workers[index].until("^is a member")  # it may begin when the other one pushes

    def trained(self):
        """How often each example is in the model, by the accepted pushes: [N].

        A killed worker may not have received its answer; then a server's log has it. If the server
        was killed as well, within a second of its decision, no file has it: then these pushes are
        in the model if the examples are right with them.
        """
        events = [event for path in (self.jobs.folder / "runs").rglob("events.jsonl")
                  for event in read_run(path.parent).events]
        logged = {(event["worker"], event["seq"]): event.get("weight", 0.0)
                  for kind in ("reject", "accept") for event in events if event["kind"] == kind}
        lost = {(event["worker"], seq) for event in events if event["kind"] == "lost"
                for seq in range(event["first"], event["last"] + 1)}
        total, unknown = np.zeros(N), []
        for index in range(2):
            pushes = pushes_of(self.jobs.folder / f"notes-{index}.jsonl")
            told = {seq: pushes.weights.get(seq, logged.get((index, seq))) for seq in pushes.made
                    if (index, seq) not in lost}
            pushes.weights = {seq: weight for seq, weight in told.items() if weight is not None}
            total += pushes.plain
            if self.killed >= {index, "server"}:
                unknown += [pushes.made[seq] for seq in told.keys() - pushes.weights.keys()]
        for some in itertools.product((0, 1), repeat=len(unknown)):
            whole = np.round(total + sum(map(np.multiply, some, unknown)))
            if (whole == EPOCHS).all():
                return whole
        return np.round(total)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", range(RUNS))
def test_each_example_counts_once_an_epoch_under_any_kill(jobs, number):
    sync = SYNC[number % len(SYNC)]
    draw = random.Random(f"{sync} {number} {SEED}")
    standby = draw.random() < 0.4
    strikes = draw.choices([one for one in STRIKES if standby or one != "standby"],
                           k=draw.randint(1, 4))
    run = SharedRun(jobs, sync, standby)
    for steps, strike in zip(sorted(draw.choices(range(2, 36), k=4)), strikes, strict=False):
        until(lambda least=steps: run.steps() >= least, "more steps")
        run.strike(strike)
    run.go()
    for job in (*run.workers, run.serving):
        job.ends_well()
    assert_each(run.trained(), N, EPOCHS)
    finals = [np.load(jobs.folder / f"final-{index}.npy") for index in range(2)]
    assert finals[0].tobytes() == finals[1].tobytes() and (finals[0] > 0).all()
