"""Server address and worker index from the environment, if no argument gives them.

Only this module reads these variables.

WBSP_SERVER        the server's address, as for SyncCallback; default: localhost:2606
WBSP_WORKER_INDEX  index of this process's worker: 0 ... worker_num - 1; default: the server chooses
WBSP_WORKER_NUM    number of workers that the server waits for
WBSP_TOKEN_FILE    file with the shared secret; without it, ~/.config/wbsp/token (below
                   XDG_CONFIG_HOME, if that is set) where other machines are involved
WBSP_UPSTREAM_TOKEN_FILE
                   file with the secret between a site and the server above it; without it, as above
WBSP_TRANSPORT     tcp: share no memory with processes of this machine; default: auto
TF_CONFIG          set by TensorFlow's users and their schedulers: {"task": {"type": "worker",
                   "index": 0}, "cluster": {"ps": ["host:port"], "worker": [...]}}; a chief or
                   master is worker 0
JOB_COMPLETION_INDEX, SLURM_PROCID
                   the index, in an indexed Job of Kubernetes and in a step of Slurm

Each value comes from the first of these that gives it: argument, WBSP_*, TF_CONFIG, scheduler. The
author of TF_CONFIG may count differently than the scheduler: for example, its ps may be a task of
the same step. So TF_CONFIG precedes the scheduler. An empty variable gives no value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from wbsp import given
from wbsp.process.token import Token, make_token, read_token

TRANSPORTS = "auto", "tcp"
TRAINERS = "chief", "master", "worker"  # types of tasks that train, in the order of their numbers
_SHOWN = 200  # characters of a variable in a message
DEFAULT_SERVER = "localhost:2606"  # that of `wbsp ps` without a flag


class Said(NamedTuple):
    """A variable of the environment and its value."""

    name: str
    text: str

    def refused(self, problem: object) -> ValueError:
        """Return the error for a wrong value: one line with the variable, its value, the problem.
        """
        text = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + " ..."
        return ValueError(f"{self.name} is {text!r}: {problem}")

    def number(self, least: int) -> int:
        """Return the text as an integer. Raises ValueError unless it is one of at least `least`.
        """
        if not (self.text.isascii() and self.text.isdigit() and int(self.text) >= least):
            raise self.refused(f"not a whole number of {least} or more")
        return int(self.text)


def _variable(*names: str) -> Said | None:
    """Return the first of these variables that is set and not empty."""
    for name in names:
        if text := os.environ.get(name, "").strip():
            return Said(name, text)
    return None


class Task(NamedTuple):
    """A worker's server and index.

    Attributes:
        address: of the server, host:port.
        worker: index of the worker; None: the server chooses it.
    """

    address: str
    worker: int | None

    @classmethod
    def complete(cls, address: str | None, index: int | None, default: Task | None = None, *,
                 check: Callable[[str], object] = str) -> Task:
        """Return the task, with what is None taken from the environment, else from `default`.

        The server's address is then that of a server on this machine: `DEFAULT_SERVER`; the index
        stays None.

        Args:
            address: of the server, host:port.
            index: of the worker.
            default: a task that applies if neither argument nor environment gives a value.
            check: raises ValueError for a text that is no address.

        Raises:
            ValueError: a value is wrong; one line.
        """
        address = address_of_server(address, check, default and default.address)
        if index is None:
            index = _worker_index()
        if index is None and default is not None:
            index = default.worker
        if index is None:
            return cls(address, None)
        try:
            return cls(address, given.whole("worker_index", index, 0, (1 << 31) - 1))
        except ValueError:
            raise ValueError("worker_index must be a whole number of 0 or more, not "
                             f"{given.shown(index)}") from None

    @classmethod
    def of(cls, resolver: Any) -> Task:
        """Return the task that a `tf.distribute.cluster_resolver` names.

        Args:
            resolver: the resolver.

        Raises:
            ValueError: it does not make this process a worker of exactly one server.
        """
        cluster = resolver.cluster_spec().as_dict()
        servers = cluster.get("ps", [])
        if len(servers) != 1:
            raise ValueError(f"the cluster resolver names {len(servers)} ps tasks; wbsp needs one")
        if resolver.task_type not in TRAINERS:
            raise ValueError(f"the cluster resolver makes this process a task of type "
                             f"{resolver.task_type!r}, not a worker")
        if resolver.task_id is None:
            raise ValueError("the cluster resolver gives this process no task index")
        return cls(servers[0], _before(cluster, resolver.task_type) + resolver.task_id)


def server_address(kind: str | None = None) -> Said | None:
    """Return the server's address from the environment; None if it has none.

    Raises ValueError for a wrong TF_CONFIG.

    Args:
        kind: what this process must be in TF_CONFIG, if given.
    """
    if said := _variable("WBSP_SERVER"):
        return said
    spec = tf_config()
    if spec is None:
        return None
    if kind is not None:
        spec.must_be(kind)
    return Said("the ps in TF_CONFIG", spec.server)


def worker_num() -> int | None:
    """Return the number of workers from the environment; None if unknown. Raises ValueError."""
    if said := _variable("WBSP_WORKER_NUM"):
        return said.number(1)
    spec = tf_config()
    return None if spec is None else spec.must_be("ps").workers


def token(path: str | None, variable: str = "WBSP_TOKEN_FILE") -> Token | None:
    """Return the run's secret, from the file at `path` or else from that of the variable.

    Raises ValueError or OSError, in one line.

    Args:
        path: "" for no secret, whatever the environment has.
    """
    if path is not None:
        return read_token(path) if path else None
    said = _variable(variable)
    if said is None:
        return None
    try:
        return read_token(said.text)
    except (ValueError, OSError) as error:
        raise said.refused(error) from None


def token_of_server(path: str | None, beyond: bool) -> tuple[Token | None, bool]:
    """Return the secret of a process that listens, and whether this call has made it.

    Args:
        path: as for `token`.
        beyond: other machines can reach it: without `path` and variable, it has the secret of the
            usual place, where one is made if necessary.

    Raises:
        ValueError: it is too short; one line.
        OSError: it cannot be made or read; one line.
    """
    chosen = token(path)
    if chosen is None and path is None and beyond:
        return make_token()
    return chosen, False


def shares_memory(transport: str | None) -> bool:
    """Return whether memory may be shared within a machine, by `transport` or else WBSP_TRANSPORT.

    Raises ValueError, in one line, unless it is "auto" or "tcp".
    """
    said = Said("transport", transport) if transport else _variable("WBSP_TRANSPORT")
    if said is not None and said.text not in TRANSPORTS:
        raise said.refused(f"not one of {', '.join(TRANSPORTS)}")
    return said is None or said.text == "auto"


def address_of_server(given: str | None, check: Callable[[str], object],
                      default: str | None = None) -> str:
    """Return the server's address: as given, else from the environment, else the default.

    Args:
        given: the address, or None.
        check: raises ValueError for a text that is no address.
        default: if neither gives one; None: `DEFAULT_SERVER`.

    Raises:
        ValueError: a value is wrong; one line.
    """
    if given is not None:
        check(given)
        return given
    said = server_address()
    if said is None:
        return default or DEFAULT_SERVER
    try:
        check(said.text)
    except ValueError as error:
        raise said.refused(error) from None
    return said.text


def shown_server(address: str) -> str:
    """Return a server's address for a line about a wait for it; the default is named as that."""
    return address if address != DEFAULT_SERVER else (
        f"{address} (the default; WBSP_SERVER=host:port names another)")


def _worker_index() -> int | None:
    if said := _variable("WBSP_WORKER_INDEX"):
        return said.number(0)
    if spec := tf_config():
        return spec.must_be("worker").worker
    if said := _variable("JOB_COMPLETION_INDEX", "SLURM_PROCID"):
        return said.number(0)
    return None


class Spec(NamedTuple):
    """The content of TF_CONFIG: the cluster, and this process's task in it.

    Attributes:
        kind: of this task: "ps", "worker" (also for a chief and a master), or another.
        worker: index of the worker; 0 for a task that is not a worker.
    """

    server: str
    workers: int  # how many
    kind: str
    worker: int

    def must_be(self, kind: str) -> Spec:
        """Return this Spec. Raises ValueError if the task is of another kind."""
        if self.kind != kind:
            way = {"ps": "start python -m wbsp.ps in it", "worker": "python -m wbsp.ps is for the "
                   "ps, and a script with SyncCallback for the workers"}.get(
                       self.kind, "it takes no part in the training, which continues without it")
            raise ValueError(f"TF_CONFIG makes this process a task of type {self.kind!r}, not a "
                             f"{kind}: {way}")
        return self


def tf_config() -> Spec | None:
    """Return the content of the variable TF_CONFIG; None if it is not set. Raises ValueError."""
    said = _variable("TF_CONFIG")
    if said is None:
        return None
    try:
        return _spec(json.loads(said.text))
    except KeyError as error:
        problem = f"it has no {error}"
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        problem = str(error)
    raise said.refused(f"no cluster of one ps and workers: {problem}; WBSP_SERVER, "
                       "WBSP_WORKER_INDEX and WBSP_WORKER_NUM take precedence")


def _spec(config: dict[str, Any]) -> Spec:
    cluster, task = config["cluster"], config["task"]
    servers, kind = cluster["ps"], task["type"]
    if not any(one in cluster for one in TRAINERS):
        raise KeyError("worker")
    for one in ("ps", *TRAINERS):
        tasks = cluster.get(one, [])
        if not (isinstance(tasks, list) and all(isinstance(task, str) for task in tasks)):
            raise ValueError(f"{one!r} is {tasks!r}, not a list of addresses")
    if len(servers) != 1:
        raise ValueError(f"{len(servers)} ps tasks; wbsp needs one")
    workers = sum(len(cluster.get(one, [])) for one in TRAINERS)
    if not workers:
        raise ValueError("no worker tasks; name each of them")
    if kind not in TRAINERS:
        return Spec(servers[0], workers, str(kind), 0)
    tasks = cluster.get(kind, [])
    index = 0 if "index" not in task and len(tasks) == 1 else Said(
        "the task's index", str(task["index"])).number(0)
    if index >= len(tasks):
        raise ValueError(f"the task is number {index} of type {kind!r}, and the cluster has "
                         f"{len(tasks)} of these, from 0 on")
    return Spec(servers[0], workers, "worker", _before(cluster, kind) + index)


def _before(cluster: dict[str, Any], kind: str) -> int:
    """Return how many workers have lower numbers than those of this type."""
    return sum(len(cluster.get(one, [])) for one in TRAINERS[:TRAINERS.index(kind)])
