"""TensorFlow's distributed runtime, in two ways: by requests of clients, and by its coordinator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np

from lab.benchmarks.contenders.team import VALUE, Team, serve, start_team
from scripts.harness import free_port

AHEAD = 4  # trips of each worker that its coordinator schedules before it waits for them


@contextmanager
def clients(workers: int, size: int) -> Iterator[Team]:
    """Workers whose variables lie on a server.

    Of the runtime's ways this is the fastest: one tf.function placed on both devices, so that a
    round trip is one request. A variable is its client's own, which spares the server the waiting
    for other clients.
    """
    address = f"localhost:{free_port()}"
    with start_team(_server, [({"ps": [address]}, "ps", 0)]), \
            start_team(_client, [(address, size)] * workers) as started:
        yield started


@contextmanager
def coordinator(workers: int, size: int) -> Iterator[Team]:
    """Workers that a ClusterCoordinator schedules steps for, and a model that is all workers' one.

    The times are those of the one process that schedules; what is pulled stays with the worker.
    """
    cluster = {job: [f"localhost:{free_port()}" for _ in range(count)]
               for job, count in (("ps", 1), ("worker", workers))}
    servers = [(cluster, job, index) for job, places in cluster.items()
               for index in range(len(places))]
    with start_team(_server, servers), start_team(_chief, [(cluster, size)]) as started:
        yield started


def _server(pipe: Connection, cluster: dict[str, list[str]], job: str, index: int) -> None:
    """A task of the cluster."""
    tf = _tensorflow()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc")
    pipe.send(None)
    server.join()


def _client(pipe: Connection, address: str, size: int) -> None:
    tf = _tensorflow()
    tf.config.experimental_connect_to_host(address, job_name="ps")
    there, here = "/job:ps/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/CPU:0"
    with tf.device(there):
        variable = tf.Variable(tf.zeros([size]))
    with tf.device(here):
        update = tf.fill([size], tf.constant(VALUE))
    expected = np.float32(0)

    @tf.function
    def push_and_pull(update):
        with tf.device(there):
            variable.assign_add(update, read_value=False)
            value = variable.read_value()
        with tf.device(here):
            return tf.identity(value)

    def trip() -> None:
        nonlocal expected
        with tf.device(here):
            x = push_and_pull(update).numpy()
        expected += VALUE
        if x[0] != expected or x[-1] != expected:
            raise RuntimeError(f"TensorFlow's variable holds {x[0]}, not {expected}")

    serve(pipe, trip)


def _chief(pipe: Connection, cluster: dict[str, list[str]], size: int) -> None:
    """Run the process that schedules."""
    tf = _tensorflow()
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc"))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = tf.Variable(tf.zeros([size]))
    updates = iter(coordinator.create_per_worker_dataset(
        lambda: tf.data.Dataset.from_tensors(tf.fill([size], tf.constant(VALUE))).repeat()))
    trips = AHEAD * len(cluster["worker"])
    made = 0

    @tf.function
    def push_and_pull(updates):
        model.assign_add(next(updates), read_value=False)
        return tf.identity(model.read_value())

    def trip() -> None:
        nonlocal made
        for _ in range(trips):
            coordinator.schedule(push_and_pull, args=(updates,))
        coordinator.join()
        made += trips

    def again(more: bool) -> bool:
        for value in model.sparse_read([0, size - 1]).numpy():
            if value != np.float32(made * VALUE):
                raise RuntimeError(f"TensorFlow's model holds {value}, not {made * VALUE}")
        return more

    serve(pipe, trip, again, AHEAD)


def _tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    return tf
