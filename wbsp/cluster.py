"""Who is who in a run: from arguments, from TF_CONFIG, or from a tf.distribute cluster resolver.

TF_CONFIG is what TensorFlow's users and their schedulers already set:
{"cluster": {"ps": ["host:port"], "worker": [...]}, "task": {"type": "worker", "index": 0}}
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple


class Task(NamedTuple):
    """One process's place: the server's address, and this worker's index."""

    address: str
    index: int

    @classmethod
    def complete(cls, address: str | None, index: int | None) -> Task:
        """Fill in from TF_CONFIG what is None. Raises ValueError if it is not there either."""
        if address is None or index is None:
            spec = tf_config()
            address = spec.server if address is None else address
            if index is None:
                index = spec.must_be("worker").index
        if index < 0:
            raise ValueError(f"worker_index must be 0 or more, not {index}")
        return cls(address, index)

    @classmethod
    def of(cls, resolver: Any) -> Task:
        """From a `tf.distribute.cluster_resolver` (Slurm, Kubernetes, TF_CONFIG, ...)."""
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
    """What TF_CONFIG says."""

    server: str
    workers: int
    kind: str  # "ps" or "worker"
    index: int

    def must_be(self, kind: str) -> Spec:
        """Itself. Raises ValueError where this process is to be something else."""
        if self.kind != kind:
            raise ValueError(f"TF_CONFIG makes this process a task of type {self.kind!r}, not a "
                             f"{kind}")
        return self


def tf_config() -> Spec:
    """Read the environment variable TF_CONFIG. Raises ValueError, in one line."""
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
