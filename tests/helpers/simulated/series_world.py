"""Simulate a series of fits: one server, with workers that call `fit` k times.

The code that runs is the real one, from `prepare_server` to a worker's connection between two fits.
The model has one float for each example of each fit, and a step adds 1 to those of its examples. So
a run's final version shows which fits' examples were trained in it, and how often, whatever has
struck it: nothing is counted apart.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from simulated.cluster import Cluster
from simulated.evaluator import SimulatedEvaluator
from simulated.laws import Broken, Laws, state_in
from simulated.own_modules import own_modules
from simulated.plan import Plan
from wbsp.access import Access
from wbsp.core.permutation import examples
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker import loop
from wbsp.worker.share import Share

# The end of a fit: all have left, have the final version; `over` is saved, the last files are
# there; `ended` is written; the server waits for the next fit.
MOMENTS = "t0", "t1", "t2", "t3", "t4", "t5"
_STEPS = 30  # of a process, changes of its disk and messages, from a moment until it dies
_LEAVING, _GOODBYE, _WELCOME, _ACK, _HELD = (
    b"\xa7Leaving", b"\xa7Goodbye", b"\xa7Welcome", b"\xa3Ack", b"\xa4Held")
# Models and options that take each update whole, so that an example is 1 after each epoch.
WHOLE = {"fedasync": {"tau": 1, "alpha": 1.0, "staleness": "constant", "weight": "plain"},
         "ringmaster": {"r": 1000}}
# A standby has no folder of the fits before it took over.
_ELSEWHERE = "the folder with its final version is not here"
# A server's line when it has waited in vain for workers.
_IN_VAIN = "no worker was connected", "no other joined", "no reconnection", "no worker connected"
_ENDS = "is too late: the run has ended"
CONNECT = 120.0  # seconds: as users have it who give no connect_timeout


@dataclass
class SeriesPlan(Plan):
    """A series; `simulated.plan.Plan` describes the other fields.

    Attributes:
        fits: of each worker's script.
        pauses: seconds between two fits of a worker, as drawn.
        data: n, batch and epochs of each fit; None: each worker has its own, of `steps` steps.
        one_run: the server serves the first fit only.
        struck: (moment, fit, what, whom). what: "kill" within some steps of its process or some
            milliseconds, "sleep", "isolate", "full" (its disk, for 5 s). whom: "server" (the one
            that serves), "standby", "worker", "workers", or several, such as "server worker".
        reborn: seconds until a killed worker is started again.
    """

    sync: str = "fedasync"
    options: dict = field(default_factory=lambda: dict(WHOLE["fedasync"]))
    fits: int = 3
    pauses: tuple[float, ...] = (0.0, 0.3, 1.5)
    data: tuple[int, int, int] | None = (24, 4, 1)
    one_run: bool = False
    struck: tuple[tuple[str, int, str, str], ...] = ()
    reborn: tuple[float, float] = (0.05, 2.0)
    hours: float = 0.3
    lasts: float = 0.0  # seconds of a fit's last phase, in which an evaluator saves the model

    @property
    def faults(self):
        return super().faults | {"struck"} if self.struck else super().faults


    @property
    def each(self):
        """Floats of a fit: its examples, or the steps of all workers."""
        return self.data[0] if self.data is not None else self.workers * self.steps


class Replica:
    """A replica with one float for each example of each fit; a step of a fit adds 1 to those of its
    examples.

    If workers have their own data, each step of each worker is such an example.
    """

    def __init__(self, plan, fit):
        n = plan.each
        self.layout = [TensorSpec("examples", (n * plan.fits,))]
        self.x = self.anchor = np.zeros(n * plan.fits, np.float32)
        self._first = n * (fit - 1)

    def step(self, indices):
        self.x = self.x.copy()
        self.x[self._first + indices] += 1

    def read(self):
        return self.x

    def cut(self):
        update, self.anchor = self.x - self.anchor, self.x
        return update

    def adopt(self, vector, how):
        self.x = vector if how == "replace" else vector + (self.x - self.anchor)
        self.anchor = vector

    def bring(self, vector):
        return vector

    def put_back(self):
        return False

    def stepped(self):
        pass

    hold = stepped


class LongSave(SimulatedEvaluator):
    """An evaluator whose save of a fit's model takes long, while the server answers its workers."""

    def save(self):
        self._own.sleep(self._plan.lasts)
        super().save()


class Block(loop.Loop):
    """A loop whose end is always noticed."""

    def __init__(self):
        self._left = False

    @property
    def running(self):
        return not self._left

    def forget(self):
        self._left = True


class Signalled(BaseException):
    """Raised when a signal ends the process, after its worker has left."""


class Signals:
    """SIGTERM of a simulated process; see `wbsp.worker.signals`."""

    def __init__(self):
        self.caught, self.holds = None, False

    def hold(self, needed):
        self.caught, self.holds = None, True

    def release(self):
        self.holds = False

    def raise_again(self):
        caught, self.caught = self.caught, None
        if caught is not None:
            raise Signalled


class Worker(loop.Worker):
    """A worker whose secret is in no file, and whose signals are the plan's."""

    def __init__(self, script, process):
        cluster = script.cluster
        super().__init__(cluster.address, None if cluster.plan.chosen else script.index, "",
                         say=script.say, on=process.host)
        self.access = Access(cluster.address, token=cluster.token, timeout=CONNECT, patience=600.0,
                             share=False)

    def _begin(self):
        super()._begin()
        self._signals = Signals()


class Script:
    """A worker's script, over all its processes.

    Attributes:
        models: fit -> (run's id, final version), of each fit that it has trained to its end.
        passed: fits that had ended before it joined them.
        code: exit code of the last process.
    """

    def __init__(self, cluster, index, steps):
        self.cluster, self.index = cluster, index
        self.models, self.passed = {}, set()
        self.process = self.worker = self.code = self.given_up = None
        self.fit, self.lives = 0, 0
        self.leaving = False  # by a signal; until it is started again
        self.sent_off = False  # by a signal; until a server expects or welcomes its next process
        self.speed = cluster.rng.choice(cluster.plan.speeds)
        self.left_at, self.deaths = float("inf"), []

    @property
    def ended(self):
        return self.code is not None

    @property
    def runtime(self):
        return None if self.worker is None else self.worker.runtime

    def start(self):
        process = self.process = self.cluster.process(f"w{self.index}")
        self.lives += 1
        self.worker, self.fit, self.welcomed, self.leaving = None, 0, 0, False
        process.start(lambda: self.run(process))

    def run(self, process):
        """Run the script; return its exit code, or None if it is to be started again."""
        cluster, plan = self.cluster, self.cluster.plan
        try:
            self.worker = worker = Worker(self, process)
            for fit in range(1, plan.fits + 1):
                self.fit = fit
                self._train(worker, process, fit)
                if fit < plan.fits:
                    process.sleep(cluster.rng.choice(plan.pauses))
        except TransportError as error:
            if not process.alive:
                raise
            self.given_up = error
            cluster.say(f"w{self.index}: {error}")
            cluster.ends_at_exit.run()
            return 1
        except Signalled:  # by SIGTERM, which runs nothing at exit
            return None
        cluster.ends_at_exit.run()
        return 0

    def say(self, text):
        if "waiting for the server's next one" in text:
            self.sent_off = False
        self.cluster.say(text)

    def _train(self, worker, process, fit):
        """Run one `fit` of the script."""
        cluster, plan = self.cluster, self.cluster.plan
        replica, share = Replica(plan, fit), None
        if plan.data is not None:
            n, batch, epochs = plan.data
            share = Share(n, batch, on=process.host)
            share.wants(epochs)
        worker.share = share
        worker.enter(Block())
        with worker.leaving_on_error():
            _, welcome = worker.connect()
            cluster.laws.came(self, fit, welcome)
            self.welcomed, self.sent_off = fit, False
            if worker.passes or not worker.join(replica):
                self.passed.add(fit)
                worker.end(None)
                return
            for indices in self._batches(worker, share):
                worker.step_begins()
                process.sleep(self.speed * cluster.rng.lognormvariate(0, 0.3))
                replica.step(indices)
                worker.runtime.step_done(0 if share is not None else 1, 0.0)
                worker.stop_due()
            worker.finish(worker.interrupted)
            if worker.runtime.has_final:
                self.models[fit] = welcome.run.id, replica.x.copy()
                cluster.laws.has_final(self, fit)
        worker.end(None)

    def _batches(self, worker, share):
        """The examples of each step."""
        plan = self.cluster.plan
        if share is None:  # an earlier process of this worker may have made some
            steps = range(worker.runtime.steps_before, plan.steps)
            first = worker.index * plan.steps
            yield from itertools.takewhile(
                lambda _: not worker.stop_reason, (np.array([first + step]) for step in steps))
            return
        while not worker.stop_reason:
            taken = share.take()
            if taken.start == taken.stop:
                worker.connected()
            else:
                yield examples(taken.start, taken.stop, share.data.n, share.data.seed)

    def signal(self):
        """Send SIGTERM: within a fit the worker leaves in good order; elsewhere the process ends.
        """
        if self.worker._signals.holds:
            self.worker._signals.caught = 15
            self.worker.interrupt("interrupted by SIGTERM")
            self.leaving = self.sent_off = True
        else:
            self.kill()

    def forget_outdated(self):
        """Do nothing, because nothing is counted apart."""

    def kill(self):
        self.process.kill()
        self.comes_again()

    def comes_again(self):
        self.deaths.append(self.cluster.world.now)
        self.cluster.world.after(self.cluster.rng.uniform(*self.cluster.plan.reborn), self._again)

    def _again(self):
        if not self.process.alive:
            self.start()


class SeriesLaws(Laws):
    """The laws of a series, whatever strikes it:

    21. Each fit of a series has one model, in which each of its examples is once an epoch; what a
        server counts as not trained is missing.
    22. No other fit's examples are in it, and all its workers are in one run of one series.
    23. A series ends with the models of all its fits, or a process ends with an exit code that is
        not 0. Without faults that last, all end with 0. (Of a fit that a full disk had no room
        for, the workers alone have the model once both servers have died at its end.) A fit from
        which all workers were sent off by signals is the last one, unless one of them comes again
        before the last files are noted as written: its server waits for none of them once its
        data are trained, and refuses those that come later.
    24. No worker is refused while a fit follows, in several lines, or waited for in vain. (Where
        the server chooses indices, it cannot know whose place a process takes.)

    A server of one run that is started again behind its end serves a new series: processes of
    the old one are refused, and it may wait in vain.
    """

    def __init__(self, cluster):
        super().__init__(cluster)
        self.reached = set()  # (moment, fit)
        self._left, self._have = {}, {}  # fit -> workers that have left it, that have its version
        self.serves = "server"
        self._kept_settings = {}  # (machine, folder) -> run.json
        self._saved = set()  # fits of which a disk has had a version
        self.heard_ends = False
        self._later = set()  # runs of a later series than the first one

    @property
    def begun(self):
        return bool(self._states)

    def reach(self, moment, fit):
        if (moment, fit) not in self.reached:
            self.reached.add((moment, fit))
            self.cluster.moment(moment, fit)

    def came(self, script, fit, welcome):
        """Check which run a worker's fit is."""
        run, passes = welcome.run, welcome.passes
        self.cluster.say(f"w{script.index}: fit {fit} is run {run.id}, fit {run.fit}"
                         + " and passes" * bool(passes))
        if passes not in (0, fit):
            self.broken(22, f"worker {script.index}: its fit {fit} passes as fit {passes}")
        elif not passes and run.fit != fit:
            self.broken(22, f"worker {script.index}: its fit {fit} is fit {run.fit} of the "
                            "server's series")

    def has_final(self, script, fit):
        have = self._have.setdefault(fit, set())
        have.add(script.index)
        if len(have) == self.cluster.plan.workers:
            self.reach("t1", fit)

    def sent(self, process, frames):
        head = bytes(frames[0][1:12])
        if process.name[0] == "w" and head.startswith(_LEAVING):
            if m.decode(m.FromWorker, bytes(frames[0])).finished:
                fit = self.cluster.members[int(process.name[1:])].fit
                left = self._left.setdefault(fit, set())
                left.add(process.name)
                if len(left) == self.cluster.plan.workers:
                    self.reach("t0", fit)
        elif process.name in ("server", "standby") and head.startswith((_WELCOME, _ACK)):
            self.serves = process.name
        elif head.startswith(_HELD) and frames[0][6]:
            self._holders.add(process)

    def written(self, machine, path, data):
        fit = None
        folder = str(path.parent)
        if path.name == "run.json":
            run = json.loads(data)
            self._kept_settings[machine, folder] = run
            self.cluster.machines[machine].begun = True
            fit = run["fit"]
            # What has ended a standby notes, too.
            if (not run["ended"] and machine != self._epochs.setdefault(
                    (run["id"], run["epoch"]), machine)):
                self.broken(4, f"both servers serve run {run['id']} in epoch {run['epoch']}")
            if run["ended"]:
                self.reach("t4", fit)
            elif fit > 1:
                self.reach("t5", fit - 1)
        elif path.name in ("checkpoint.safetensors", "summary.json"):
            run = self._kept_settings.get((machine, folder))
            if path.name == "summary.json":
                if run is not None:
                    self.reach("t3", run["fit"])
            else:
                self._states[machine] = state = state_in(data)
                if run is not None:
                    self._saved.add(run["fit"])
                    if state["over"]:
                        self.reach("t2", run["fit"])

    def writes(self, process):
        pass

    def died(self, name):
        pass

    def has(self, member):
        return True

    def gave_up(self, code):
        pass

    def said(self, name, text):
        self._spoke[name] = self.cluster.world.now
        if "\n[" in text or not text.replace("\n", "").isprintable():
            self.broken(15, f"{name} prints {text!r}")
        if f" {CONNECT:g} s" in text and any(one in text for one in _IN_VAIN) and not (
                self.cluster.harsh or self.cluster.plan.chosen or self._is_behind_its_end
                or all(script.ended for script in self.cluster.members)):
            self.broken(24, f"{name} waits in vain: {text}")

    @property
    def _is_behind_its_end(self):
        return self.cluster.plan.one_run and ("t4", 1) in self.reached

    # At the end.

    def check(self, done):
        self._it_ends(done)
        ended = self._models()
        self._once(ended)
        self._finals(ended)
        self._all_or_a_code(ended)

    def _it_ends(self, done):
        if not done:
            raise Broken(9, "the series does not end")

    def _models(self):
        """fit -> run's id -> final version, of all runs that have ended."""
        found, newest = {}, {}
        for name in ("server", "standby"):
            machine = self.cluster.machines.get(name)
            for path, inode in sorted(machine.names.items()) if machine else ():
                folder, _, last = path.rpartition("/")
                if last != "run.json" or "/." in path:
                    continue
                run = json.loads(bytes(inode.data))
                there = machine.names.get(f"{folder}/checkpoint.safetensors")
                if run["ended"] and there is not None:
                    if "past" in run:
                        self._later.add(run["id"])
                    if run["epoch"] >= newest.get(run["id"], 0):
                        newest[run["id"]] = run["epoch"]
                        found.setdefault(run["fit"], {})[run["id"]] = vector_in(bytes(there.data))
        return found

    def _once(self, ended):
        plan = self.cluster.plan
        n, epochs = plan.each, 1 if plan.data is None else plan.data[2]
        for fit, runs in sorted(ended.items()):
            if len(runs.keys() - self._later) > 1:
                raise Broken(21, f"fit {fit} was trained as {len(runs)} runs: {sorted(runs)}")
            for run, vector in runs.items():
                blocks = vector.reshape(plan.fits, n)
                others = [other + 1 for other in range(plan.fits)
                          if other != fit - 1 and blocks[other].any()]
                if others:
                    raise Broken(22, f"examples of fit {others} are in run {run}, of fit {fit}")
                mine = blocks[fit - 1]
                if plan.data is None:
                    self._steps_once(fit, run, mine.reshape(plan.workers, -1))
                elif plan.options == WHOLE.get(plan.sync):
                    missing = int(np.maximum(epochs - mine, 0).sum())
                    if (mine > epochs).any() or missing not in (0, self._untrained(run)):
                        raise Broken(21, f"fit {fit}, run {run}: examples were trained "
                                         f"{Counter(mine.tolist())} times, for {epochs}")
                elif int((mine <= 0).sum()) not in (0, self._untrained(run)):
                    raise Broken(21, f"fit {fit}, run {run}: examples {np.flatnonzero(mine <= 0)} "
                                     "were never trained")

    def _steps_once(self, fit, run, mine):
        """Each step's push is in the model once; all of a worker that nothing has struck are, but
        for those of which a server says that they were lost with two others."""
        plan = self.cluster.plan
        if plan.options != WHOLE.get(plan.sync):
            return  # it may reject some
        if (mine > 1).any():
            raise Broken(21, f"fit {fit}, run {run}: steps were trained {Counter(mine.flat)} times")
        for script in self.cluster.members:
            lost = any(f" worker {script.index}: pushes " in line and " are lost: " in line
                       for line in self.cluster.said)
            if script.models.get(fit, ("",))[0] == run and not (
                    lost or script.deaths or self.cluster.harsh or plan.chosen):
                if not (mine[script.index] > 0).all():
                    raise Broken(21, f"fit {fit}, run {run}: worker {script.index} has trained "
                                     f"{plan.steps} steps, and the model has {mine[script.index]}")

    def _untrained(self, run):
        """Examples that the server of a run has counted as not trained."""
        said = [line for line in self.cluster.said if "not trained: " in line]
        return sum(int(line.split("not trained: ")[1].split()[0].replace(",", ""))
                   for line in said)

    def _finals(self, ended):
        for script in self.cluster.members:
            for fit, (run, vector) in script.models.items():
                if fit not in ended:
                    continue
                if run not in ended[fit]:
                    raise Broken(22, f"worker {script.index} has fit {fit} of run {run}, which "
                                     f"ended as {sorted(ended[fit])}")
                # On a full disk a version may be with the workers alone, and be lost.
                if not (self.cluster.plan.full or np.array_equal(vector, ended[fit][run])):
                    raise Broken(2, f"worker {script.index} has another final version of fit "
                                    f"{fit} than the disk")

    def _all_or_a_code(self, ended):
        cluster = self.cluster
        due = 1 if cluster.plan.one_run else cluster.plan.fits
        missing = [fit for fit in range(1, due + 1)
                   if fit not in ended and not self._is_with_workers_alone(fit)]
        codes = {name: codes[-1] for name, codes in cluster.codes.items()
                 if name in ("server", "standby")} | {
            f"w{script.index}": script.code for script in cluster.members}
        if missing and not any(codes.values()):
            raise Broken(23, f"fits {missing} are missing, and all processes ended with 0")
        for script in cluster.members:
            lacks = [fit for fit in missing if fit not in script.models]
            if script.code == 0 and lacks:
                raise Broken(23, f"worker {script.index} ended with 0; fits {lacks} are missing")
        if not cluster.harsh:
            if missing and not cluster.left_behind:
                raise Broken(23, f"fits {missing} are missing: exit codes {codes}")
            # A server that is started again once all is done waits for a new series.
            if not cluster.ended_well and ("t4", due) not in self.reached:
                raise Broken(23, f"no server ended well: {cluster.codes}")

    def _is_with_workers_alone(self, fit):
        """A full disk has taken nothing of a fit until its server and its standby died."""
        return fit not in self._saved and all(fit in script.models
                                              for script in self.cluster.members)

    def to_start_again(self, script):
        """Return why a refused worker is to be started again; None: it has given up.

        What it had trained was lost with the other processes that had it.
        """
        error = script.given_up
        if "were lost with ended processes" in str(error):
            return "work was lost"
        if "which was lost with its server" in str(error):
            script.models.pop(script.fit - 1, None)
            return "a last version was lost"
        return None

    def refused(self, script):
        """Check that a worker may give up."""
        cluster = self.cluster
        error = str(script.given_up)
        if "\n" in error:
            self.broken(24, f"worker {script.index} is refused in several lines: {error}")
        if cluster.harsh or (cluster.plan.one_run and (script.fit > 1 or script.deaths)):
            return
        if cluster.plan.standby and _ELSEWHERE in error:
            cluster.harsh = True
            return
        # It came once all had ended, or a signal had sent off who had not.
        if script.deaths and (cluster.ended_well or (_ENDS in error and (
                self._all_left or (script.sent_off and cluster.nobody_comes)))):
            return
        self.broken(24, f"worker {script.index} has given up its fit {script.fit}: {error}")

    @property
    def _all_left(self):
        """The newest run's server knows that the processes of all workers have ended for good."""
        newest = max(self._kept_settings.values(), key=lambda run: run["epoch"])
        return len(newest["gone"]) == self.cluster.plan.workers


def vector_in(data):
    """Return the version in the bytes of a checkpoint."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    low, high = header["00000/examples"]["data_offsets"]
    return np.frombuffer(data[8 + size + low:8 + size + high], "<f4")


class Series(Cluster):
    """A series of `plan`, with the faults at the times and moments that `seed` draws."""

    _judged_by, _member = SeriesLaws, Script

    def __init__(self, plan: SeriesPlan, seed, folder, loud=False):
        self._flags = {"one_run": plan.one_run}
        self._doomed = {}  # process -> the moment at which it was struck
        self._down = set()  # servers that are to be started again
        self.left_behind = False  # a server ended well, after signals had ended all its workers
        self._struck = [*plan.struck]
        self._filled = {}  # machine -> (share of its writes that fail else, times it was filled)
        super().__init__(plan, seed, folder, loud)
        self.harsh = bool(plan.full)  # a run may end before a disk has taken anything of it

    @property
    def over(self):
        return super().over and not self._down

    def start_server(self, name, resume=True):
        self._down.discard(name)
        super().start_server(name, resume)

    def dies(self, name):
        self._down.add(name)
        super().dies(name)

    def run(self):
        with own_modules(self) as self.ends_at_exit:
            return super().run()

    @property
    def nobody_comes(self):
        """Each worker's script has ended, or a signal has ended its process."""
        return all(script.ended or script.sent_off for script in self.members)

    @property
    def ended_well(self):
        return any(codes[-1] == 0 for name, codes in self.codes.items()
                   if name in ("server", "standby"))

    def start_evaluator(self, process, at):
        return LongSave(self, process, self.rng, at)

    def _draw_faults(self, horizon):
        plan = self.plan
        steps = plan.steps
        if plan.data is not None:
            n, batch, epochs = plan.data
            steps = n * epochs / batch / plan.workers
        fit = 0.1 + steps * max(plan.speeds)
        super()._draw_faults((fit + max(plan.pauses)) * plan.fits)

    def _ended(self, process, code):
        name = process.name
        if name[0] == "w":
            script = self.members[int(name[1:])]
            if script.process is not process:
                return
            if code is None:
                script.comes_again()
                return
            self.say(f"{name}: ended with exit code {code}")
            if code and (why := self.laws.to_start_again(script)):  # as a supervisor does
                self.notes[why] += 1
                script.comes_again()
                return
            script.code = code
            if code:
                self.laws.refused(script)
        elif name in ("server", "standby"):
            self.ends[name] = self.world.now
            self.say(f"{name}: ended with exit code {code}")
            self.codes.setdefault(name, []).append(code)
            self.laws.ended(name, code)
            if not code and self.nobody_comes:
                self.left_behind = True
            if code and not self.over:  # as a supervisor of processes does
                self._down.add(name)
                self.world.after(2.0, lambda: self.starts_again(name))
        elif name[0] == "s" and name[1:].isdigit() and not self.over:
            self.world.after(1.0, lambda: self.start_shard(int(name[1:])))

    # Faults.

    def phase(self, name, process):
        pass

    def _may_die(self, name):
        return True

    def _goes(self):
        script = self.rng.choice(self.members)
        if script.ended or script.runtime is None or not script.process.alive or script.leaving:
            return None
        return script

    def kill_worker(self):
        if (script := self._goes()) is not None:
            self.say(f"--- kill w{script.index}")
            self.notes["kill_workers"] += 1
            script.kill()

    def leave(self):
        if (script := self._goes()) is not None:
            self.say(f"--- SIGTERM to w{script.index}")
            self.notes["leaves"] += 1
            script.signal()

    def moment(self, moment, fit):
        """Note that the series has reached a moment: faults that are planned for it strike."""
        self.say(f"--- {moment} of fit {fit}")
        for one in [*self._struck]:
            if one[:2] == (moment, fit):
                self._struck.remove(one)
                self._hit(*one)

    def _hit(self, moment, fit, what, whom):
        serves = self.laws.serves
        names = {"server": serves, "standby": "standby" if serves == "server" else "server",
                 "worker": f"w{self.rng.randrange(self.plan.workers)}"}
        for one in whom.split():
            for name in ([f"w{script.index}" for script in self.members] if one == "workers"
                         else [names[one]]):
                if name not in self.processes:
                    continue
                process = self.processes[name]
                if what == "kill" and self.rng.random() < 0.5 and name[0] != "w":
                    self.world.doomed[process] = self.rng.randrange(_STEPS)
                    self._doomed[process] = moment
                    continue
                after = self.rng.choice([0.0, 1e-5, 0.001, 0.005, 0.02, 0.1])
                self.world.after(after, lambda name=name: self._does(moment, what, name))

    def _dies_taking_over(self, process):
        if self.processes[process.name] is process and process.alive:
            self._does(self._doomed[process], "kill", process.name)

    def _does(self, moment, what, name):
        process = self.processes[name]
        if not process.alive:
            return
        if name[0] == "w":
            script = self.members[int(name[1:])]
            if script.ended:
                return
            self._struck_at(moment, what, "worker")
            if what == "kill":
                self.say(f"--- kill {name}")
                script.kill()
            elif what == "leave":
                self.say(f"--- SIGTERM to {name}")
                script.signal()
            else:
                self.sleep(name) if what == "sleep" else self.isolate(name)
        elif what == "kill":
            if not self.machines[name].full:  # else it may hold what no disk has
                self._struck_at(moment, what, name)
                self.dies(name)
        elif what == "full":
            self._struck_at(moment, what, name)
            self._fill(name)
        else:
            self._struck_at(moment, what, name)
            self.sleep(name) if what == "sleep" else self.isolate(name)

    def _struck_at(self, moment, what, whom):
        self.notes[f"{what} {whom}"] += 1
        self.notes[f"{'death' if what == 'kill' else what} at {moment}"] += 1

    def _fill(self, name):
        machine = self.machines[name]
        self.say(f"--- the disk of {name} is full")
        before, times = self._filled.pop(name, (machine.full, 0))
        self._filled[name] = before, times + 1
        machine.full = 1.0

        def again():
            before, times = self._filled.pop(name)
            if times > 1:  # it was filled once more meanwhile
                self._filled[name] = before, times - 1
                return
            machine.full = before
            self.say(f"--- the disk of {name} has room")
        self.world.after(5.0, again)


def drawn(sync: str, seed: int) -> SeriesPlan:
    """Return a plan as the seed draws it."""
    draw = random.Random(f"series {sync} {seed}")

    def some(chance, most):
        return draw.randint(1, most) if draw.random() < chance else 0
    whole = draw.choice([None, *WHOLE])
    if whole is not None:
        sync = whole
    standby = draw.random() < 0.4
    plan = SeriesPlan(sync, WHOLE.get(sync, {}), workers=draw.choice([1, 2, 2, 3]),
                      fits=draw.choice([2, 3, 3, 4]), standby=standby,
                      period=draw.choice([0.1, 0.2, 1.0]),
                      data=(draw.choice([8, 24, 45]), draw.choice([4, 7]), draw.choice([1, 1, 2])))
    plan.shards = 0 if standby or draw.random() < 0.85 else 2
    plan.power = draw.random() < 0.2
    plan.slow = draw.choice([0.0, 0.002, 0.02, 0.3]) if draw.random() < 0.5 else 0.002
    if draw.random() < 0.75:
        whom = ["server", "server", "worker", "server worker", "server workers", "workers",
                *["standby", "server standby", "server"] * standby]
        plan.struck = tuple((draw.choice(MOMENTS), draw.randint(1, plan.fits),
                             draw.choice(["kill", "kill", "kill", "sleep", "full"]),
                             draw.choice(whom)) for _ in range(draw.choice([1, 1, 2, 3])))
        plan.struck = tuple(one for one in plan.struck
                            if one[2] != "full" or "worker" not in one[3])
    plan.kills, plan.kill_workers, plan.leaves = some(0.2, 2), some(0.3, 3), some(0.2, 2)
    plan.kill_shards = some(0.5, 2) if plan.shards else 0
    plan.cuts, plan.breaks, plan.sleeps = some(0.15, 2), some(0.3, 4), some(0.2, 2)
    plan.full = 0.1 if draw.random() < 0.1 else 0.0
    plan.drift = draw.choice([0.001, 0.02]) if draw.random() < 0.1 else 0.0
    plan.one_run = draw.random() < 0.05
    plan.chosen = not plan.cuts and draw.random() < 0.2
    if draw.random() < 0.2:
        plan.evaluator, plan.lasts = "works", draw.choice([0.5, 2.0, 8.0])
    if draw.random() < 0.2:
        plan.data, plan.steps = None, draw.choice([2, 5])
    return plan
