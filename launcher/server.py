"""The job of the parameter server."""

import functools
import json
import math
import sys

import data
from launcher.datasets import dataset_settings, look_of, network_of
from launcher.flags import FLAGS, chosen_sync, given, run_wide_settings, say_what_has_no_effect
from wbsp import heterogeneity
from wbsp.core.goal import Goal
from wbsp.environment import worker_num
from wbsp.ps.flags import server_config, shard_of_flags
from wbsp.runlog.console import say
from wbsp.sync import create


def parameter_server():
    """Return a function that serves and returns an exit code. Raises ValueError or OSError."""
    from launcher.evaluator import EvaluatorProcess
    from wbsp.ps.launch import prepare_server, where_to_listen

    if (FLAGS.job_name == "standby") != bool(FLAGS.standby_of):
        raise ValueError("--standby_of=host:port names the server that a --job_name=standby "
                         "replaces, and "
                         "belongs to nothing else")
    workers = given("worker_num") or worker_num() or FLAGS.worker_num
    host, port = where_to_listen(given("host"), given("port_base"), FLAGS.port_base)
    settings = run_wide_settings()
    options = json.loads(settings["sync_option"])
    dataset = settings["dataset"]
    say_what_has_no_effect(dataset)
    settings |= dataset_settings(dataset)
    look = look_of(settings)
    if (count := FLAGS.test_images) is not None:
        examples = data.size(dataset, FLAGS.data_dir, "test", look)
        if count > examples:
            raise ValueError(f"--test_images={count}: the test set of {dataset} has {examples}")
    experiment = functools.partial(network_and_test_set, settings, FLAGS.data_dir,
                                   FLAGS.test_images)
    model = create(chosen_sync(), **options)
    config = server_config(
        workers, type(model),
        stop_samples=FLAGS.epochs * data.size(dataset, FLAGS.data_dir, look=look),
        target_accuracy=math.inf if FLAGS.target_accuracy is None else FLAGS.target_accuracy,
        target=FLAGS.target and Goal.parse("target", FLAGS.target, valued=True),
        host=host, port=port, base_dir=FLAGS.base_dir,
        start_worker=f"python {sys.argv[0]} --job_name=worker --worker_index=0")
    serve = prepare_server(settings, model, config,
                           start_evaluator=functools.partial(EvaluatorProcess, experiment))
    if FLAGS.job_name == "ps" and not FLAGS["heterogeneity"].present:
        say_who_sleeps()
    return serve


def say_who_sleeps():
    """Print the published sleeps, if the command line does not name them."""
    if seconds := heterogeneity.SLEEPS[FLAGS.heterogeneity]:
        say(f"workers 1, 3, 5, ... sleep {seconds:g} s before each step, as published "
            f"(--heterogeneity={FLAGS.heterogeneity}); --heterogeneity=none trains without sleeps")


def shard():
    """Return a function that waits for servers and returns an exit code. Raises ValueError or
    OSError."""
    return shard_of_flags(FLAGS.host, FLAGS.port_base)


def network_and_test_set(run, data_dir, test_images):
    """Return the evaluator's network and test set; called in its process."""
    from models import training

    network = network_of(run)
    training.compile(network, run["model"], dataset=run["dataset"])
    return network, data.test_dataset(run["dataset"], data_dir=data_dir, look=look_of(run),
                                      count=test_images)
