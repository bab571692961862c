"""Keep virtual time, and the processes and threads that live in it, in one thread of the system.

Each thread of each process is a greenlet. A thread that waits gives the turn back to one heap of
the next events, by time; so an hour costs nothing, and the same seed gives the same run.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import random

import greenlet

from wbsp.timeouts import UNACKNOWLEDGED

_LOOKS = 300_000  # at a clock, of a thread that never waits between them


class Task:
    """One thread of a process."""

    __slots__ = ("green", "name", "parked", "process", "token")

    def __init__(self, process, body, name):
        self.process, self.name, self.token, self.parked = process, name, 0, False
        # after a thread's end the hub runs, not the thread's starter
        self.green = greenlet.greenlet(body, parent=process.world.hub)


class Waited:
    """What a poller can wait for."""

    def __init__(self):
        self.waiting = {}  # tasks, in the order in which they came

    def notify(self):
        for task in self.waiting:
            task.process.world.wake(task)


class Process:
    """All that dies at once: threads, sockets, locks of files.

    Attributes:
        rate: of its clock, which runs on while the process sleeps.
    """

    def __init__(self, world, name, machine):
        self.world, self.name, self.machine = world, name, machine
        self.alive, self.tasks, self.sockets, self.files = True, [], [], []
        self.asleep_until = 0.0
        self.rate = 1.0 + world.drift * (2 * world.rng.random() - 1)
        self.offset = world.rng.uniform(10.0, 1e5)
        self.rng = random.Random(world.rng.getrandbits(64))
        self.numbers = itertools.count(1_000_000)  # of descriptors

    def monotonic(self):
        self.world.looks += 1
        if self.world.looks > _LOOKS:
            error = AssertionError(f"{self.name} looks at the clock without end, and never waits")
            self.world.failures.append(error)
            raise error
        return self.offset + self.rate * self.world.now

    def until(self, seconds):
        """Return the world's time when this many seconds of this process's clock are over."""
        return self.world.now + max(seconds, 0.0) / self.rate

    def sleep(self, seconds):
        self.world.park(self.until(seconds))

    def start(self, target, name="main"):
        """Start a thread; the process ends with its thread `main`."""
        world = self.world

        def body():
            try:
                result = target()
                if name == "main":
                    world.ended(self, result)
            except greenlet.GreenletExit:
                raise
            except BaseException as error:
                error.add_note(f"in {self.name}, thread {name}, at {world.now:.3f}")
                world.failures.append(error)
        task = Task(self, body, name)
        self.tasks.append(task)
        world.schedule(task, world.now)
        return task

    def kill(self):
        """Kill the process (kill -9)."""
        if self.alive:
            self.alive, self.world.stirred = False, True
            for socket in [*self.sockets]:
                socket.die()
            for file in [*self.files]:
                file.die()


class World:
    """The event loop, and what all processes share.

    Attributes:
        cut: pairs of machines of which the first does not reach the second.
        storm: chance that a message breaks the connection over which it is sent, for `storms`
            times.
        watchers: are called with every message that is sent: process, frames.
    """

    def __init__(self, seed, drift=0.0):
        self.rng = random.Random(seed)
        self.drift = drift
        self.now, self._heap, self._number, self.events = 0.0, [], 0, 0
        self.current, self.hub = None, greenlet.getcurrent()
        self.processes, self.listeners, self.cut = [], {}, set()
        self._until = 0.0  # how far the run goes
        self._parts = 0
        self._parted = {}  # pair of machines in `cut` -> number of the `part` that cut it last
        self.latency, self.bandwidth = (0.0001, 0.003), 50e6
        self.storm, self.storms = 0.0, 0
        self.failures, self.digest = [], 0
        self.looks = 0  # at a clock, since a thread has waited last
        self.stirred = False  # a process has ended
        self.names = {}  # of Unix sockets
        self.on_end = lambda process, result: None
        self.on_send = lambda process, frames: None
        self.on_disk = lambda process: None  # it is about to change something on its disk
        self.doomed = {}  # process -> steps, changes of its disk and messages, until it dies
        self.on_doom = lambda process: None
        self.on_local = lambda socket, data: None  # returns the function to call when it is read
        self.on_hand = lambda number, segment: None
        self.on_share = lambda process: None  # a process takes shared memory
        self.together = lambda one, two: one == two  # whether it is the same machine
        self.may_break = lambda connection: True  # a storm may

    def step(self, process):
        """It takes one, or does not come to it."""
        if process in self.doomed and process.alive:
            self.doomed[process] -= 1
            if self.doomed[process] < 0:
                del self.doomed[process]
                self.on_doom(process)
                if self.current and not self.current.process.alive:  # this one, or its child
                    self.park()  # for ever

    def process(self, name, machine):
        process = Process(self, name, machine)
        self.processes.append(process)
        return process

    def at(self, time, act):
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, act, 0))

    def after(self, seconds, act):
        self.at(self.now + seconds, act)

    def schedule(self, task, time):
        self._number += 1
        task.token += 1
        heapq.heappush(self._heap, (time, self._number, task, task.token))

    def park(self, deadline=math.inf):
        """Let the current thread wait until it is woken, or for the deadline."""
        if self.passes(deadline):
            return
        task = self.current
        assert task is not None, "something waits outside every simulated thread"
        task.parked, self.looks = True, 0
        if deadline < math.inf:
            self.schedule(task, max(deadline, self.now))
        else:
            task.token += 1
        self.hub.switch()
        task.parked = False

    def passes(self, deadline):
        """Return whether nothing else happens until `deadline`, which then is the present time: as
        if the current thread had waited for it, without the two switches.
        """
        task, heap = self.current, self._heap
        if (task is None or not deadline <= self._until or (heap and heap[0][0] <= deadline)
                or self.stirred or self.failures):
            return False
        process = task.process
        if not process.alive or process.asleep_until > deadline:
            return False
        self._number += 1
        task.token += 1
        self.events += 1
        self.looks, self.now = 0, max(deadline, self.now)
        self._seen(self._number)
        return True

    def _seen(self, number):
        self.digest = (self.digest * 1000003 ^ number ^ int(self.now * 1e9)) & (1 << 63) - 1

    def wake(self, task):
        if task.parked and task.process.alive:
            task.parked = False
            self.schedule(task, self.now + self.rng.random() * 2e-5)

    def run(self, over, until, most=3_000_000):
        """Run until `over()`, which is asked when a process has ended, or for this many seconds.

        Raise what a thread has raised; return False if it is not over.
        """
        self.hub, self._until = greenlet.getcurrent(), until
        heap = self._heap
        while heap:
            if self.stirred:
                self.stirred = False
                if over():
                    return True
            if self.now > until:
                return False
            time, number, what, token = heapq.heappop(heap)
            self.events += 1
            assert self.events < most, "the run does not end"
            if not token:
                if time > self.now:
                    self.now = time
                what()
            else:
                process = what.process
                if what.token != token or not process.alive:
                    continue
                if time > self.now:
                    self.now = time
                if process.asleep_until > self.now:
                    self.schedule(what, process.asleep_until)
                    continue
                self._seen(number)
                self.current, what.parked = what, False
                what.green.switch()
                self.current = None
            if self.failures:
                raise self.failures[0]
        return over()

    def ended(self, process, result):
        process.kill()
        self.on_end(process, result)

    def reachable(self, one, two):
        return (one, two) not in self.cut

    def part(self, pairs):
        """From now on the first of each pair of machines does not reach the second. After a while
        without an acknowledgement the kernels give up the connections between them.
        """
        self._parts += 1
        number = self._parts
        new = pairs - self.cut
        self.cut |= pairs
        self._parted.update(dict.fromkeys(new, number))

        def give_up():
            still = {pair for pair in new & self.cut if self._parted[pair] == number}
            for connection in self.connections() if still else ():
                if still & {connection.route(connection.up), connection.route(connection.down)}:
                    connection.lapse()
        self.after(UNACKNOWLEDGED, give_up)

    def heal(self, pairs):
        """Reconnect them; messages in transit arrive."""
        self.cut -= pairs
        for connection in self.connections():
            stuck, connection.stuck = connection.stuck, []
            for deliver in stuck:
                deliver()

    def connections(self):
        return [socket.connection for process in self.processes
                for socket in process.sockets if socket.connection is not None]

    def close(self):
        """Discard all threads, without letting them act."""
        for process in self.processes:
            process.alive = False
        for process in self.processes:
            for task in process.tasks:
                if task.green and not task.green.dead:
                    # what it does while it ends does not matter
                    with contextlib.suppress(BaseException):
                        task.green.throw(greenlet.GreenletExit)
