"""Clusters in virtual time: the real decisions and real training, without the machines.

The world, independent of synchronization models:
    world/clock.py        the queue of events
    world/links.py        bandwidth, shared fairly by transfers that run at the same time
    world/lines.py        the same for transfers through several links: the lines of sites
    world/server.py       a server: its interface, its time for a push, and its shards
    world/machine.py      a machine: its step times, its link, the presence of its worker

The cluster, which drives the real engine and the real agents in that world:
    nodes/cluster.py      a whole cluster: the class for studies and tests
    nodes/server.py       the server's side: messages in turn, and the engine's answers
    nodes/site.py         a site: a server that is a worker of another server
    nodes/worker.py       a worker's side: the compute thread, the agent's commands, and observers

What the workers train:
    workloads/base.py     the protocol; no tensors, for studies of time
    workloads/slope.py    a constant gradient: how many steps a model makes of the workers'
    workloads/keras.py    Keras networks, which all workers share: network.py, on a back end of
                          Keras's in tensorflow.py and jax.py

The command, `python -m wbsp.simulate`:
    __main__.py           its flags
    study/variants.py     models with options, by the flags --sync and --sync_option
    study/advice.py       the models and the scale of time of --advise
    study/spec.py         specs of clusters, made from flags or (cluster_file.py) read from
                          TOML files, with the quantities of wbsp/units.py
    study/runs.py         one run, from its plan to a folder like that of a real run
    study/progress.py     the display while it runs
    study/compare.py      the table and the ranking at the end
"""

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.server import Evaluator
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.nodes.worker import Observer
from wbsp.simulate.workloads.base import TimingWorkload, Workload
from wbsp.simulate.world.machine import (
    Incarnation,
    Line,
    Machine,
    changing,
    constant,
    lognormal,
    trace,
)
from wbsp.simulate.world.server import ServerSpec

__all__ = ["Cluster", "Evaluator", "Incarnation", "Line", "Machine", "Observer", "ServerSpec",
           "Site", "TimingWorkload", "Workload", "changing", "constant", "lognormal",
           "trace"]
