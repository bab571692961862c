"""Keep the state of wbsp's modules separately for each simulated process.

By such variables a worker's process knows which run it is in, was in, and will be in: see
`wbsp.worker.process` and `wbsp.worker.next_run`. All simulated processes share one interpreter, so
`PROCESS`, and each such dict, set or list, is replaced by one that differs between processes.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import MutableMapping, MutableSequence, MutableSet
from unittest.mock import patch

from wbsp.worker import loop, next_run, process

MODULES = loop, next_run


class _Own:
    def __init__(self, world, kind):
        self._world, self._kind, self._nobody = world, kind, kind()

    @property
    def _its(self):
        if self._world.current is None:  # a thread that is thrown away with the world
            return self._nobody
        kept = vars(self._world.current.process).setdefault("variables", {})
        return kept.setdefault(id(self), self._kind())

    def __len__(self):
        return len(self._its)

    def __iter__(self):
        return iter(self._its)

    def __contains__(self, item):
        return item in self._its

    def __getitem__(self, key):
        return self._its[key]

    def __setitem__(self, key, value):
        self._its[key] = value

    def __delitem__(self, key):
        del self._its[key]


class _Dict(_Own, MutableMapping):
    pass


class _List(_Own, MutableSequence):
    def insert(self, index, value):
        self._its.insert(index, value)


class _Set(_Own, MutableSet):
    def add(self, item):
        self._its.add(item)

    def discard(self, item):
        self._its.discard(item)


class _Process(_Own):
    def __getattr__(self, name):
        return getattr(self._its, name)


_KINDS = {dict: _Dict, list: _List, set: _Set}


class AtExit:
    """A stand-in for Python's atexit: what a process does at its end, the newest first."""

    def __init__(self, world):
        self._acts = _List(world, list)

    def register(self, act):
        self._acts.append(act)

    def unregister(self, act):
        self._acts[:] = [one for one in self._acts if one != act]

    def run(self):
        while len(self._acts):
            self._acts.pop()()
        next_run.close_all()


@contextlib.contextmanager
def own_modules(cluster):
    """Within this context each simulated process has its own state of `MODULES`."""
    world, ends = cluster.world, AtExit(cluster.world)
    hook = sys.excepthook
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            for name, value in [*vars(module).items()]:
                if type(value) in _KINDS and name[0] == "_" and name[1].islower():
                    stack.enter_context(patch.object(
                        module, name, _KINDS[type(value)](world, type(value))))
            stack.enter_context(patch.multiple(
                module, atexit=ends, in_child=lambda act: None, forget=lambda act: None))
        stack.enter_context(patch.object(loop, "PROCESS", _Process(world, process.Process)))
        stack.enter_context(patch.object(process, "in_child", lambda act: None))
        stack.enter_context(patch.object(loop, "Usage", lambda clock: lambda: (None, None)))
        stack.enter_context(patch.object(gc, "collect", lambda *_: 0))
        try:
            yield ends
        finally:
            sys.excepthook = hook
