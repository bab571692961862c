"""Membership of a run: from arguments, from TF_CONFIG, or from a tf.distribute cluster resolver.

TF_CONFIG is the environment variable that TensorFlow's users and their schedulers already set:
{"cluster": {"ps": ["host:port"], "worker": [...]}, "task": {"type": "worker", "index": 0}}
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple


class Task(NamedTuple):
    """A worker's place in the run: the server's address, and the worker's index."""

    address: str
    worker: int

    @classmethod
    def complete(cls, address: str | None, index: int | None) -> Task:
        """The task, with what is None taken from TF_CONFIG.

        Raises ValueError, in one line, for a bad index or TF_CONFIG.
        """
        if address is None or index is None:
            spec = tf_config()
            address = spec.server if address is None else address
            if index is None:
                index = spec.must_be("worker").task_index
        if index < 0:
            raise ValueError(f"worker_index must be 0 or more, not {index}")
        return cls(address, index)

    @classmethod
    def of(cls, resolver: Any) -> Task:
        """The task that a `tf.distribute.cluster_resolver` names (Slurm, Kubernetes, ...).

        Raises ValueError where the resolver names no worker of exactly one server.
        """
        servers = resolver.cluster_spec().as_dict().get("ps", [])
        if len(servers) != 1:
            raise ValueError(f"the cluster resolver names {len(servers)} ps tasks; wbsp needs one")
        if resolver.task_type not in (None, "", "worker"):
            raise ValueError(f"the cluster resolver makes this process a task of type "
                             f"{resolver.task_type!r}, not a worker")
        if resolver.task_id is None:
            raise ValueError("the cluster resolver gives this process no task index")
        return cls(servers[0], resolver.task_id)


class Spec(NamedTuple):
    """The content of TF_CONFIG: the cluster, and this process's task in it."""

    server: str
    workers: int  # how many
    kind: str  # of this task: "ps" or "worker"
    task_index: int

    def must_be(self, kind: str) -> Spec:
        """This Spec. Raises ValueError where the task is of another kind."""
        if self.kind != kind:
            raise ValueError(f"TF_CONFIG makes this process a task of type {self.kind!r}, not a "
                             f"{kind}")
        return self


def tf_config() -> Spec:
    """The content of the environment variable TF_CONFIG. Raises ValueError, in one line."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ValueError("neither the server's address and worker_index nor the environment "
                         "variable TF_CONFIG is given; say for example "
                         'SyncCallback("localhost:2606", worker_index=0)')
    try:
        return _spec(json.loads(text))
    except KeyError as error:
        problem = f"it has no {error}"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise ValueError(f"TF_CONFIG is no cluster of one ps and workers: {problem}")


def _spec(config: dict[str, Any]) -> Spec:
    cluster, task = config["cluster"], config["task"]
    servers, workers = cluster["ps"], cluster["worker"]
    for kind, tasks in (("ps", servers), ("worker", workers)):
        if not (isinstance(tasks, list) and all(isinstance(task, str) for task in tasks)):
            raise ValueError(f"{kind!r} is {tasks!r}, not a list of addresses")
    if len(servers) != 1:
        raise ValueError(f"{len(servers)} ps tasks; wbsp needs one")
    if "chief" in (*cluster, task["type"]):
        raise ValueError("a chief; wbsp has none: make it a worker")
    if not workers:
        raise ValueError("no worker tasks; name each of them")
    return Spec(servers[0], len(workers), task["type"], int(task["index"]))
