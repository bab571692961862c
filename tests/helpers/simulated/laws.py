"""The laws of every run under any fault, each with a checker.

1.  Each push is answered once, with one weight. The final version is W_0 plus the sum of all. A row
    of a table that no step has touched does not move, under any format and outer step.
2.  All workers end with the same version: its number and its content.
3.  A version number has one content.
4.  An epoch has one server.
5.  A vector in transit is not written to: `simulated.network.Pipe`. Nor is shared memory, while a
    process reads it or is about to.
6.  No thread waits while it holds a lock: `simulated.threads.Lock`.
7.  No correct peer sends a malformed message, by the lines of servers.
8.  No thread ends by an exception: `simulated.world.Process.start`. No server continues without a
    part of it that has failed.
9.  Every run ends, once faults do, and every worker has the final version.
10. A push that a server has reported as durable survives any single death: it is in the server's
    file, or at the standby, if one follows.
11. Only the server that most workers follow accepts pushes. A server that is elected while another
    may serve needs more than half of the processes in the state that it continues from, and they
    follow it, or did when they ended; later processes of a worker have no vote. A server that stays
    without its silent standby needs half of them.
12. Memory is not shared for longer than it is used.
13. Every version is finite.
14. A wrongly started process prints the reason in one line, and ends; the run continues.
15. A peer's text is printed in one line, without control characters, and cannot fill a log.
16. A run whose evaluator works ends with `model.keras`.
17. At the end each example of shared data is once an epoch in accepted pushes, except for examples
    that were given up, because three pushes with them were not finite. A server that has lost
    examples together with a worker's process, after all had finished, counts them as not trained.
18. Two living processes never hold one index: `Member.run`, where the server chooses it.
19. Each step counts once. A step without an example counts in no number of examples, and in no
    mean loss.
20. A reader or a validating worker reads a version with the bytes that workers have. A reader's
    versions rise, and its last one is the final version. One worker at a time validates an epoch.
21. Results that the server has not refused are in its log, once.
25. A server or standby that ends with an exit code other than 0 prints the reason. (22 to 24 are
    the laws of a series: `simulated.series_world`.)
26. Where nothing strikes, a site hears the newest results of an epoch that the server above had
    before its end: `simulated.site_world`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import struct
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from integer_replica import UNIT, of_rows, pattern

from simulated.lent import Lent
from simulated.reader import evaluations
from wbsp.core.store import UNSENT
from wbsp.core.work.strikes import STRIKES
from wbsp.ps.checkpoint.format import _OUTER
from wbsp.ps.series import SERVER_STEP
from wbsp.runlog.events import EventLog
from wbsp.testing.once import NotOnce, Pushes, differences, in_spans
from wbsp.timeouts import REATTACH
from wbsp.wire.messages import codec as m

_ACK, _FINAL, _REATTACHED, _HELD, _COPY = (
    b"\xa3Ack", b"\xa5Final", b"\xaaReattached", b"\xa4Held", b"\xa4Copy")

_HEARS = 5.0  # seconds in which a process learns what it has done wrong
_SPOKE = 3.0  # seconds from a process's last line to its end; a linger of its sockets is in it
_REFUSED = 40  # lines of a server about those that it refuses, beside one or two a second

# Why a worker may give up a run in which something lasts longer than others wait for it.
_EXCUSES = ("too late", "the run has ended", "lost the server", "waited ", "was given up: ",
            "no server answered", "sent no Joined",
            "another process has taken over this index", "have ended without", "serves another run",
            "and this server's run is")  # its own has ended without it

# A server's answer to a worker whose run died with both processes that had a version of it.
_NO_CHECKPOINT = "this server has no checkpoint to resume from"
# A server's message to its workers on a disk that stays full.
_NOT_SAVED = "the first version could not be saved"


class Broken(AssertionError):
    """A law is broken; `law` is its number."""

    def __init__(self, law, text):
        super().__init__(f"law {law}: {text}")
        self.law = law


@contextlib.contextmanager
def law(number):
    """A push or example that does not count exactly once breaks this law."""
    try:
        yield
    except NotOnce as error:
        raise Broken(number, str(error)) from None


def _logs(machine):
    return [bytes(inode.data) for path, inode in machine.names.items()
            if path.endswith("events.jsonl")]


def events_on(machine):
    """Yield the events in all logs on a machine's disk."""
    for log in _logs(machine):
        for line in log.splitlines():
            with contextlib.suppress(ValueError):  # torn by a loss of power
                yield json.loads(line)


def standing_on(machine):
    """Return the events in all logs on a machine's disk, without those that a resume undid."""
    standing = []
    with tempfile.TemporaryDirectory() as folder:  # EventLog reads the real disk
        copy = Path(folder, "events.jsonl")
        for log in _logs(machine):
            copy.write_bytes(log)
            found = EventLog(copy)
            found.read()
            standing += [event for _, event in found.others]
    return standing


def lost_pushes(worker, machines, lines):
    """Return the numbers of a worker's pushes that servers have reported as lost.

    By their lines as well: the log's end is lost with a machine's power. A report that a resume has
    undone does not count: the number is that of another push since.

    Args:
        worker: its index.
        machines: of the servers.
        lines: of their consoles.
    """
    def reported(by):
        return {seq for machine in machines for event in by(machine)
                if event["kind"] == "lost" and event.get("worker") == worker
                for seq in range(event["first"], event["last"] + 1)}
    line = re.compile(rf" worker {worker}: pushes (\d+) to (\d+) are lost")
    said = {seq for found in map(line.search, lines) if found
            for seq in range(int(found[1]), int(found[2]) + 1)}
    return reported(standing_on) | (said - reported(events_on))


def state_in(data):
    """The state in the bytes of a checkpoint."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8:8 + size])["__metadata__"]["wbsp"])


def checkpoints_on(machine):
    """(path, file) of each run's checkpoint on this machine's disk; the newest run is the last."""
    return [(path, inode) for path, inode in sorted(machine.names.items())
            if path.endswith("/checkpoint.safetensors") and "/." not in path]


def tensor_in(data, name):
    """A vector in the bytes of a checkpoint, float64 [size]; 0: it has none of this name."""
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + size]).get(name)
    if entry is None:
        return 0.0
    start, stop = entry["data_offsets"]
    return np.frombuffer(data[8 + size + start:8 + size + stop], "<f4").astype(np.float64)


class Laws:
    """Observations of a run: what its processes write and send, and what its workers receive."""

    def __init__(self, cluster):
        self.cluster = cluster
        self._epochs, self._versions = {}, {}  # epoch -> machine; version -> bytes -> who, when
        self._newest = {}  # worker -> when it had a version last
        self._settings, self._states = {}, {}  # machine -> run.json, state of the checkpoint
        self._serving, self._taken = {}, set()  # process -> its socket, of who answers; epochs
        self._ended_by = {}  # machine -> its process that has served a run to its end
        self.farewell = self._rendezvous = self._begun = False
        self._holders, self._unsaved, self._taking = set(), set(), set()
        self._marks = {}  # process that serves -> mark of what would survive it
        self._copied = {}  # number of the newest copy with it -> its process, mark, what it is of
        # Server's process -> epoch and voters of its newest copy that its standby has held.
        self._held = {}
        self._last_unsaved = False  # the final version was handed out, and is on no disk as that
        # Of a server, and of its standby before that has saved its copy, or had most workers back.
        self.two_deaths = False
        self._elected = {}  # who was elected by votes -> the processes that followed it then
        self.lost_all = False  # a server has begun anew, as it found no version anywhere
        self._begun_anew = False  # although workers had one
        self._validations = []  # (epoch, begin, end, member, life)
        self._of_epochs = []  # (number, values) of the versions that workers have validated
        self._spoke = {}  # process -> when it printed its last line
        self.missing = []  # of each server's end, the workers that it names as missing
        cluster.world.on_send, cluster.world.on_disk = self.sent, self.writes
        self.lent = Lent(self, cluster.world) if cluster.plan.memory else None

    @property
    def begun(self):
        return bool(self._states)

    def has(self, member):
        """Every checkpoint has what earlier processes of this worker pushed: they keep nothing."""
        return member.joined is not None and all(
            int(state["next_seq"].get(str(member.index), 0)) >= member.joined
            for state in self._states.values())

    def _was_brief(self, name):
        """This server took over behind a death, and has died before most workers were back."""
        epoch = self._settings.get(name, {}).get("epoch", 0)
        return epoch > 1 and 2 * len(self._followers(epoch)) < len(self.cluster.members)

    def alone(self, name):
        """It has served without a standby since that was lost: its disk has the durable state."""
        listeners = self.cluster.world.listeners.values()
        settings = self._settings.get(name, {})
        serves = any(process.machine == name and socket in listeners
                     for process, socket in self._serving.items())
        return (serves and settings.get("epoch", 0) > 1 and not settings.get("standby")
                and name not in self._unsaved)

    @property
    def serving(self):
        """Name of the server that answers workers; none does: of the first one."""
        listeners = self.cluster.world.listeners.values()
        return next((process.name for process, socket in self._serving.items()
                     if process.alive and socket in listeners), "server")

    @property
    def held_by_standby(self):
        """A server serves, and its standby holds what it does."""
        listeners = self.cluster.world.listeners.values()
        holds = any(process.alive for process in self._holders - self._serving.keys())
        if holds and self.cluster.last_death < 0:
            return True
        return holds and any(
            socket in listeners and self._settings[process.machine].get("standby")
            for process, socket in self._serving.items())

    @property
    def settings(self):
        """The run's settings, of its latest epoch; {} before the first."""
        return max(self._settings.values(), key=lambda one: one["epoch"], default={})

    def broken(self, law, text):
        """Not only raised: what runs may catch it."""
        error = Broken(law, text)
        self.cluster.world.failures.append(error)
        raise error

    # Observations.

    def written(self, machine, path, data):
        """A file has taken its name."""
        cluster = self.cluster
        if machine in cluster.wrong:
            return
        if path.name == "run.json":
            settings = json.loads(data)
            self._settings[machine] = settings
            cluster.machines[machine].begun = True
            self._unsaved.add(machine)
            self._survives(machine)
            run = settings.get("id"), settings["epoch"]
            if not settings.get("ended"):  # else a standby may keep what another one served
                self._take_epoch(settings["epoch"], machine, settings.get("id"))
            elif self._epochs.get(run) == machine:
                self._ended_by[machine] = cluster.processes[machine]
        elif path.name == "checkpoint.safetensors":
            state = state_in(data)
            self._states[machine] = state
            self._unsaved.discard(machine)
            self._survives(machine)
            if not self._begun:
                self._begun = True
                cluster.phase("begin", cluster.processes[machine])

    def _survives(self, machine):
        """A server's file survives the server, unless a standby would continue from its own copy.
        """
        process = self.cluster.processes[machine]
        if process in self._marks and not self._settings[machine].get("standby"):
            mark = self._states[machine]["mark"] if machine in self._states else 0
            self._marks[process] = max(self._marks[process], mark)

    def writes(self, process):
        """Who holds a copy, and waits, writes nothing until it takes over."""
        if process in self._holders and process not in self._taking:
            self._taking.add(process)
            self.cluster.phase("take-over", process)

    def _take_epoch(self, epoch, machine, run):
        if self.lent is not None and (run, epoch) not in self._epochs:
            self.lent.alone(machine)
        one = self._epochs.setdefault((run, epoch), machine)
        if one != machine:
            self.broken(4, f"{one} and {machine} serve in epoch {epoch}")
        cluster = self.cluster
        world = cluster.world
        others = [process for process, socket in self._serving.items()
                  if process.machine != machine and process.asleep_until <= world.now
                  and socket in world.listeners.values()]
        followers = self._elected.pop(machine, None)
        if epoch not in self._taken:
            if followers is not None:
                self._chosen(machine, epoch, followers)
            elif others and self._ended_by.get(machine) is not cluster.processes[machine]:
                self._followed(machine, epoch, others[0])
        self._taken.add(epoch)

    def _followers(self, epoch):
        """The workers' processes, ended ones among them, that know or have promised this epoch, or
        a later one."""
        return {(member.index, session.joined.owner)
                for member in self.cluster.members for session in member.sessions
                if session.member and max(session.epoch, session.promised) >= epoch}

    def _epoch_of(self, machine):
        return self._settings[machine]["epoch"]

    def _voters(self, state):
        """The workers' processes in this state; "": of a worker that was no member yet."""
        return {(worker, state["places"].get(str(worker), {"owner": ""})["owner"])
                for worker in (range(self.cluster.plan.workers) if state["awaited"] is None
                               else state["awaited"])}

    def _chosen(self, machine, epoch, followers):
        """Law 11, of a server that is elected: most processes in its state have followed it."""
        voters = self._voters(self._states[machine])
        mine = len(followers & voters)
        if 2 * mine <= len(voters):
            self.broken(11, f"{machine} is elected in epoch {epoch}, and {mine} of {len(voters)} "
                         "processes in its state follow it")

    def _stays(self, process):
        """Law 11, of a server that was elected in place of its silent standby: half of the
        processes in the copy there follow it, or cannot follow that.

        A standby discards a copy of an epoch before the one in which it is silent.
        """
        epoch = self._epoch_of(process.machine)
        since, voters = self._held.get(process, (0, set()))
        if since != epoch - SERVER_STEP:
            return
        mine = len(voters & self._followers(epoch)) + sum(owner == "" for _, owner in voters)
        if 2 * mine < len(voters):
            self.broken(11, f"{process.name} stays in epoch {epoch}, and {mine} of {len(voters)} "
                         "processes in its standby's copy follow it")

    def _followed(self, machine, epoch, other):
        """Law 11, for a server that continues while another one serves."""
        followers = self._followers(self._epoch_of(other.machine) + 1)
        workers = [member.session for member in self.cluster.members if member.session is not None]
        mine = sum(session.member and (session.hello.worker, session.joined.owner) in followers
                   for session in workers)
        if 2 * mine < len(workers):
            self.broken(11, f"{machine} continues in epoch {epoch} beside {other.name}, which "
                         f"serves, and {mine} of {len(workers)} workers follow it")

    def sent(self, process, frames):
        if process.name[0] in "xm":  # a stranger, or a mistake
            return
        head = bytes(frames[0][1:12])
        if head.startswith(_ACK):
            self._acked(process, frames)
        elif head.startswith(_FINAL) and not self.farewell:
            self.farewell = True
            version = m.decode(m.FromServer, bytes(frames[0])).version
            there = self._states.get(process.machine, {"version": 0})["version"]
            if version > there and not self.cluster.plan.full:
                self.broken(10, f"workers are told of the final version {version}, and the disk "
                             f"has {there}")
            ended = self._states.get(process.machine, {}).get("ended", False)
            self._last_unsaved = bool(self.cluster.plan.full) and not (
                self._settings.get(process.machine, {}).get("standby")
                or (ended and version <= there))
            self.cluster.phase("farewell", process)
        elif head.startswith(_COPY):
            copy = m.decode(m.FromServer, bytes(frames[0]))
            state = json.loads(copy.state)["state"]
            self._copied[copy.number] = process, state["mark"], (
                self._epoch_of(process.machine), self._voters(state))
        if head.startswith(_HELD):
            held = m.decode(m.FromWorker, bytes(frames[0])).number
            if held in self._copied:
                server, mark, self._held[server] = self._copied[held]
                self._marks[server] = max(self._marks.get(server, 0), mark)
        if head.startswith(_HELD) and frames[0][6] and process not in self._holders:
            self._holders.add(process)  # of a copy, since it was started
            self.cluster.phase("held", process)
        elif head.startswith(_REATTACHED) and not self._rendezvous:
            self._rendezvous = True
            self.cluster.phase("rendezvous", process)
        if self.lent is not None and head.startswith((_HELD, _COPY)):
            self.lent.copied(process, m.decode(
                m.FromWorker if head.startswith(_HELD) else m.FromServer, bytes(frames[0])))

    def _acked(self, process, frames):
        """A server answers a push."""
        listeners = self.cluster.world.listeners
        self._serving[process] = next(
            (one for one in listeners.values() if one.process is process), None)
        if state := self._states.get(process.machine):
            durable = m.decode(m.FromServer, bytes(frames[0])).durable
            safe = self._marks.setdefault(process, state["mark"])
            if durable > safe:
                self.broken(10, f"what was decided before mark {durable} is said to be durable; "
                             f"what would survive {process.name} is of mark {safe}")

    def fetched(self, member, version, vector):
        cluster = self.cluster
        if cluster.plan.wild and not np.isfinite(vector).all():
            self.broken(13, f"version {version} is not finite")
        self._newest[member.index] = cluster.world.now
        final = member.runtime is not None and member.runtime.agent.finished
        seen = self._versions.setdefault((final, version), {})
        seen.setdefault(vector.tobytes(), []).append(
            (cluster.world.now, member.index, member.lives))

    def gave_up(self, code):
        """A server has ended by itself in mid-run; one that another has taken over from may."""
        plan = self.cluster.plan
        if plan.calm or not (plan.standby or plan.full or self.cluster.harsh):
            self.broken(9, f"the server ended with exit code {code}")

    def does_not_begin(self, name, error):
        """After any end of a process the same command resumes. It has printed its reason."""
        self._spoke[name] = self.cluster.world.now
        if isinstance(error, ValueError):
            self.broken(9, f"{name} does not begin: {error}")

    def died(self, name):
        """A server has died: law 10, with the remaining files."""
        cluster = self.cluster
        if not cluster.plan.standby:
            self._safe(cluster.machines[name])
            return
        # pushes that were durable only at its standby are lost with both
        mark = 0
        with contextlib.suppress(ValueError, KeyError, struct.error):
            for _, inode in checkpoints_on(cluster.machines[name])[-1:]:
                mark = state_in(bytes(inode.data))["mark"]
        held = any(one.alive and one in self._holders for one in cluster.servers
                   if one.name != name)
        self.two_deaths |= not held and mark < self._marks.get(cluster.processes[name], 0)

    def died_taking_over(self, name):
        """What is left of it is what the next process finds: all of the copy, or nothing."""
        machine = self.cluster.machines[name]
        state, self._states[name] = self._states.get(name), None
        for path, inode in checkpoints_on(machine):
            self._states[name] = state_in(bytes(inode.data))
            run = machine.names.get(path.replace("checkpoint.safetensors", "run.json"))
            self._settings[name] = json.loads(bytes(run.data)) if run else {}
        if self._states[name] is None:
            del self._states[name]
            self._settings.pop(name, None)
        self.two_deaths |= self._states.get(name) != state or state is None

    def _safe(self, machine):
        paths = [path for path in machine.names if path.endswith("checkpoint.safetensors")]
        if not paths:
            return
        try:
            state = state_in(bytes(machine.names[max(paths)].data))
        except (ValueError, KeyError, struct.error):
            self.broken(10, "the newest checkpoint is torn")
        for member in self.cluster.members:
            session = member.session
            if member.ended or session is None or not session.member:
                continue
            there = int(state["next_seq"].get(str(member.index), 0))
            if session.kept.durable > there and member.runtime is not None:
                self.broken(10, f"worker {member.index} was told that its pushes below "
                             f"{session.kept.durable} are durable; below {there} are")

    # At the end.

    def check(self, done):
        self._it_ends(done)
        self._workers_ended()
        self._one_final()
        self._conserved()
        self._one_content()
        self._examples_are_counted()
        self._mistakes_are_said()
        self._few_lines()
        self._model_is_there()
        self._read_is_what_is()

    def _it_ends(self, done):
        if not done:
            cluster = self.cluster
            raise Broken(14 if cluster.over and any(
                cluster.processes[name].alive for name in cluster.wrong) else 9,
                "the run does not end")

    def _workers_ended(self):
        for member in self.cluster.members:
            # Both processes with the first version have died: a later one has nothing to resume.
            lost = self.lost_all and member.given_up is not None and (
                "no connection for " in member.given_up
                or (self.cluster.plan.standby and _NO_CHECKPOINT in member.given_up))
            if member.given_up is not None and not (member.late or lost) and not (
                    self.cluster.plan.full and _NOT_SAVED in member.given_up):
                raise Broken(9, f"worker {member.index} has given up: {member.given_up}")
            if member.given_up is not None and self.cluster.harsh and not any(
                    excuse in member.given_up for excuse in (*_EXCUSES, _NO_CHECKPOINT)):
                raise Broken(9, f"worker {member.index} has given up, although it may go on: "
                             f"{member.given_up}")

    def _one_final(self):
        def finals(of):
            return {(member.final.tobytes(), member.final_version)
                    for member in self.cluster.members if member.final is not None and of(member)}
        # A server has ended the run, without workers that continued with its standby.
        for missing in self.missing:
            if max(len(finals(lambda one, of=missing: one.index in of)),
                   len(finals(lambda one, of=missing: one.index not in of))) < 2:
                return
        finals = finals(lambda one: True)
        # No disk took the last version: a server that is started again does not know of the end.
        if len(finals) > 1 and not self._last_unsaved:
            raise Broken(2, "workers end with different versions: "
                         f"{sorted(version for _, version in finals)}")

    def _conserved(self):
        cluster, total, most, unlogged = self.cluster, 0.0, 1.0, False
        trained = Counter()  # positions of shared data, in accepted pushes
        gone = Counter()  # and in those that are lost
        sent = []  # of accepted pushes, with their weights
        finals = [member.final for member in cluster.members if member.final is not None]
        firsts = [member.first for member in cluster.members if member.first is not None]
        if not firsts or not finals or len({final.tobytes() for final in finals}) > 1:
            return
        if self._begun_anew:
            return  # what some have cut and were answered was of the run before
        final = finals[0].astype(np.float64)
        for member in cluster.members:
            known = {**member.weights}
            if (lost := self._lost_with(member)) is not None:
                known = {seq: weight if seq < lost else 0.0 for seq, weight in known.items()}
            for seq in range(len(member.cuts)) if member.lives > 1 or member.late else ():
                if seq not in known:
                    there = lost is None or seq < lost
                    weight = self._weight(member.index, seq) if there else 0.0
                    # The log's end is lost with a server that is killed, a machine's power, or a
                    # full disk, and the push may be there.
                    unlogged |= weight is None and bool(
                        cluster.notes["kills"] or cluster.plan.full) and seq < max(
                        self._due(member.index), default=0)
                    known[seq] = weight or 0.0
            # What was durable with those alone who have died, or was not and its process has ended:
            # the log says what that was.
            if self.two_deaths or member.lives > 1:
                dead = self._lost(member.index)
                known |= dict.fromkeys(dead, 0.0)
                gone += in_spans(span for seq in dead if seq < len(member.spans)
                                 for span in member.spans[seq])
            pushes = member.pushes(known)
            with law(1):
                pushes.check()
            if cluster.plan.data is not None:
                trained += pushes.trained
            if not cluster.wire.lossless:
                sent += Pushes(pushes.who, dict(enumerate(member.sent)), known).parts()
            parts = pushes.parts(UNIT)
            total = total + sum(parts)
            most += 5 * sum(float(np.abs(part).max()) for part in parts)
        if cluster.plan.data is not None and not unlogged:
            self._once(trained, gone)
        if cluster.plan.sparse:
            cuts = [cut for member in cluster.members for cut in member.cuts]
            touched = of_rows(sum(np.abs(cut) for cut in cuts), final.size)
            moved = final != firsts[0]
            if (moved & (touched == 0)).any():
                raise Broken(1, f"values {np.flatnonzero(moved & (touched == 0))[:4]} have moved, "
                             "and no step has touched them")
        if cluster.wire.lossless and not unlogged and cluster.plan.outer == "identity":
            expected = firsts[0] + of_rows(total, final.size) * pattern(cluster.plan.size)
            if np.abs(final - expected).max() > 1e-6 * most:  # float32
                raise Broken(1, f"the final version is {final[:4]}, the sum of all {expected[:4]}")
        if not cluster.wire.lossless and not unlogged and cluster.plan.outer == "identity":
            self._sent_is_conserved(final, firsts[0], sent)

    def _sent_is_conserved(self, final, first, sent):
        """A lossy format loses nothing for good: what the server's has not sent is kept."""
        unsent = self._unsent()
        if unsent is None:
            return
        self.cluster.notes["lossy sum"] = 1
        expected, most = first.astype(np.float64), 1.0
        for part in sent:
            expected = expected + part
            most += float(np.abs(part).max())
        wrong = np.abs(final + unsent - expected) > 1e-5 * most  # float32, in another order
        if wrong.any():
            at = np.flatnonzero(wrong)[:4]
            raise Broken(1, f"the final version and what is unsent are {(final + unsent)[at]} at "
                         f"{at}, and the sum of what was sent is {expected[at]}")

    def _unsent(self):
        """What the server's format had not sent of the final version; None: no disk has that."""
        version = max(member.runtime.agent.version for member in self.cluster.members
                      if member.final is not None)
        for name in ("server", "standby"):
            machine = self.cluster.machines.get(name)
            for path, inode in sorted(machine.names.items()) if machine else ():
                if path.endswith("/checkpoint.safetensors") and "/." not in path:
                    data = bytes(inode.data)
                    state = state_in(data)
                    if state["version"] == version and state["ended"]:
                        return tensor_in(data, f"{_OUTER}{UNSENT}")
        return None

    def _once(self, trained, gone):
        """Each position is once in what was trained; what was in updates that no model should take,
        of two workers or three of one, may be given up, and what is `gone` is said to be missing.
        """
        n, _, epochs = self.cluster.plan.data
        often, seldom = differences(trained, n * epochs)
        unfit = [member.unfit for member in self.cluster.members]
        seldom = Counter({g: 1 for g in seldom
                          if sum(one[g] > 0 for one in unfit) < 2
                          and max(one[g] for one in unfit) < STRIKES})
        said = [line for line in self.cluster.said if "not trained: " in line]
        if said and seldom and f"not trained: {len(seldom):,} of" in said[-1]:
            seldom -= gone
        if seldom or often:
            raise Broken(17, "examples are not once an epoch in accepted pushes: "
                         f"{often} too often, {seldom} too seldom")

    def _lost_with(self, member):
        """The first push of a worker without which the run has ended that the final version need
        not have: its server lacks the push, and the worker was not told that it is durable. None:
        it must have all.

        Read from the checkpoint of the final version, or it is not known.
        """
        if not member.late:
            return None
        # a process that was never admitted knows nothing
        session = member.session
        kept = session.kept if session is not None and session.member else None
        due = self._due(member.index)
        durable = kept is not None and kept.first > max(due, default=0)
        if not due or (durable and not self.two_deaths):
            return None
        return max(due)

    def _due(self, worker):
        """The worker's next push, by checkpoints of the final version; empty: not known.

        A server that has ended in doubt may have a version of that number, which is not the final
        one.
        """
        newest = max((member.runtime.agent.version for member in self.cluster.members
                      if member.final is not None), default=-1)
        states = [state for state in self._states.values() if state["version"] == newest]
        return [int(state["next_seq"].get(str(worker), 0))
                for state in [state for state in states if state["ended"]] or states]

    def _weight(self, worker, seq):
        """With which a server accepted a push whose worker died before it was told; None: no log
        has it."""
        weight = None
        for event in self._events():
            if event.get("worker") == worker and event.get("seq") == seq and (
                    event["kind"] in ("accept", "reject")):
                weight = event.get("weight", 0.0)
        return weight

    def _lost(self, worker):
        """Numbers of this worker's pushes that a server has reported as lost."""
        return lost_pushes(worker, self._servers(), self.cluster.said)

    def _events(self):
        """Of the logs of all servers."""
        return [event for machine in self._servers() for event in events_on(machine)]

    def _servers(self):
        machines = self.cluster.machines
        return [machines[name] for name in ("server", "standby") if name in machines]

    def _one_content(self):
        members = self.cluster.members
        for (_, version), contents in self._versions.items():
            seen = sorted(contents.values())
            for earlier, later in itertools.pairwise(seen):
                if not all(members[index].gone(life) < later[0][0] or (
                        # the run has ended without it, and it knows no later server
                        members[index].late and self._newest[index] < later[0][0])
                        for _, index, life in earlier):
                    raise Broken(3, f"version {version} has {len(contents)} contents: {seen}")

    def _examples_are_counted(self):
        cluster, members = self.cluster, self.cluster.members
        if cluster.plan.data is not None:
            return  # law 17
        for line in cluster.said if cluster.plan.uncounted else ():
            if "training loss " in line and "training loss 0.0000" not in line:
                raise Broken(19, f"a step without an example has a loss: {line}")
        if self.two_deaths or self._last_unsaved or any(
                member.final is None or member.lives > 1 or self._lost(member.index)
                for member in members):
            return  # some of it is lost, or done again
        if len({(member.final.tobytes(), member.final_version) for member in members}) > 1:
            return  # a server has ended the run without some, who have ended it with another: law 2
        trained = sum(member.examples for member in members)
        version = max(member.final_version for member in members)
        for state in self._states.values():
            if state["ended"] and state["version"] == version and state["totals"][1] != trained:
                raise Broken(19, f"{trained} examples were trained, and {state['totals'][1]} are "
                             "counted")

    def _mistakes_are_said(self):
        cluster = self.cluster
        for name, (mistake, since) in cluster.wrong.items():
            text = "\n".join(line for line in cluster.said if f" {name}: " in line)
            code = cluster.codes[name][-1]
            if code != 1 and cluster.plan.calm:
                raise Broken(14, f"{mistake.name} ends with exit code {code}")
            if "shards at" in text:  # it came first, and theirs has waited for its end
                continue
            told = mistake.says in text
            # or what it would have heard that from was out of reach, or came to its end
            excused = not cluster.plan.calm or cluster.ended_at - since < _HEARS
            if not told and not (excused and text):
                raise Broken(14, f"{mistake.name} says {text!r}")

    def _few_lines(self):
        cluster = self.cluster
        for name in ("server", "standby") if cluster.plan.strangers else ():
            lines = sum(f" {name}: " in line and "refused:" in line for line in cluster.said)
            lives = sum(process.name == name for process in cluster.world.processes)
            if lines > _REFUSED * lives + 2 * cluster.world.now:
                raise Broken(15, f"{name} prints {lines} refusals")

    def is_away(self, member, seconds):
        """A worker is away for so long from now on; counted if the others go on meanwhile, and it
        comes back."""
        process, version = member.process, self._top_version()

        def back():
            if process.alive and not member.ended and seconds > REATTACH and (
                    self._top_version() > version):
                self.cluster.notes["absences beyond REATTACH"] += 1
        self.cluster.world.after(seconds, back)

    def _top_version(self):
        return max((version for _, version in self._versions), default=-1)

    def _take_over_by_votes(self, name):
        """Counted, by what had become of the other one."""
        cluster = self.cluster
        other = cluster.processes["server" if name == "standby" else "standby"]
        how = ("a death" if not other.alive else
               "a nap" if other.asleep_until > cluster.world.now else
               "a cut" if not all(cluster.world.reachable(*pair) for pair in (
                   (name, other.name), (other.name, name))) else
               f"a {cluster.struck.get(other.name, 'death')}".replace("off", "death"))
        cluster.notes[f"votes after {how}"] += 1

    def ended(self, name, code):
        """A server or standby has ended by itself."""
        if code and self.cluster.world.now > self._spoke.get(name, 0.0) + _SPOKE:
            self.broken(25, f"{name} ends with exit code {code} and without a line: its last one "
                            f"was at {self._spoke.get(name, 0.0):.3f}")

    def said(self, name, text):
        """A line for a person, or a summary. Its process may catch an error of a law.
        """
        self._spoke[name] = self.cluster.world.now
        try:
            self._said(name, text)
        except Exception as error:
            if error not in self.cluster.world.failures:
                self.cluster.world.failures.append(error)
            raise

    def _said(self, name, text):
        other = "server" if name == "standby" else "standby"
        if "taking over from the server at" in text and "voted for this standby" in text:
            self._take_over_by_votes(name)
            # Until it serves, new processes may come in place of its voters.
            self._elected[name] = self._followers(
                self._epoch_of(other) + 1) if other in self._settings else None
            self.cluster.acts_alone(name)
        elif "taking over from the server at" in text:
            self._elected.pop(name, None)  # of one that was elected, and died before it served
            if "its process has ended" in text:
                self.two_deaths |= self._was_brief(other)
        if "resuming from version" in text:  # its earlier copies count no more
            self._held.pop(self.cluster.processes[name], None)
        if re.search("(voted for this server|that could vote); continuing without a standby", text):
            self._stays(self.cluster.processes[name])
        if "has taken over (epoch" in text and self._settings.get(name, {}).get("beside"):
            # Another was elected while workers did not reach this one: what it alone held is lost.
            self.two_deaths = True
        if "resuming from the newest checkpoint" in text and self.cluster.plan.standby:
            self.died(name)  # what it had not written is lost, as with its process
        if "no checkpoint found; starting a new run" in text:
            self.lost_all = True
            self._begun_anew |= bool(self._versions)
            self._versions.clear()
        if "missing at the end: " in text:
            self.missing.append({int(one) for one in re.findall(r"worker (\d+) \(", text)})
        plan = self.cluster.plan
        # A shard that was started again hears its server before that knows, and says so; and a peer
        # that was cut off, or died, before it could introduce itself to another process is none.
        if (" malformed messages or connections" in text and "at a shard: " not in text
                and "from an unknown session" not in text
                and not (plan.strangers or plan.mistakes)):
            self.broken(7, f"{name} prints {text!r}")
        if "this is a bug of wbsp" in text:
            self.broken(8, f"{name} prints {text!r}")
        if "\n[" in text or not text.replace("\n", "").isprintable():
            self.broken(15, f"{name} prints {text!r}")

    def validated(self, member, at, saved, begun):
        """A worker has validated an epoch's version, from `begun` until now."""
        self.cluster.notes["validations"] += 1
        if saved.state.version != at.version:
            self.broken(20, f"version {at.version} is asked for, and {saved.state.version} read")
        self._of_epochs.append((at.version, saved.vector.tobytes()))
        self._validations.append((at.epoch, begun, self.cluster.world.now, member.index))

    def _read_is_what_is(self):
        """Laws 20 and 21, where one server has served all the time: another one may make versions
        of these numbers again."""
        cluster = self.cluster
        if len(self._epochs) > 1 or self._last_unsaved:
            return
        known = {}
        for (_, version), contents in self._versions.items():
            known.setdefault(version, set()).update(contents)
        read = [one for reader in cluster.readers for one in reader.read]
        for number, values in [*self._of_epochs, *(one[1:3] for one in read)]:
            if values not in known.get(number, {values}):
                raise Broken(20, f"version {number} is read with another content than workers have")
        finals = {member.final_version for member in cluster.members if member.final is not None}
        for reader in cluster.readers:
            for before, after in zip(reader.read, reader.read[1:], strict=False):
                if before[0] == after[0] and before[1] >= after[1]:
                    raise Broken(20, f"{reader.name} reads version {after[1]} after {before[1]}")
        for _, number, _, last, _ in read:
            if last and finals and number not in finals:
                raise Broken(20, f"version {number} is read as the last one, and workers end with "
                             f"{sorted(finals)}")
        for one in self._validations:
            for other in self._validations:
                if one[0] == other[0] and one[3] != other[3] and one[1] <= other[1] < one[2]:
                    raise Broken(20, f"workers {one[3]} and {other[3]} validate epoch {one[0]} "
                                 "at once")
        counted = sum((reader.counted for reader in cluster.readers), Counter())
        logged = evaluations(cluster.machines["server"])
        for version, times in counted.items():
            if times > 1 or (logged[version] != 1 and not cluster.plan.full):
                raise Broken(21, f"results of version {version} were taken {times} times, and "
                             f"are {logged[version]} times in the log")

    def _model_is_there(self):
        cluster = self.cluster
        if cluster.plan.evaluator == "works" and all(
                member.final is not None for member in cluster.members) and not any(
                path.endswith("model.keras") for name in ("server", "standby")
                for path in cluster.machine(name).names):
            raise Broken(16, "there is no model.keras")
