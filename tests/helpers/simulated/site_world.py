"""Simulate a server above, the sites below it and their workers, with faults.

The code that runs is the real one; each process is on a separate machine. The laws: every run ends
well once its faults do, all end with one version, and both levels are exact in integers.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from integer_replica import UNIT, IntegerReplica, pattern

from simulated.cluster import ROOT, Lines, Member, _derive_keys, alone
from simulated.disk import Disk, Machine
from simulated.laws import Broken, checkpoints_on, law, lost_pushes, standing_on, state_in
from simulated.memory import Memory
from simulated.network import Network
from simulated.plan import PORT, Plan
from simulated.reader import SimulatedReader
from simulated.threads import Scheduler
from simulated.world import World
from wbsp.access import Access
from wbsp.process.host import Clock, Host
from wbsp.ps.config import ServerConfig
from wbsp.ps.launch import prepare_server
from wbsp.site.upstream import Upstream
from wbsp.sync import create
from wbsp.testing.once import Pushes, differences, in_spans

_UPDATE = b"\xa6Update"
_HELD, _FINAL, _LEAVING, _GOODBYE = b"\xa4Held", b"\xa5Final", b"\xa7Leaving", b"\xa7Goodbye"
# When a death at the end of a run strikes: a site has finished and leaves; the server above, or a
# site, hands out the final version; a site says that it has that.
_ENDS = "left", "final", "goodbye", "farewell"
_LATER_ENDS = *_ENDS, "returned"  # a site has returned for the final version
_STEPS = 2, 8, 30  # messages and changes of its disk after that until a process dies, at most
_APART = 8.0  # seconds between two deaths: what one process alone holds dies with it


@dataclass
class SitesPlan:
    """A run; `simulated.plan.Plan` describes the other fields.

    Attributes:
        above, inside: synchronization models.
        standby: each site has one.
        top_standby: so has the server above.
        kills: of sites' servers and standbys.
        kill_top: of the server above and its standby.
    """

    above: str = "bsp"
    inside: str = "asp"
    options: dict = field(default_factory=dict)  # of the model above
    sites: int = 2
    workers: int = 2
    steps: int = 12
    standby: bool = False
    kills: int = 0
    kill_top: int = 0
    breaks: int = 0
    cuts: int = 0
    isolations: int = 0  # of a site's server or standby from all other processes
    sleeps: int = 0
    storm: float = 0.0
    drift: float = 0.0
    slow: float = 0.002
    period: float = 0.2
    naps: tuple[float, ...] = (0.2, 1.0, 3.0)
    data: tuple[int, int, int] | None = None  # that all workers share, in place of their steps
    validate: str = "newest"
    kill_workers: int = 0
    patience: float = 3600.0  # virtual seconds in which it must end
    top_standby: bool = False
    # Deaths at the end: (phase of `_LATER_ENDS`, who dies: some of "site", "top", "worker")
    ends: tuple[tuple[str, str], ...] = ()
    uncounted: float = 0.0  # chance that a step of a worker with its own data has no example
    kill_waiting: int = 0  # of workers whose push comes while their site waits for the one above
    kill_validators: int = 0  # of workers that validate an epoch's version
    kill_asking: int = 0  # of workers whose site reads the version that they asked for
    readers: int = 0  # processes that evaluate versions, of a site or of the server above
    validates: bool = False  # workers validate the epochs of shared data

    @property
    def loses_workers(self) -> bool:
        return bool(self.kill_workers or self.kill_waiting or self.kill_validators
                    or self.kill_asking or any("worker" in who for _, who in self.ends))


    @property
    def calm(self) -> bool:
        """Nothing strikes its servers, workers and connections."""
        return not (self.kills or self.kill_top or self.ends or self.loses_workers or self.breaks
                    or self.cuts or self.isolations or self.sleeps or self.storm)


class NotingUpstream(Upstream):
    """A site's line to the server above, which records the site's pushes and their answers.

    A cut that is not pushed is taken again, perhaps by another process and under its number. Of two
    processes that are the site, the server above listens to the one that joined last.
    """

    site: Site

    def _push(self, cut):
        super()._push(cut)
        update = self._progress.cut
        shape = pattern(update.size)
        assert (update == shape * (update[0] / shape[0])).all(), f"no whole cut: {update[:5]}"
        if self.site.heard is self:
            self.site.cuts[cut.push.seq] = float(update[0] / shape[0])
            self.site.spans[cut.push.seq] = cut.push.spans
            self.site.samples[cut.push.seq] = cut.push.samples

    def _enter(self, joined, model):
        super()._enter(joined, model)
        self.site.heard = self

    def read_version(self, at, path):
        self.site.all.reads(self.site)
        return super().read_version(at, path)

    def _acked(self, ack, seconds):
        self.site.weights[ack.seq] = ack.weight
        super()._acked(ack, seconds)


class _Nothing:
    """A stand-in for the laws of a run with one server."""

    lent, settings = None, {}

    def said(self, name, text):
        pass

    def fetched(self, member, version, vector):
        pass


class _OfSite(_Nothing):
    def __init__(self, site):
        self._site = site

    @property
    def settings(self):
        """Return the newest run.json of its server and standby; {}: neither has one."""
        found = [self._site.all._settings(name) for name in self._site.names]
        return max(found, key=lambda run: run.get("epoch", 0))

    def validated(self, member, at, saved, begun):
        """Check and record that a worker has validated an epoch's version, from `begun` until now.
        """
        run = self._site.all
        if saved.state.version != at.version:
            raise Broken(20, f"version {at.version} is asked for, and {saved.state.version} read")
        run.notes["validations"] += 1
        run.validations.append((at.epoch, begun, run.world.now, self._site.name, member.index))


class Site:
    """A site; to its members, the cluster that they are part of."""

    harsh = False

    def __init__(self, world, index):
        self.all, self.index, self.number = world, index, 100 * world.number + index
        self.name, self.laws, self.notes = f"site{index}", _OfSite(self), Counter()
        self.rng, self.world, self.token = world.rng, world.world, world.token
        self.plan = Plan(steps=world.plan.steps, workers=world.plan.workers, data=world.plan.data,
                         validate=world.plan.validate, uncounted=world.plan.uncounted,
                         validates=world.plan.validates)
        self.names = [self.name, f"standby{index}"][:1 + world.plan.standby]  # of its servers
        self.address, self.run_id = ",".join(f"{name}:{PORT}" for name in self.names), None
        self.heard: NotingUpstream | None = None  # the process known to the server above
        self.cuts: dict[int, float] = {}
        self.samples: dict[int, int] = {}  # of its workers' pushes, in each cut
        self.lost = 0.0  # sum of the cuts that the server above resumed without
        self.void: set[int] = set()  # their numbers
        self.gone = Counter()  # positions of shared data in them
        self.spans: dict[int, tuple] = {}  # of shared data, in each cut
        self.weights: dict[int, float] = {}
        self.members = [Member(self, worker, self.rng.randint(1, self.plan.steps))
                        for worker in range(self.plan.workers)]

    @property
    def codes(self):
        return self.all.codes

    @property
    def over(self):
        return self.all.over

    def process(self, name):
        return self.all.process(f"{name}.{self.index}")

    def replica(self, index, life):
        return IntegerReplica(index, self.plan.size,
                              seed=self.all.number + 1000 * life + 100 * self.index)

    def loses(self, numbers, again=True):
        """The server above and this site have died within one checkpoint period.

        again: later cuts are progress again, else this site sends them again
        """
        for seq in [seq for seq in self.cuts if again and seq >= numbers.stop]:
            self.void.add(seq)
            for known in (self.cuts, self.weights, self.spans):
                known.pop(seq, None)
        for seq in numbers:
            self.lost += self.cuts.pop(seq, 0.0)
            self.weights.pop(seq, None)
            self.void.add(seq)
            self.gone += in_spans(self.spans.pop(seq, None) or ())

    def pushes(self, logged):
        """Return its cuts, and the weight of each that is in the model, or was rejected."""
        known = logged.get(self.index, {}) | self.weights
        return Pushes(self.name, self.cuts, {seq: weight for seq, weight in known.items()
                                             if seq in self.cuts or seq not in self.void},
                      self.spans)

    def say(self, text):
        self.all.say(f"{self.name} {text}")

    def phase(self, name, process):
        if name == "validates":
            self.all.validates(next(one for one in self.members if one.process is process))


class Sites:
    """A run of `plan`, with the faults at the times that `seed` draws."""

    def __init__(self, plan: SitesPlan, seed: int, folder: Path, loud: bool = False):
        self.plan, self.number, self.folder, self.loud = plan, seed, folder, loud
        self.holders = set()  # processes that hold a copy of their site's state
        draw = f"sites {plan.above} {plan.inside} {seed}"
        self.world, self.rng = World(draw, plan.drift), random.Random(draw)
        self.world.on_end, self.world.on_send = self._ended, self._sent
        self.world.storm, self.world.storms = plan.storm, 8 if plan.storm else 0
        self.said, self.notes, self.laws = [], Counter(), _Nothing()
        self.token = b"no secret at all, here"
        self.curve = _derive_keys(self.token).server_public
        self.machines, self.processes, self.codes = {}, {}, {}
        self.world.on_doom = self._dies_at_its_step
        self._ends, self._waiting = [*plan.ends], plan.kill_waiting
        self._validating, self._asking = plan.kill_validators, plan.kill_asking
        self.done = set()  # sites that the server above has seen finish
        self.late = set()  # sites without which the run above has ended
        self.last_death = -_APART
        self.killed: set[str] = set()  # servers and standbys
        self.tops = ["top", "toptoo"][:1 + plan.top_standby]
        for name in self.tops:
            self.start_top(False, name)
        self.sites = [Site(self, index) for index in range(plan.sites)]
        for site in self.sites:
            for name in site.names:
                self.start_site(site, False, name)
            for member in site.members:
                self.world.after(self.rng.uniform(0, 0.2), member.start)
        horizon = max(0.4, 0.9 * max(member.speed for member in self.members) * plan.steps)
        self.readers, self.validations = [], []
        place = random.Random(f"readers {draw}")
        for number in range(plan.readers):
            # of the versions of a site, or of the server above
            reader = SimulatedReader(place.choice([self, *self.sites]), number)
            self.readers.append(reader)
            self.world.after(place.uniform(0.0, horizon / 2), reader.start)
            if place.random() < 0.4:
                self.world.after(place.uniform(horizon / 2, horizon), reader.dies)
        for number, act in ((plan.kills, self.kill_site), (plan.kill_top, self.kill_top),
                            (plan.breaks, self.break_connection), (plan.cuts, self.cut),
                            (plan.isolations, self.isolate), (plan.sleeps, self.sleep),
                            (plan.kill_workers, self.kill_worker)):
            for _ in range(number):
                self.world.after(self.rng.uniform(0.02, horizon), act)

    @property
    def address(self):
        """Of the server above, and its standby."""
        return ",".join(f"{name}:{PORT}" for name in self.tops)

    @property
    def members(self):
        return [member for site in self.sites for member in site.members]

    @property
    def over(self):
        return all(member.ended for member in self.members)

    @property
    def servers(self):
        return [self.processes[name] for name in self.names]

    @property
    def names(self):
        """Return the names of all servers and standbys."""
        return [*self.tops, *(name for site in self.sites for name in site.names)]

    def say(self, text):
        self.said.append(f"{self.world.now:9.3f} {text}")
        if (lost := re.search(r"site (\d+): cuts (\d+) to (\d+) are lost", text)) is not None:
            # the server above and the site have died within one checkpoint period
            self.notes["lost"] += 1
            self.sites[int(lost[1])].loses(range(int(lost[2]), int(lost[3]) + 1))
        if (lost := re.match(r"top(?:too)?: .* worker (\d+): pushes (\d+) to (\d+) are lost",
                             text)) is not None:
            self.notes["lost"] += 1
            self.sites[int(lost[1])].loses(range(int(lost[2]), int(lost[3]) + 1), again=False)
        if (left := re.match(r"top(?:too)?: .* worker (\d+) left: finished", text)) is not None:
            self.done.add(int(left[1]))
        if self._ends and (back := re.search(r"worker (\d+) returned for the final", text)):
            self._strike("returned", self.sites[int(back[1])])
        if self.loud:
            print(self.said[-1])

    def process(self, name):
        process = self.processes[name] = self.world.process(name, name)
        machine = self.machines.setdefault(name, Machine(self.world, self.plan.slow))
        process.host = Host(Clock(process.monotonic, process.sleep, lambda: "one day",
                                  process.monotonic),
                            Scheduler(process),
                            Network(process), Disk(process, machine, self.folder / "scratch"),
                            Memory(process), Lines(self, name))
        return process

    def _start_server(self, name, sync, options, workers, resume, above=None, standby_of=None):
        process, model = self.process(name), create(sync, **options)

        def main():
            settings = {"sync": model.name, "sync_option": json.dumps(options, sort_keys=True)}
            try:
                serve = prepare_server(settings, model, ServerConfig(
                    workers, check_period=self.plan.period, share=False, host=name, port=PORT,
                    token=self.token, base_dir=sync, log_root=ROOT, resume=resume, above=above,
                    standby_of=standby_of, one_run=True), on=process.host)
            except (ValueError, OSError) as error:
                self.say(f"{name}: {error}")
                raise Broken(9, f"{name} does not begin: {error}") from None
            return serve()
        process.start(main)

    def start_top(self, resume=True, name="top"):
        """Run the command of the server above, or of its standby."""
        plan = self.plan
        self._start_server(name, plan.above, plan.options, plan.sites, resume,
                           standby_of=None if name == "top" else f"top:{PORT}")

    def start_site(self, site, resume=True, name=None):
        """Run the command of a site's server, or of its standby, whose `name` it is."""
        name = name or site.name

        def above(on, reporter):
            access = Access(self.address, token=self.token, share=False)
            upstream = NotingUpstream(access, site.index, on, reporter)
            upstream.site = site
            return upstream
        self._start_server(name, self.plan.inside, {}, self.plan.workers, resume, above,
                           None if name == site.name else f"{site.name}:{PORT}")

    def _sent(self, process, frames):
        head = bytes(frames[0][1:12])
        if head.startswith(_HELD) and frames[0][6]:
            self.holders.add(process)
        if self._waiting and head.startswith(_UPDATE):
            for member in self.members:
                if member.process is process and (up := member.cluster.heard) and up.pauses:
                    self._waiting -= 1
                    self.notes["kill_waiting"] += 1
                    # the wait lasts until the worker is lost, or its next process has come
                    self._part(member.cluster.names, self.tops, self.rng.choice([0.5, 2.0, 8.0]))
                    # when the push has arrived, or is in transit
                    self.world.after(self.rng.uniform(0.0, 0.01),
                                     lambda one=member: self.kill_worker(one))
                    break
        for site in self.sites if head.startswith((_LEAVING, _GOODBYE)) and self._ends else ():
            if process.name in site.names:
                self._strike("left" if head.startswith(_LEAVING) else "goodbye", site)
        if head.startswith(_FINAL) and self._ends:
            if process.name in self.tops:
                self._strike("final", self.rng.choice(self.sites))
            else:
                self._strike("farewell", next(s for s in self.sites if process.name in s.names))

    def _strike(self, phase, site):
        """Note that the run has come to a phase of its end: those that are to die in it do so soon.
        """
        for end in [one for one in self._ends if one[0] == phase][:1]:
            self._ends.remove(end)
            for who in end[1].split():
                if who == "worker":
                    self.world.after(self.rng.uniform(0, 0.1),
                                     lambda: self.kill_worker(self.rng.choice(site.members)))
                    continue
                names = self.tops if who == "top" else site.names
                process = self.processes[self.rng.choice(names)]
                if phase == "returned":  # few messages follow, and much waiting
                    self.world.after(self.rng.uniform(0, 0.5),
                                     lambda one=process: self._dies_at_its_step(one))
                elif process.alive and (len(names) == 1 or self._held(names)):
                    self.world.doomed[process] = self.rng.randrange(self.rng.choice(_STEPS))

    def _dies_at_its_step(self, process):
        name = process.name
        names = self.tops if name in self.tops else next(
            site.names for site in self.sites if name in site.names)
        if self.over or not process.alive or not self.has_begun(name) or (
                len(names) > 1 and not self._held(names)):
            return
        self.last_death = self.world.now
        self.say(f"--- kill {name} at the end")
        self.killed.add(name)
        self.notes["ends"] += 1
        process.kill()
        self._restart(name)

    def _ended(self, process, code):
        if process.name in self.names:
            self.say(f"{process.name}: ended with exit code {code}")
            self.codes.setdefault(process.name, []).append(code)
            if code and self._had_served(process.name):
                return
            ended = any(0 in self.codes.get(name, []) for name in self.tops)
            late = code and process.name not in self.tops and (ended or any(
                "is too late: the run has ended" in line for line in self.said
                if f" {process.name}: " in line))
            if late:  # the others had finished while it was away
                self.notes["late"] += 1
                self.late.add(process.name)
                for site in self.sites:
                    if process.name in site.names and site.index in self.done and not any(
                            0 in self.codes.get(name, []) for name in site.names):
                        raise Broken(9, f"{process.name} had finished, and ends without the last "
                                     "version")
            elif code and self._may_be_replaced(process.name):
                if not self.over:  # as a supervisor of processes does
                    self.world.after(2.0, lambda: self.starts_again(process.name))
            elif code and not self._says_what_is_lost(process.name):
                raise Broken(9, f"{process.name} ended with exit code {code}")

    def _had_served(self, name):
        """A server whose run has ended was started once more, and no run is left for it."""
        if name in self.tops:
            return any(f" {name}: " in line and "has ended: this is a new run" in line
                       for line in self.said) and any(
                f" {name}: " in line and "no worker connected within" in line
                for line in self.said)
        sites = [site for site in self.sites if name in site.names]
        return any(f" {name}: " in line and "has ended: this is a new run" in line
                   for line in self.said) and all(
                       member.ended for site in sites for member in site.members) and bool(sites)

    def _says_what_is_lost(self, name):
        """A server above that ends without work that it has lost together with a site."""
        return name in self.tops and bool(self.notes["lost"]) and any(
            f" {name}: not trained: " in line for line in self.said)

    def _may_be_replaced(self, name):
        """A server that its standby has taken over from ends with exit code 1."""
        plan = self.plan
        above = name in self.tops
        return (plan.top_standby if above else plan.standby) and (
            plan.ends or (plan.kill_top if above else plan.kills) or plan.breaks or plan.cuts
            or plan.isolations or plan.sleeps or plan.storm or plan.drift)

    def starts_again(self, name):
        if self.processes[name].alive:
            return
        if name in self.tops:
            self.start_top(name=name)
        else:
            self.start_site(next(site for site in self.sites if name in site.names), name=name)

    def _is_late(self, site):
        """A process that served it to its end was late; a standby ends well whatever its end."""
        return any(name in self.late for name in site.names) and not any(
            0 in self.codes.get(name, []) and not any(
                f"{name}: the run has ended: interrupted" in line for line in self.said)
            for name in site.names)

    # Faults.

    def kill_site(self):
        site = self.rng.choice(self.sites)
        name = self.rng.choice(site.names)
        if self.plan.standby and not self.over and not self._held(site.names):
            self.world.after(0.5, self.kill_site)
        elif self.dies(name, self.kill_site):
            self._restart(name)

    def kill(self, name):
        """Kill this server or standby now; it is started again."""
        if self.dies(name, lambda: self.kill(name)):
            self._restart(name)

    def _restart(self, name):
        self.world.after(self.rng.uniform(0.05, 3.0), lambda: self.starts_again(name))

    def when(self, line, act):
        """Act soon after a console line of any process."""
        if any(re.search(line, one) for one in self.said):
            act()
        else:
            self.world.after(0.05, lambda: self.when(line, act))

    def _held(self, names):
        """A server and its standby run, and both hold what others may have."""
        processes = [self.processes[name] for name in names]
        return all(one.alive for one in processes) and any(
            one in self.holders and self._settings(other.name).get("standby")
            for one, other in (processes, processes[::-1]))

    def _settings(self, name):
        """The newest run.json of a server; {}: it has none."""
        paths = [path for path in self.machines[name].names if path.endswith("/run.json")]
        return json.loads(bytes(self.machines[name].names[max(paths)].data)) if paths else {}

    def kill_top(self):
        name = self.rng.choice(self.tops)
        if self.plan.top_standby and not self.over and not self._held(self.tops):
            self.world.after(0.5, self.kill_top)
        elif self.dies(name, self.kill_top):
            self._restart(name)

    def kill_worker(self, member=None):
        if member is None:
            member = self.rng.choice(self.rng.choice(self.sites).members)
        if not self.over and member.process is not None and member.process.alive and (
                not member.ended and member.joined is not None):
            self.say(f"--- kill {member.process.name}")
            self.notes["kill_workers"] += 1
            member.process.kill()
            member.comes_again()

    def dies(self, name, again):
        if self.over or not self.processes[name].alive:
            return False
        if self.world.now - self.last_death < _APART or not (
                self.has_begun(name) or name not in self.names):
            self.world.after(0.5, again)
            return False
        self.last_death = self.world.now
        self.say(f"--- kill {name}")
        self.killed.add(name)
        self.notes["kill_top" if name in self.tops else
                   "kills"] += 1
        self.processes[name].kill()
        return True

    def has_begun(self, name):
        """Its disk has a checkpoint: without W_0 a run is lost with its server."""
        return any(path.endswith("checkpoint.safetensors") for path in self.machines[name].names)

    def validates(self, member):
        """Note that a worker begins to validate an epoch's version: it may be killed meanwhile."""
        if self._validating:
            self._validating -= 1
            self.world.after(self.rng.uniform(0.0, 0.02), lambda: self.kill_worker(member))

    def reads(self, site):
        """A site reads a version that one of its workers asked for, which may be killed then: its
        next process comes before the site has read."""
        if self._asking:
            self._asking -= 1
            self._part(site.names, self.tops, self.rng.choice([0.5, 2.0, 8.0]))
            self.kill_worker(self.rng.choice(site.members))

    def break_connection(self):
        found = [socket.connection for process in self.world.processes
                 for socket in process.sockets
                 if socket.connection is not None and socket.connection.open]
        if found and not self.over:
            self.notes["breaks"] += 1
            self.rng.choice(found).close()

    def cut(self):
        """Cut a site's line to the outside for a while."""
        site = self.rng.choice(self.sites)
        self.say(f"--- cut {site.name} off")
        self.notes["cuts"] += 1
        self._part(site.names, self.tops)

    def isolate(self):
        """Make a server or standby unreachable for all other processes for a while."""
        pairs = [site.names for site in self.sites if self.plan.standby]
        if self.plan.top_standby:
            pairs.append(self.tops)
        name = self.rng.choice(self.rng.choice(pairs))
        self.say(f"--- isolate {name}")
        self.notes["isolations"] += 1
        self._part([name], [other for other in self.machines if other != name])

    def _part(self, some, others, seconds=None):
        pairs = {pair for one in some for other in others for pair in ((one, other), (other, one))}
        self.world.part(pairs)
        self.world.after(seconds or self.rng.choice(self.plan.naps),
                         lambda: self.world.heal(pairs))

    def sleep(self):
        alive = sorted((one for one in self.world.processes if one.alive), key=lambda p: p.name)
        if alive:
            process, seconds = self.rng.choice(alive), self.rng.choice(self.plan.naps)
            self.say(f"--- {process.name} sleeps for {seconds:g} s")
            self.notes["sleeps"] += 1
            process.asleep_until = max(process.asleep_until, self.world.now + seconds)

    # The run.

    def run(self):
        """Play the run. Raise AssertionError if a law is broken."""
        with alone(self):
            try:
                done = self.world.run(lambda: self.over and not any(
                    one.alive for one in self.servers), self.plan.patience)
                self.check(done)
            finally:
                self.world.close()
        return self

    def check(self, done):
        if not done:
            raise Broken(9, "the run does not end")
        for member in self.members:
            member.forget_outdated()
        stayed = [member for site in self.sites if not self._is_late(site)
                  for member in site.members]
        for member in stayed:
            # A next process came as the site ended, and its server died before it was told so.
            ended = member.joined is None and any(
                0 in self.codes.get(name, []) for name in member.cluster.names)
            if member.given_up is not None and not (member.lives > 1 and (
                    ended or "too late" in member.given_up)):
                raise Broken(9, f"worker {member.index} has given up: {member.given_up}")
        stayed = [member for member in stayed if member.final is not None]
        finals = {member.final.tobytes() for member in stayed}
        if len(finals) > 1:
            raise Broken(2, "workers end with different versions")
        if not finals:
            return
        self._read_is_what_is(finals)
        final, logged, total = stayed[0].final.astype(np.float64), self._logged(), 0.0
        if self.killed & set(self.tops) and any(
                self.killed & set(site.names) and not self._is_late(site)
                and site.pushes(logged).made.keys() - site.pushes(logged).weights.keys()
                for site in self.sites):
            return  # nobody knows any more what became of a cut: its log's end and its site died
        for site in self.sites:
            cuts = site.pushes(logged)
            if self._is_late(site):
                total += cuts.total()
                continue
            lacks = any(f"site {site.index}: the run above has ended without this site's" in line
                        for line in self.said)
            if self.plan.data is not None and not lacks:
                self._cuts_are_whole(site)
            with law(1):
                cuts.check(void=site.void)
                pushes = [member.pushes() for member in site.members]
                for one in pushes if not self.plan.loses_workers else ():
                    one.check()
            total += cuts.total()
            if lacks:
                continue
            if self.plan.loses_workers:
                # What the last push of a dead worker weighs, the site's log says. The site's
                # standby may have begun without pushes that are in it.
                known = self._logged(site.names)
                pushes = [member.pushes({seq: weight for seq, weight in known.get(
                    member.index, {}).items() if seq < self._until(site, member)} | member.weights
                    | dict.fromkeys(self._lost(site, member.index), 0.0))
                          for member in site.members]
                if any(one.made.keys() - one.weights.keys() for one in pushes):
                    continue  # the log's end was lost with the site's process
            else:
                self._examples(site)
            accepted = sum(one.total(UNIT) for one in pushes)
            if abs(accepted - sum(site.cuts.values()) - site.lost) > 1e-6:
                raise Broken(1, f"{site.name} has accepted {accepted} in all, and its cuts are "
                             f"{site.cuts}")
        if self.plan.data is not None:
            self._once(logged)
        rest = final - total * pattern(final.size)
        first = round(rest[0])
        if np.abs(rest - first).max() > 1e-6 or not 1 <= first <= self.plan.workers:
            raise Broken(1, f"the final version without the cuts is {rest[:5]}")

    def _read_is_what_is(self, finals):
        """Law 20: a reader's versions rise, its last one is what the workers have, and one worker
        at a time validates an epoch."""
        for reader in self.readers:
            for _, number, values, last, _ in reader.read:
                if last and values not in finals:
                    raise Broken(20, f"version {number} is read as the last one, and workers have "
                                 "another one")
        if any(self.notes[one] for one in ("kills", "kill_top", "ends", "isolations", "cuts")):
            return  # the next server may make versions of these numbers again, and asks anew
        for reader in self.readers:
            for before, after in zip(reader.read, reader.read[1:], strict=False):
                if before[0] == after[0] and before[1] >= after[1]:
                    raise Broken(20, f"{reader.name} reads version {after[1]} after {before[1]}")
        self._results_are_heard()
        for one, other in itertools.permutations(self.validations, 2):
            if one[0] == other[0] and one[3:] != other[3:] and one[1] <= other[1] < one[2]:
                raise Broken(20, f"workers {one[3:]} and {other[3:]} validate epoch {one[0]} at "
                             "once")

    def _results_are_heard(self):
        """Law 26: a site hears the newest results that the server above had before its end."""
        if not self.plan.calm:
            return
        events = self._events(self.tops)
        end = min((event["t"] for event in events if event["kind"] == "stop"), default=math.inf)
        known = max((event["epoch"] for event in events
                     if event["kind"] == "measured" and event["t"] < end), default=-1)
        for site in self.sites:
            heard = [event["epoch"] for event in self._events(site.names)
                     if event["kind"] == "measured"]
            if max(heard, default=-1) < known:
                raise Broken(26, f"{site.name} has heard the results of epochs {heard}, and the "
                             f"server above has those of epoch {known}")

    def _examples(self, site):
        """A site's cuts count the examples of what it has accepted, and no others."""
        trained = sum(member.samples[seq] for member in site.members
                      for seq, weight in member.weights.items() if weight)
        counted = sum(site.samples[seq] for seq in site.cuts)
        if counted != trained and not site.void:
            raise Broken(1, f"{site.name} has accepted {trained} examples, and its cuts count "
                         f"{counted}")

    def _once(self, logged):
        """Each example is once an epoch in the cuts that the server above has accepted."""
        n, _, epochs = self.plan.data
        often, lacks = differences(sum((site.pushes(logged).trained for site in self.sites),
                                       Counter()), n * epochs)
        gone = sum((site.gone for site in self.sites), Counter())
        claims = {int(found[1].replace(",", "")) for line in self.said if (
            found := re.search(r" top: not trained: ([\d,]+) of", line))}
        if claims and not self.plan.top_standby and claims != {lacks.total()}:
            raise Broken(17, f"the server above says that {claims} examples are not trained, and "
                         f"{lacks.total()} are")
        # a server above that was killed, and not started again, had no time to say it; the site has
        dead = not any(self.codes.get(name) for name in self.tops)
        said = dead or any(f"not trained: {lacks.total():,} of" in line for line in self.said)
        if not often and not lacks - gone and said:
            standbys = {name for name in self.tops if any(
                f" {name}: the run has ended: " in line for line in self.said)}
            if lacks and any(0 in self.codes.get(name, []) for name in self.tops
                             if name not in standbys):
                raise Broken(17, "a server above has ended with 0, and counts examples as not "
                             f"trained: {self.codes}")
            return  # all had finished when they were lost
        if (often or lacks) and not self.stopped_early:
            raise Broken(17, "positions that are not once in the model: "
                         f"{often} too often, {lacks} too seldom")

    @property
    def stopped_early(self):
        return not any("epochs are trained" in line or "epoch is trained" in line
                       for line in self.said if any(f" {name}: " in line for name in self.tops))

    def _cuts_are_whole(self, site):
        """A site's cuts name what it has accepted of its workers, and nothing else."""
        if self.plan.loses_workers:
            return
        named = in_spans(itertools.chain(*site.spans.values())) + site.gone
        accepted = sum((member.pushes().trained for member in site.members), Counter())
        if named != accepted:
            raise Broken(17, f"{site.name} has accepted {accepted - named} that no cut names, and "
                         f"cuts name {named - accepted}")

    def _logged(self, names=()):
        """The weights of pushes by the logs of these servers, or of the sites' cuts above."""
        found = {}
        for event in self._events(names or self.tops):
            if event["kind"] in ("accept", "reject"):
                mine = found.setdefault(event["worker"], {})
                mine[event["seq"]] = event.get("weight", 0.0)
        return found

    def _events(self, names):
        """Return the events in the logs of these servers, without those that a resume undid."""
        return [event for name in names for event in standing_on(self.machines[name])]

    def _until(self, site, member):
        """Return the number above those of a worker's pushes that its site knew at the end.

        A standby that has begun without one, which the dead worker could not send again, does not.
        """
        last = [state for name in site.names for _, inode in checkpoints_on(self.machines[name])
                if (state := state_in(bytes(inode.data)))["over"]]
        return min([len(member.cuts), *(
            state["next_seq"].get(str(member.index), 0) for state in last)])

    def _lost(self, site, worker):
        """Return the numbers of a worker's pushes that its site has reported as lost."""
        lines = [line for line in self.said if any(f" {name}: " in line for name in site.names)]
        return lost_pushes(worker, [self.machines[name] for name in site.names], lines)


def drawn(seed: int, data: bool | None = None) -> SitesPlan:
    """Return a plan with some kinds of faults, as the seed draws it.

    Args:
        data: whether all workers share data; None: as drawn.
    """
    draw = random.Random(f"plan of sites {seed}")

    def some(chance, most):
        return draw.randint(1, most) if draw.random() < chance else 0
    models = "asp", "bsp", "ssp", "pcc", "wbsp", "localsgd", "nbsync", "esync", "ksync", "dssp"
    plan = SitesPlan(draw.choice(models), draw.choice(models), sites=draw.choice([1, 2, 2, 3]),
                     workers=draw.choice([1, 2, 2]), steps=draw.choice([4, 12, 25]),
                     period=draw.choice([0.1, 0.2, 1.0]))
    if plan.above == "localsgd":
        plan.options = {"tau": draw.choice([2, 3])}
    plan.kills, plan.kill_top = some(0.6, 3), some(0.4, 2)
    plan.breaks, plan.cuts, plan.sleeps = some(0.4, 3), some(0.4, 2), some(0.3, 2)
    plan.storm = draw.choice([0.01, 0.03]) if draw.random() < 0.2 else 0.0
    plan.drift = draw.choice([0.001, 0.02]) if draw.random() < 0.3 else 0.0
    plan.slow = draw.choice([0.0, 0.02, 0.3]) if draw.random() < 0.4 else 0.002
    # The last draws change nothing in plans without them.
    plan.standby = draw.random() < 0.4
    plan.isolations = some(0.3, 2) if plan.standby else 0
    if draw.random() < 0.4 if data is None else data:
        plan.data = draw.choice([24, 45, 60, 200]), draw.choice([1, 4, 7]), draw.choice([1, 2, 3])
        plan.validate = draw.choice(["newest", "newest", "wait"])
        plan.kill_workers = some(0.3, 2)
    plan.top_standby = draw.random() < 0.3
    if plan.top_standby and not plan.isolations:
        plan.isolations = some(0.3, 2)
    # Of a generator of their own: the same.
    draw = random.Random(f"ends of sites {seed}")
    if draw.random() < 0.3:
        who = "site", "site", "top", "site top", "site worker"
        plan.ends = tuple((draw.choice(_ENDS), draw.choice(who))
                          for _ in range(draw.choice([1, 2])))
    if draw.random() < 0.2:
        plan.kill_waiting = draw.choice([1, 2])
    draw = random.Random(f"more ends of sites {seed}")
    if draw.random() < 0.2:
        who = "top", "site top", "top worker", "site worker"
        plan.ends += tuple((draw.choice(_LATER_ENDS), draw.choice(who))
                           for _ in range(draw.choice([1, 2])))
    if plan.data is None and random.Random(f"uncounted of sites {seed}").random() < 0.15:
        plan.uncounted = 0.4
    draw = random.Random(f"readers of sites {seed}")
    if draw.random() < 0.2:
        plan.readers = draw.choice([1, 1, 2])
    if plan.data is not None and draw.random() < 0.3:
        plan.validates, plan.validate = True, draw.choice(["newest", "wait"])
        plan.kill_validators = draw.choice([0, 0, 1, 2])
        plan.kill_asking = int(draw.random() < 0.2)
    return plan
