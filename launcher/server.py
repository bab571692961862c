"""The job of the parameter server."""

import functools
import json
import math

import data
import models
from launcher.flags import FLAGS, chosen_sync, given, run_wide_settings, say_what_has_no_effect
from launcher.images import imagenet_settings, look_of
from wbsp.core.outer_optimizer import create_outer
from wbsp.environment import shares_memory, worker_num
from wbsp.sync import create, parse_options
from wbsp.tensors.codecs import parse


def parameter_server():
    """Return what runs the server and answers with an exit code. Raises ValueError or OSError."""
    from wbsp.ps.evaluation import EvaluatorProcess
    from wbsp.ps.launch import prepare_server, where_to_listen
    from wbsp.ps.server import ServerConfig

    if (FLAGS.job_name == "standby") != bool(FLAGS.standby_of):
        raise ValueError("--standby_of=host:port says whose place a --job_name=standby takes, and "
                         "belongs to nothing else")
    workers = given("worker_num") or worker_num() or FLAGS.worker_num
    host, port = where_to_listen(given("host"), given("port_base"), FLAGS.port_base)
    settings = run_wide_settings()
    options = json.loads(settings["sync_option"])
    say_what_has_no_effect(FLAGS.dataset)
    if FLAGS.dataset == "imagenet":
        settings |= imagenet_settings()
    if (count := FLAGS.test_images) is not None:
        images = data.size(FLAGS.dataset, FLAGS.data_dir, "test")
        if count > images:
            raise ValueError(f"--test_images={count}: the test set of {FLAGS.dataset} has {images}")
    target = math.inf if FLAGS.target_accuracy is None else FLAGS.target_accuracy
    config = ServerConfig(workers, FLAGS.epochs * data.size(FLAGS.dataset, FLAGS.data_dir), target,
                          FLAGS.check_period, FLAGS.connect_timeout,
                          FLAGS.band_width_limit and 1e6 * FLAGS.band_width_limit,
                          create_outer(FLAGS.outer, **parse_options(FLAGS.outer_option)),
                          shares_memory(FLAGS.transport), parse(FLAGS.wire),
                          FLAGS.fail_if_lost)
    experiment = functools.partial(network_and_test_set, settings, FLAGS.data_dir,
                                   FLAGS.test_images)
    return prepare_server(
        settings, create(chosen_sync(), **options), options, config, host=host, port=port,
        token_file=FLAGS.token_file, base_dir=FLAGS.base_dir, log_root=FLAGS.log_root,
        resume=FLAGS.resume,
        start_evaluator=lambda: EvaluatorProcess(experiment), standby_of=FLAGS.standby_of,
        shards=FLAGS.shards, watch_port=FLAGS.watch_port)


def shard():
    """Return what waits for servers and answers with an exit code. Raises ValueError or OSError."""
    from wbsp.environment import token
    from wbsp.ps.sharding.process import prepare_shard

    return prepare_shard(FLAGS.host, FLAGS.port_base, token(FLAGS.token_file),
                         FLAGS.band_width_limit and 1e6 * FLAGS.band_width_limit)


def network_and_test_set(run, data_dir, test_images):
    """What the evaluator works with; called in its process."""
    from models import training

    look = look_of(run)
    network = models.build(run["model"], int(run["seed"]), float(run["weight_decay"]),
                           run["dataset"], look and look.size, look and look.class_num)
    training.compile(network, run["model"], dataset=run["dataset"])
    return network, data.test_dataset(run["dataset"], data_dir=data_dir, look=look,
                                      count=test_images)
