"""Run a Ray cluster of several nodes on this machine; they share its address."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import psutil
from jobs import free_port, surroundings

# The death of a node is seen after some two seconds, in place of half a minute.
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
         "health_check_failure_threshold": 4}
MEMORY = 80 << 20  # bytes of each node's object store, the least that Ray takes


class NotUpError(RuntimeError):
    """A node did not start within Ray's own limit in several tries: the machine is too busy."""


class RayCluster(contextlib.AbstractContextManager):
    """A head node with these numbers of CPUs and GPUs (which are no devices), and other nodes with
    one of each.

    Nodes are added and removed in the main thread only.
    """

    def __init__(self, gpus: int = 0, nodes: int = 0, cpus: int = 1,
                 dashboard: int | None = None):
        """Start the head; `dashboard`: port of its dashboard, which accepts jobs."""
        from ray.cluster_utils import Cluster
        self._before = dict(os.environ)
        os.environ.update(surroundings(), RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")
        self._cluster = Cluster()
        self.nodes: list[Any] = []  # without the head
        try:
            shown = {} if dashboard is None else {"dashboard_port": dashboard}
            self._add(num_cpus=cpus, num_gpus=gpus, include_dashboard=bool(shown),
                      no_monitor=True, _system_config=QUICK, **shown)
            for _ in range(nodes):
                self.add()
        except BaseException:
            self.__exit__()
            raise

    @property
    def address(self) -> str:
        return self._cluster.address

    def add(self) -> None:
        """Add a node."""
        self.nodes.append(self._add(num_cpus=1, num_gpus=1))

    def _add(self, **arguments: Any) -> Any:
        """Add a node. Ray gives up a node that has not started within half a minute; because the
        machine may be busy, it is tried again.
        """
        for last in (False, False, True):
            try:
                return self._cluster.add_node(
                    object_store_memory=MEMORY, **arguments,
                    dashboard_agent_listen_port=free_port())  # of Ray's own, all nodes have one
            except Exception as error:  # of no narrower type
                if "timed out" not in str(error).lower():
                    raise
                if last:
                    raise NotUpError(f"Ray did not come up here: {error}") from error
        return None

    def node_of(self, pid: int) -> Any:
        """Return the node, not the head, on which a process lives."""
        above = {process.pid for process in psutil.Process(pid).parents()}
        [node] = [node for node in self.nodes
                  if node.all_processes["raylet"][0].process.pid in above]
        return node

    def kill(self, node: Any) -> None:
        """Kill the node, with all its processes."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def __exit__(self, *_: object) -> None:
        try:
            self._cluster.shutdown()
        finally:
            os.environ.clear()
            os.environ.update(self._before)
