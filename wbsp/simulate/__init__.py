"""Clusters in virtual time: the real decisions and real training, without the machines.

The world, which knows no synchronization model:
    clock.py     the queue of events
    links.py     bandwidth, shared fairly by transfers that run at the same time
    shards.py    the shards of a server, and what comes and goes in slices
    machine.py   a machine: its step times, its link, when its worker is there

The cluster, which drives the real engine and the real agents in that world:
    cluster.py   a whole cluster: the class for a study or a test of one's own
    server.py    the server's side: messages wait their turn, the engine's effects are sent
    worker.py    a worker's side: the compute thread, and the agent's commands carried out

What the workers train:
    workload.py  the protocol; no tensors, for studies of time; least squares, for tests
    training.py  Keras networks; the only module that needs TensorFlow

The command, `python -m wbsp.simulate`:
    __main__.py  its flags
    variants.py  models with options, by the flags --sync and --sync_option
    advice.py    what --advise compares, and at which scale of time
    spec.py      specs of clusters, made from flags or (cluster_file.py) read from TOML files, with
                 quantities that units.py knows
    runs.py      one run, from its plan to a folder like that of a real run
    progress.py  the display while it runs
    compare.py   the table and the ranking at the end
"""
