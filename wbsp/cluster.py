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
            if index is None and spec.kind != "worker":
                raise ValueError(f"TF_CONFIG makes this process a {spec.kind}, not a worker")
            index = spec.index if index is None else index
        if index < 0:
            raise ValueError(f"worker_index must be 0 or more, not {index}")
        return cls(address, index)

    @classmethod
    def of(cls, resolver: Any) -> Task:
        """From a `tf.distribute.cluster_resolver` (Slurm, Kubernetes, TF_CONFIG, ...)."""
        servers = resolver.cluster_spec().as_dict().get("ps", [])
        if len(servers) != 1:
            raise ValueError(f"the cluster resolver names {len(servers)} ps tasks; wbsp needs one")
        if resolver.task_id is None:
            raise ValueError("the cluster resolver gives this process no task index")
        return cls(servers[0], resolver.task_id)


class Spec(NamedTuple):
    """What TF_CONFIG says."""

    server: str
    workers: int
    kind: str  # "ps" or "worker"
    index: int


def tf_config() -> Spec:
    """Read the environment variable TF_CONFIG. Raises ValueError, in one line."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ValueError("neither the server's address and worker_index nor the environment "
                         "variable TF_CONFIG is given; say for example "
                         'SyncCallback("localhost:2606", worker_index=0)')
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        servers, kind, index = cluster["ps"], task["type"], int(task["index"])
        if len(servers) != 1:
            raise ValueError(f"{len(servers)} ps tasks; wbsp needs one")
        if kind == "chief":
            raise ValueError("a chief; wbsp has none: make it a worker")
        return Spec(servers[0], len(cluster.get("worker", [])), kind, index)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"TF_CONFIG is no cluster of one ps and workers: {error!r}") from None
