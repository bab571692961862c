"""`python kill_points.py POINT NUMBER ARGUMENTS...`: run `python -m wbsp.ps ARGUMENTS`, and kill
this process (kill -9) when it reaches a point of the protocol for the NUMBER-th time.

Points of a server:
    received    an update has arrived whole; nothing is decided
    decided     the model has answered; the store does not have the update
    accepted    the store has the update; no version contains it
    committed   a version is made; no other process knows of it
    answered    the answer, and all that follows from it, is in transit
    replicated  the standby has confirmed a copy
Points of a shard:
    held        a slice has arrived whole; the server does not know of it
    ordered     the log orders to add it to the sum
    made        the log has ordered a version; no worker has received it
    asked       the log orders to send it to a worker
"""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

from wbsp.core.decisions import Accepted, Committed
from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.replication.primary import Replication
from wbsp.ps.sharding.shard import Shard
from wbsp.wire.messages import sharding as s

OF_SERVER = "received", "decided", "accepted", "committed", "answered", "replicated"
OF_SHARD = "held", "ordered", "made", "asked"


def arrange(point: str, number: int) -> None:
    """Kill this process when it reaches `point` for the `number`-th time."""
    times, pushed = itertools.count(1), []

    def comes() -> None:
        if next(times) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: type, name: str, before: Callable[..., Any] = lambda *_: False,
               after: Callable[..., Any] = lambda *_: False) -> None:
        """Count the point before or after a call if these predicates of its arguments (and of its
        result) are true.
        """
        act = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            if before(*arguments):
                comes()
            result = act(*arguments, **named)
            if after(result, *arguments):
                comes()
            return result

        setattr(owner, name, wrapped)

    match point:
        case "received":
            around(Engine, "push", before=lambda *_: True)
        case "decided":
            around(Engine, "_apply", before=lambda *arguments: len(arguments) > 3)  # of a push
        case "accepted" | "committed":
            # shards, if the run has some, know it by then
            kind = Accepted if point == "accepted" else Committed
            around(Store, "apply", after=lambda _, store, record, *more: isinstance(record, kind))
        case "answered":
            around(Engine, "push", before=lambda *_: pushed.append(1))
            for name in ("_handle", "hear_shard"):
                around(Dispatcher, name, after=lambda *_: pushed and pushed.pop())
        case "replicated":
            around(Replication, "held", after=lambda _, self, peer, held: (
                self._standby is not None and self._standby.held == held.number > 0))
        case "held":
            around(Shard, "take", after=lambda holds, *_: holds is not None)
        case "ordered":
            around(Shard, "follow", before=lambda shard, message: isinstance(message, s.Apply))
        case "made":
            around(Shard, "follow", after=lambda _, shard, message: isinstance(message, s.Commit))
        case "asked":
            around(Shard, "version", before=lambda *_: True)
        case _:
            raise ValueError(f"unknown point {point!r}")


if __name__ == "__main__":
    arrange(sys.argv[1], int(sys.argv[2]))
    sys.argv = ["wbsp.ps", *sys.argv[3:]]
    runpy.run_module("wbsp.ps", run_name="__main__", alter_sys=True)
