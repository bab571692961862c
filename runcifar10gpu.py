"""Train CIFAR-10 with one parameter server and unequal workers: one process is one job.

    CUDA_VISIBLE_DEVICES= nohup python -u runcifar10gpu.py --job_name=ps --worker_num=2 \
        --base_dir=wbsp/ --port_base=2606 >ps.log 2>&1 &
    CUDA_VISIBLE_DEVICES=0 nohup python -u runcifar10gpu.py --job_name=worker --worker_index=0 \
        --base_dir=wbsp/ --port_base=2606 >wk0.log 2>&1 &

The last part of --base_dir names the synchronization model. What concerns the whole run is told
to the server; workers take it over, and are refused if they were told otherwise.
"""

import functools
import json
import math
import os
import pathlib
import signal
import time

from absl import app, flags

from wbsp import heterogeneity
from wbsp.cluster import Task, worker_num
from wbsp.ps.outer import OUTER_STEPS, create_outer
from wbsp.runlog.console import say
from wbsp.runlog.folder import folder_of_worker, sync_name
from wbsp.startup import heavy_imports
from wbsp.sync import MODELS, create, find, parse_options, with_batch_size
from wbsp.wire.sockets import split_addresses

FLAGS = flags.FLAGS
RUN_WIDE = ("model", "dataset", "heterogeneity", "epochs", "target_accuracy", "lr", "seed",
            "weight_decay")
KEPT = {"BUFF_SIZE": 1024, "class_num": 10, "base_time_step": 1.0, "training_end": 0.1,
        "epsilon": 0.3}  # published flags that nothing reads
SAY_EVERY = 5.0  # seconds between two lines of a worker

# The published flags, with their names and defaults.
flags.DEFINE_enum("job_name", None, ["ps", "standby", "shard", "worker"], "what this process is",
                  required=True)
# worker_num, worker_index, host, port_base and token_file: what the command line does not say, the
# environment may (wbsp/cluster.py).
flags.DEFINE_integer("worker_num", 2, "number of workers (ps)", lower_bound=1)
flags.DEFINE_integer("worker_index", 0, "which worker this is: 0 ... worker_num - 1",
                     lower_bound=0)
flags.DEFINE_string("base_dir", "wbsp/", "names the synchronization model by its last part, and "
                    "the folder of the run's files; relative: below --log_root")
flags.DEFINE_string("host", "localhost", "the server's address; for the ps the one to listen on")
flags.DEFINE_integer("port_base", 2222, "the server's port", lower_bound=1, upper_bound=65535)
flags.DEFINE_integer("batch_size", 128, "examples in a step of this worker; on the ps: the size "
                     "that a model which balances batches begins with", lower_bound=1)
flags.DEFINE_string("data_dir", None, "where the CIFAR-10 binary batches lie; default: the "
                    "environment variable WBSP_DATA_DIR, else Keras's own data folder")
flags.DEFINE_float("check_period", 5.0, "seconds between two evaluations (ps)", lower_bound=0.01)
flags.DEFINE_integer("max_steps", 1_000_000, "steps after which this worker leaves, those of its "
                     "earlier processes in the run included", lower_bound=1)
flags.DEFINE_float("sleep_time", 0.0, "seconds this worker sleeps before each step", lower_bound=0)
flags.DEFINE_float("band_width_limit", None, "MB/s in each direction for this process's traffic")
flags.DEFINE_integer("s", None, "how many steps a worker may be ahead of the slowest (ssp)")
for name, default in KEPT.items():
    flags.DEFINE_float(name, default, "kept for compatibility; has no effect")
# What the published runner did not have.
flags.DEFINE_string("sync", None, f"synchronization model: {', '.join(MODELS)}, or module:Class "
                    "of your own; default: the last part of --base_dir (pcc: optimized WBSP)")
flags.DEFINE_multi_string("sync_option", [], "key=value: an option of the synchronization model")
flags.DEFINE_enum("outer", "identity", list(OUTER_STEPS), "what a version makes of the sum of its "
                  "updates (ps)")
flags.DEFINE_multi_string("outer_option", [], "key=value: an option of the outer step (ps)")
flags.DEFINE_string("model", "cnn", "cnn, alexnet, small, or module:function of your own")
flags.DEFINE_enum("dataset", "cifar10", ["cifar10", "shapes10"], "training and test set")
flags.DEFINE_enum("heterogeneity", "none", list(heterogeneity.SLEEPS), heterogeneity.FLAG_HELP)
flags.DEFINE_float("epochs", 100, "passes over the training set, summed over all workers",
                   lower_bound=0)
flags.DEFINE_float("target_accuracy", None, "stop when a version reaches it (0..1)")
flags.DEFINE_float("lr", None, "initial learning rate; default: the model's published one")
flags.DEFINE_float("weight_decay", 0.0, "L2 on the dense layers (the published code declares 0.004 "
                   "without effect, for the CNN's convolutions too)", lower_bound=0)
flags.DEFINE_integer("seed", 0, "of initial weights, shuffling and augmentation")
flags.DEFINE_bool("resume", False, "go on from the newest run's last checkpoint (ps)")
flags.DEFINE_string("standby_of", None, "host:port of the server whose place this process takes "
                    "when that is gone (standby); all else as there, but for the port")
flags.DEFINE_string("shards", "1", "how many processes share the model's floats, or the addresses, "
                    "host:port,host:port, of those that --job_name=shard has started (ps, standby)")
flags.DEFINE_string("server", None, "addresses of the server and its standby, host:port,host:port "
                    "(worker); default: --host and --port_base")
flags.DEFINE_string("log_root", "runs", "where runs leave their files")
flags.DEFINE_string("token_file", None, "file with a shared secret: encrypts, and keeps others out")
flags.DEFINE_float("connect_timeout", 120.0, "seconds to wait for the other side", lower_bound=0)
flags.DEFINE_float("patience", 600.0, "seconds for which a worker tries to reach a server that is "
                   "lost", lower_bound=0)


def main(argv):
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        for name in KEPT:
            if FLAGS[name].present:
                say(f"--{name} is kept for compatibility and has no effect")
        job = {"worker": worker, "shard": shard}.get(FLAGS.job_name, parameter_server)()
    except (ValueError, OSError, RuntimeError) as error:
        say(f"runcifar10gpu: {error}")
        return 1
    return job()


def given(name):
    """The flag's value, or None where the command line does not have it."""
    return FLAGS[name].value if FLAGS[name].present else None


def run_wide_settings():
    """What all processes of a run must agree on: name -> text."""
    sync, model = chosen_sync(), None
    if FLAGS.job_name != "worker" or sync in MODELS or ":" in sync:
        model = find(sync)
        sync = model.name
    options = parse_options(FLAGS.sync_option)
    if FLAGS.s is not None:
        if model is not None and "s" not in model.OPTIONS:
            say(f"--s has no effect on {sync}")
        else:
            options["s"] = str(FLAGS.s)
    if model is not None:
        options = with_batch_size(model, str(FLAGS.batch_size), options)
    given = {name: getattr(FLAGS, name) for name in RUN_WIDE}
    return {"sync": sync, "sync_option": json.dumps(options, sort_keys=True),
            **{name: "" if value is None else str(value) for name, value in given.items()}}


def chosen_sync():
    """The synchronization model as the flags name it: what `find` takes or, on a worker, a name
    that only the server knows."""
    return FLAGS.sync or sync_name(FLAGS.base_dir)


# The parameter server.


def parameter_server():
    """Return what runs the server and answers with an exit code. Raises ValueError or OSError."""
    import data
    from wbsp.ps.evaluate import EvaluatorProcess
    from wbsp.ps.server import ServerConfig
    from wbsp.ps.start import prepare_server, where_to_listen

    if (FLAGS.job_name == "standby") != bool(FLAGS.standby_of):
        raise ValueError("--standby_of=host:port says whose place a --job_name=standby takes, and "
                         "belongs to nothing else")
    workers = given("worker_num") or worker_num() or FLAGS.worker_num
    host, port = where_to_listen(given("host"), given("port_base"), FLAGS.port_base)
    settings = run_wide_settings()
    options = json.loads(settings["sync_option"])
    target = math.inf if FLAGS.target_accuracy is None else FLAGS.target_accuracy
    config = ServerConfig(workers, FLAGS.epochs * data.size(FLAGS.dataset), target,
                          FLAGS.check_period, FLAGS.connect_timeout,
                          FLAGS.band_width_limit and 1e6 * FLAGS.band_width_limit,
                          create_outer(FLAGS.outer, **parse_options(FLAGS.outer_option)))
    experiment = functools.partial(network_and_test_set, FLAGS.model, FLAGS.dataset,
                                   FLAGS.data_dir, FLAGS.seed, FLAGS.weight_decay)
    return prepare_server(
        settings, create(chosen_sync(), **options), options, config, host=host, port=port,
        token_file=FLAGS.token_file, base_dir=FLAGS.base_dir, log_root=FLAGS.log_root,
        resume=FLAGS.resume,
        start_evaluator=lambda: EvaluatorProcess(experiment), standby_of=FLAGS.standby_of,
        shards=FLAGS.shards)


def shard():
    """Return what waits for servers and answers with an exit code. Raises ValueError or OSError."""
    from wbsp.cluster import token
    from wbsp.ps.shard_process import prepare_shard

    return prepare_shard(FLAGS.host, FLAGS.port_base, token(FLAGS.token_file),
                         FLAGS.band_width_limit and 1e6 * FLAGS.band_width_limit)


def network_and_test_set(model, dataset, data_dir, seed, weight_decay):
    """What the evaluator works with; called in its process."""
    import data
    import models
    from models import training

    network = training.compile(models.build(model, seed, weight_decay), model)
    return network, data.test_dataset(dataset, data_dir=data_dir)


# A worker.


def task():
    """The server's address and this worker's index: of flags, the environment, or the defaults."""
    place = f"{FLAGS.host}:{FLAGS.port_base}"
    given_place = place if FLAGS["host"].present or FLAGS["port_base"].present else None
    address = FLAGS.server or given_place
    return Task.complete(address, given("worker_index"), Task(place, FLAGS.worker_index),
                         check=split_addresses)


def worker():
    """Connect and build; return what trains and answers with an exit code.

    Raises ValueError or OSError for bad input, TransportError where there is no server or it
    refuses.
    """
    address, index = task()
    with heavy_imports():
        import models
        from models import training
        from wbsp import SyncCallback
        from wbsp.runlog.worker import WorkerLog
        from wbsp.worker.connection import TransportError

    hook = SyncCallback(address, index, token_file=FLAGS.token_file,
                        connect_timeout=FLAGS.connect_timeout,
                        band_width_limit=FLAGS.band_width_limit, expected=expected(), say=say,
                        patience=FLAGS.patience)
    caught: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, functools.partial(_interrupt, hook, caught))
    try:
        run = hook.connect()
    except TransportError as error:
        if not caught:
            raise
        say(f"worker {index}: {error}")
        return lambda: 128 + caught[0]
    if "model" not in run:
        raise ValueError(f"the server at {address} was started by `python -m wbsp.ps` and knows "
                         "neither model nor data set: start runcifar10gpu.py --job_name=ps "
                         "instead, or train a model of your own with SyncCallback")
    hook.write_log(WorkerLog(folder_of_run(run, index), index, run["sync"], append=True, say=say))
    name, rule = run["model"], hook.rule
    devices = training.own_devices(say)  # before anything lies on one
    batches, steps_per_epoch = training_set(run, rule, hook)
    split = rule.micro_batches
    with devices.scope():
        network = models.build(name, int(run["seed"]), float(run["weight_decay"]))
        # XLA compiles anew for every size of a batch, which takes longer than a step of it.
        training.compile(network, name, float(run["lr"]) if run["lr"] else None, split,
                         jit_compile="auto" if rule.batch is None else False)
    pace = pace_and_end(hook, seconds_before_step(run, index) / split, FLAGS.max_steps * split)
    say(f"worker {index}: training {name} on {run['dataset']} under {run['sync']}")
    return functools.partial(train, network, batches, steps_per_epoch, hook, pace, caught)


def training_set(run, rule, hook):
    """What this worker trains: (dataset, steps of an epoch). Raises ValueError or OSError."""
    import data

    name, seed = run["dataset"], int(run["seed"])
    if rule.batch is not None:
        size = rule.batch
        if FLAGS["batch_size"].present and FLAGS.batch_size != size:
            raise ValueError(f"--batch_size={FLAGS.batch_size}, but all workers begin with "
                             f"{size} under {run['sync']}: give the ps and the workers the same")
        order = seed if rule.shared else (seed, hook.worker)
        batches = hook.stream(data.shared_batch(name, order, FLAGS.data_dir), size)
    else:
        size, rest = divmod(FLAGS.batch_size, rule.micro_batches)
        if rest:
            raise ValueError(f"--batch_size={FLAGS.batch_size} does not divide into the "
                             f"{rule.micro_batches} micro-batches of {run['sync']}: choose a "
                             "multiple")
        batches = data.train_dataset(name, size, seed, hook.worker, FLAGS.data_dir)
    return batches, max(1, data.size(name) // size)


def train(network, batches, steps_per_epoch, hook, pace, caught):
    from wbsp.worker.connection import TransportError

    try:
        network.fit(batches, epochs=FLAGS.max_steps, steps_per_epoch=steps_per_epoch, verbose=0,
                    shuffle=False, callbacks=[hook, pace])
    except TransportError as error:
        say(f"worker {hook.worker}: {error}")
        return 128 + caught[0] if caught else 1
    say(f"worker {hook.worker}: done ({hook.stop_reason or 'max_steps reached'})")
    return 128 + caught[0] if caught else 0


def expected():
    """What this worker was explicitly told about the whole run."""
    told = run_wide_settings()
    chosen = {name for name in RUN_WIDE if FLAGS[name].present}
    if FLAGS["sync"].present or FLAGS["base_dir"].present:
        chosen.add("sync")
    if FLAGS["sync_option"].present or FLAGS["s"].present:
        chosen.add("sync_option")
    return {name: told[name] for name in sorted(chosen)}


def _interrupt(hook, caught, signum, frame):
    if caught:
        os._exit(128 + signum)  # asked twice: at once
    caught.append(signum)
    hook.interrupt(f"interrupted by {signal.Signals(signum).name}")


def folder_of_run(run, index):
    """Where this worker's files of the run lie; the same folder as the server's on one machine."""
    named = pathlib.Path(FLAGS.log_root) / run["folder"]
    folder = folder_of_worker(named, run)
    if folder != named:
        say(f"worker {index}: {named} holds another run; the files of this one are in "
            f"{folder}")
    return folder


def seconds_before_step(run, index):
    """Seconds to sleep, those of the run's published heterogeneity included."""
    return FLAGS.sleep_time + heterogeneity.sleep_seconds(run["heterogeneity"], index)


def pace_and_end(hook, seconds, max_steps):
    """A callback: sleep before each step, go on where an earlier incarnation of this worker
    stopped, and say every few seconds where it is."""
    import keras

    class PaceAndEnd(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.steps, self.say_at = hook.steps_before, time.monotonic() + SAY_EVERY
            self.model.optimizer.iterations.assign(hook.steps_before)  # the rate's schedule

        def on_train_batch_begin(self, batch, logs=None):
            if seconds:
                time.sleep(seconds)

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps >= max_steps:
                self.model.stop_training = True
            if time.monotonic() >= self.say_at:
                self.say_at = time.monotonic() + SAY_EVERY
                say(f"worker {hook.worker}: {hook.progress()}")

    return PaceAndEnd()


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    app.run(main)
