"""The job of a worker."""

import functools
import os
import pathlib
import signal
import time

import data
from launcher.datasets import look_of, network_of, train_size
from launcher.flags import FLAGS, batch_of, expected, given, say_what_has_no_effect
from models.adamw import RATE, adamw, usual
from wbsp import heterogeneity, units
from wbsp.environment import Task
from wbsp.process.forks import in_child
from wbsp.process.imports import heavy_imports
from wbsp.process.throttle import Throttle
from wbsp.runlog.console import say
from wbsp.runlog.folder import folder_of_worker
from wbsp.runlog.worker import MOST, WorkerLog
from wbsp.wire.addresses import split_addresses
from wbsp.wire.errors import TransportError
from wbsp.worker.loop import Worker

SAY_EVERY = 5.0  # seconds between two lines of a worker


def task():
    """Return the server's address and this worker's index: from flags, environment, or defaults."""
    place = f"{FLAGS.host}:{FLAGS.port_base}"
    given_place = place if FLAGS["host"].present or FLAGS["port_base"].present else None
    units.of_flag("server", FLAGS.server, split_addresses)
    address = FLAGS.server or given_place
    return Task.complete(address, given("worker_index"), Task(place, FLAGS.worker_index),
                         check=split_addresses)


def worker(program):
    """Connect and build; return a function that trains and returns an exit code.

    program: the launcher's name, for messages

    Raises ValueError or OSError for wrong input, TransportError if no server answers or it refuses.
    """
    address, index = task()
    joining = Worker(address, index, FLAGS.token_file, FLAGS.connect_timeout,
                     FLAGS.band_width_limit, expected(), say, FLAGS.patience, FLAGS.transport,
                     again=False)
    caught: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, functools.partial(_interrupt, joining, caught))
    in_child(_usual_signals)
    try:
        _, welcome = joining.connect()
    except TransportError as error:
        if not caught:
            raise
        say(f"worker {index}: {error}")
        return lambda: 128 + caught[0]
    run, rule = welcome.settings, welcome.rule
    if "model" not in run:
        raise ValueError(f"the server at {address} was started by `python -m wbsp.ps` and has no "
                         f"settings of model and data set: start {program}.py --job_name=ps "
                         "instead, or train a model of your own with SyncCallback")
    size = batch_size(run, rule)
    say_what_has_no_effect(run["dataset"])
    look = look_of(run)
    examples = train_size(run)
    steps_per_epoch = max(1, examples // size)
    with heavy_imports():
        from models import training
        from wbsp import SyncCallback

    hook = SyncCallback(session=joining)
    joining.write_log(WorkerLog(folder_of_run(run, index), index, run["sync"], append=True,
                                say=say, most=MOST,
                                published=run["published_files"] == "True"))
    devices = training.own_devices(say)  # before any array is placed on one
    batches = training_set(run, rule, size, hook, look)
    name, split = run["model"], rule.micro_batches
    with devices.scope():
        network = network_of(run)
        # XLA compiles again for every batch size, which takes longer than a step.
        training.compile(network, name, float(run["lr"]) if run["lr"] else None, split,
                         run["dataset"], kind=run["optimizer"] or None,
                         decays=units.decays(run["lr_decays"]) if run["lr_decays"] else None,
                         jit_compile="auto" if rule.batch is None else False)
    workers = int(run["workers"]) if run["lr_steps"] == "mean" else None
    seconds = seconds_before_step(run, index)
    pace = pace_and_end(hook, joining, seconds / split, FLAGS.max_steps * split, workers,
                        schedule_of(run, examples, joining))
    sleeps = f", and sleeping {seconds:g} s before each step" if seconds else ""
    by = f", by {run['optimizer']}" if run["optimizer"] else ""
    say(f"worker {index}: training {name} on {run['dataset']} under {run['sync']}{by}{sleeps}")
    return functools.partial(train, network, batches, steps_per_epoch, hook, pace, caught)


def batch_size(run, rule):
    """Return the examples of this worker's step. Raises ValueError if the rule forbids the size."""
    if rule.batch is not None:
        if FLAGS["batch_size"].present and FLAGS.batch_size != rule.batch:
            raise ValueError(f"--batch_size={FLAGS.batch_size}, but all workers begin with "
                             f"{rule.batch} under {run['sync']}: give the ps and the workers one "
                             "value")
        return rule.batch
    whole = batch_of(run["dataset"])
    size, rest = divmod(whole, rule.micro_batches)
    if rest:
        raise ValueError(f"--batch_size={whole} does not divide into the "
                         f"{rule.micro_batches} micro-batches of {run['sync']}: choose a multiple")
    return size


def training_set(run, rule, size, hook, look):
    """Return the batches of this worker. Raises ValueError or OSError."""
    name, seed = run["dataset"], int(run["seed"])
    if rule.batch is None:
        return data.train_dataset(name, size, seed, hook.worker, FLAGS.data_dir, look)
    order = seed if rule.shared else (seed, hook.worker)
    return hook.stream(data.shared_batch(name, order, FLAGS.data_dir, look), size)


def train(network, batches, steps_per_epoch, hook, pace, caught):
    import tensorflow as tf

    from data import pictures

    try:
        if hook.rule.batch is None:  # fail on unreadable data before the others depend on it
            next(iter(batches))
        network.fit(batches, epochs=FLAGS.max_steps, steps_per_epoch=steps_per_epoch, verbose=0,
                    shuffle=False, callbacks=[hook, pace])
    except TransportError as error:
        say(f"worker {hook.worker}: {error}")
        return 128 + caught[0] if caught else 1
    except tf.errors.OpError as error:
        if (told := pictures.reason(error)) is None:
            raise
        hook.close()
        say(f"worker {hook.worker}: {told}")
        return 1
    say(f"worker {hook.worker}: done ({hook.stop_reason or 'max_steps reached'})")
    return 128 + caught[0] if caught else 0


def _usual_signals():
    """Restore signal handlers in a process that was forked from this one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(joining, caught, signum, frame):
    if caught:
        os._exit(128 + signum)  # the second signal ends the process at once
    caught.append(signum)
    joining.interrupt(f"interrupted by {signal.Signals(signum).name}")


def folder_of_run(run, index):
    """Return the folder of this worker's files; on one machine it is the server's."""
    named = pathlib.Path(FLAGS.log_root) / run["folder"]
    folder = folder_of_worker(named, run)
    if folder != named:
        say(f"worker {index}: {named} holds another run; the files of this one are in "
            f"{folder}")
    return folder


def seconds_before_step(run, index):
    """Return the seconds to sleep, with those of the run's published heterogeneity."""
    return FLAGS.sleep_time + heterogeneity.sleep_seconds(run["heterogeneity"], index)


def schedule_of(run, examples, joining):
    """Return a function of the rate in this run, by the part of its examples that all workers have
    trained; None: the optimizer has a schedule of its own. `examples`: of a pass."""
    options = adamw(run["optimizer"] or usual(run["model"]))
    if options is None:
        return None
    highest = float(run["lr"]) if run["lr"] else RATE
    total = max(1.0, float(run["epochs"]) * examples)
    return lambda: highest * options.factor(joining.run_examples / total)


def pace_and_end(hook, joining, seconds, max_steps, workers=None, rate=None):
    """Return a callback that sleeps before each step, continues at the step where an earlier
    process of this worker stopped, and prints its progress every few seconds.

    workers: their number, if the schedule of the rate counts the mean worker's steps
    rate: returns that of the next step, if the run's examples decide it
    """
    import keras

    class PaceAndEnd(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.steps, self.line = hook.steps_before, Throttle(SAY_EVERY)
            self.line.rest(time.monotonic())
            self.model.optimizer.iterations.assign(hook.steps_before)  # the rate's schedule

        def on_train_batch_begin(self, batch, logs=None):
            if seconds:
                joining.begun().enter("compute")  # like a slower machine
                time.sleep(seconds)
            if workers:
                self.model.optimizer.iterations.assign(hook.run_steps // workers)
            if rate is not None:
                self.model.optimizer.learning_rate = rate()

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps >= max_steps:
                self.model.stop_training = True
            if self.line.due(time.monotonic()):
                say(f"worker {hook.worker}: {hook.progress()}")

    return PaceAndEnd()
