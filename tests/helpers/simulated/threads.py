"""Threads of a simulated process, and what they wait for: see `wbsp.process.host.Scheduler`."""

from __future__ import annotations

import collections
import concurrent.futures
import math
import queue

import greenlet


class SimulatedExit(Exception):
    """Ends a thread whose process has ended itself."""


class Thread:
    def __init__(self, process, target, name):
        self._process, self._target, self.name = process, target, name
        self._task, self._done, self._joining = None, False, []

    def start(self):
        world = self._process.world

        def body():
            try:
                self._target()
            finally:
                self._done = True
                for task in self._joining:
                    world.wake(task)
        self._task = self._process.start(body, self.name)

    def is_alive(self):
        return self._task is not None and not self._done

    def join(self, timeout=None):
        world = self._process.world
        deadline = math.inf if timeout is None else self._process.until(timeout)
        self._joining.append(world.current)
        while not self._done and world.now < deadline:
            world.park(deadline)


class Lock:
    """A lock whose holder never waits: checked, not locked."""

    def __init__(self, process):
        self._world, self._held = process.world, False

    def __enter__(self):
        if self._held:
            error = AssertionError("a lock is held by a thread that waits")
            self._world.failures.append(error)
            raise error
        self._held = True

    def __exit__(self, *_):
        self._held = False


class Condition:
    def __init__(self, process):
        self._process, self._world = process, process.world
        self._owner, self._depth = None, 0
        self._waiting, self._entering = [], []

    def __enter__(self):
        self._enter(self._world.current, 1)
        return self

    def __exit__(self, *_):
        self._depth -= 1
        if not self._depth:
            self._leave()

    def wait(self, timeout=None):
        world, task, depth = self._world, self._world.current, self._depth
        self._depth = 0
        self._leave()
        self._waiting.append(task)
        world.park(math.inf if timeout is None else self._process.until(timeout))
        if task in self._waiting:
            self._waiting.remove(task)
        self._enter(task, depth)

    def wait_for(self, holds, timeout=None):
        end = self._world.now + (math.inf if timeout is None else timeout)
        while not (held := holds()) and (left := end - self._world.now) > 0:
            self.wait(None if left == math.inf else left)
        return held

    def notify_all(self):
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._world.wake(task)

    notify = notify_all

    def _enter(self, task, depth):
        while self._owner not in (None, task):
            self._entering.append(task)
            self._world.park()
        self._owner, self._depth = task, self._depth + depth

    def _leave(self):
        self._owner = None
        entering, self._entering = self._entering, []
        for task in entering:
            self._world.wake(task)


class Queue:
    def __init__(self, process):
        self._process, self._items, self._waiting = process, collections.deque(), []

    def put(self, item):
        self._items.append(item)
        for task in self._waiting:
            self._process.world.wake(task)

    def get(self, block=True, timeout=None):
        world = self._process.world
        deadline = math.inf if timeout is None else self._process.until(timeout)
        while not self._items:
            if world.now >= deadline:
                raise queue.Empty
            self._waiting.append(world.current)
            world.park(deadline)
            self._waiting.remove(world.current)
        return self._items.popleft()


class Future(concurrent.futures.Future):
    """A future whose `result` gives the turn back."""

    def __init__(self, process):
        super().__init__()
        self._world = process.world

    def result(self, timeout=None):
        self._wait(math.inf)
        try:
            return super().result(0)
        finally:
            del self  # as the real one: an error's traceback holds this frame, and so its memory

    def done_by(self, deadline):
        self._wait(deadline)
        return self.done()

    def _wait(self, deadline):
        world = self._world
        if self.done() or world.now >= deadline:
            return
        task = world.current
        self.add_done_callback(lambda _: world.wake(task))
        while not self.done() and world.now < deadline:
            world.park(deadline)


class Pool:
    """One thread that makes one call after another."""

    def __init__(self, process, name):
        self._process, self._name = process, name
        self._calls, self._busy = collections.deque(), False

    def submit(self, call, *args):
        future = Future(self._process)
        self._calls.append((future, call, args))
        if not self._busy:
            self._busy, self._ended = True, Future(self._process)
            self._process.start(self._work, self._name)
        return future

    def shutdown(self, wait=True, cancel_futures=False):
        if cancel_futures:
            for future, _, _ in self._calls:
                future.cancel()
            self._calls.clear()
        if wait and self._busy:
            self._ended.result()

    def _work(self):
        while self._calls:
            future, call, args = self._calls.popleft()
            try:
                result = call(*args)
            except greenlet.GreenletExit:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del future, call, args  # as the real one
        self._busy = False
        self._ended.set_result(None)


class Scheduler:
    """Attributes:
        signals: number -> what the process does on it.
    """

    def __init__(self, process):
        self._process, self.signals = process, {}

    def lock(self):
        return Lock(self._process)

    def condition(self):
        return Condition(self._process)

    def queue(self):
        return Queue(self._process)

    def future(self):
        return Future(self._process)

    def pool(self, name):
        return Pool(self._process, name)

    def thread(self, target, name):
        return Thread(self._process, target, name)

    def done(self, future, seconds):
        return future.done_by(self._process.until(seconds))

    def random(self, number):
        return self._process.rng.randbytes(number)

    def number(self):
        return self._process.rng.getrandbits(63)

    def signal(self, number, act):
        self.signals[number] = act

    def exit(self, code):
        self._process.world.ended(self._process, code)
        self._process.world.park()
