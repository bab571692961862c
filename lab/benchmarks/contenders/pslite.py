"""ps-lite, in the last wheel that has it: MXNet 1.9.1, whose newest numpy is 1.23.5."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

from lab.benchmarks.contenders.environment import python_with
from lab.benchmarks.contenders.team import VALUE, Team, serve, start_team
from scripts.harness import free_port


@contextmanager
def kvstore(workers: int, size: int) -> Iterator[Team]:
    """Workers, a server and a scheduler of a kvstore dist_async: a push is added to the model at
    once, as under asp."""
    python = python_with("mxnet-1.9.1", "mxnet==1.9.1", "numpy==1.23.5")
    places = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()),
              "DMLC_NODE_HOST": "127.0.0.1", "DMLC_INTERFACE": "lo",
              "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers)}
    with ExitStack() as stack:
        for role in ("scheduler", "server"):
            stack.enter_context(start_team(_other, [({**places, "DMLC_ROLE": role},)], python))
        yield stack.enter_context(
            start_team(_worker, [({**places, "DMLC_ROLE": "worker"}, size)] * workers, python))


def _other(pipe: Connection, places: dict[str, str]) -> None:
    """The scheduler or the server."""
    pipe.send(None)
    os.environ.update(places)
    import mxnet  # noqa: F401 (which does this process's part, and does not return)


def _worker(pipe: Connection, places: dict[str, str], size: int) -> None:
    os.environ.update(places)
    import mxnet as mx

    store = mx.kv.create("dist_async")
    store.set_optimizer(mx.optimizer.SGD(learning_rate=-1.0))  # model += update, in one pass
    store.init(0, mx.nd.zeros(size))
    update, model = mx.nd.full(size, VALUE), mx.nd.zeros(size)
    mx.nd.waitall()
    pushes = 0

    def trip() -> None:
        nonlocal pushes
        store.push(0, update)
        store.pull(0, out=model)
        model.wait_to_read()
        pushes += 1

    def again(more: bool) -> bool:
        first, last = model[0].asscalar(), model[-1].asscalar()
        if not first == last >= pushes * VALUE:
            raise RuntimeError(f"ps-lite's model holds {first} and {last}, after {pushes} pushes "
                               f"of {VALUE} by this worker alone")
        update[:] = VALUE  # a pull receives into the array that was pushed, and copies from there
        update.wait_to_read()
        return more

    serve(pipe, trip, again)
