"""The command line, and the settings on which all processes of a run must agree."""

import json
import math

from absl import flags

import data
import models
from models.adamw import checked, usual
from wbsp import heterogeneity, timeouts, units
from wbsp.command import define_training_flags, own_flags, refuse_decays
from wbsp.core.goal import Goal
from wbsp.ps.flags import define_flags
from wbsp.runlog.console import say
from wbsp.runlog.folder import sync_name
from wbsp.sync import MODELS, find, parse_options, with_batch_size

FLAGS = flags.FLAGS
RUN_WIDE = ("model", "dataset", "heterogeneity", "epochs", "target", "target_accuracy", "optimizer",
            "lr", "lr_decays", "lr_steps", "seed", "weight_decay", "published_files")
OF_IMAGENET = ("class_num", "image_size", "augment")  # run-wide, too; no effect on other data sets
BATCH, BATCH_OF_TEXT = 128, 8
KEPT = {"BUFF_SIZE": 1024, "base_time_step": 1.0, "training_end": 0.1,
        "epsilon": 0.3, "use_bn": False}  # published flags without an effect
# The groups of the help. Run-wide flags are the server's; a worker that has one is refused unless
# its value is the run's.
GROUPS = {
    "job": ["job_name", "worker_num", "worker_index"],
    "run": ["base_dir", "sync", "sync_option", "s", "outer", "outer_option", "model", "dataset",
            "data_dir", "test_images", "optimizer", "lr", "lr_decays", "lr_steps", "weight_decay",
            "heterogeneity", "seed", "check_period"],
    "worker": ["batch_size", "max_steps", "sleep_time", "patience"],
    "network": ["host", "port_base", "server", "token_file", "wire", "transport",
                "band_width_limit", "connect_timeout"],
    "end": ["epochs", "until", "target", "target_accuracy", "fail_if_lost"],
    "files": ["log_root", "resume", "published_files"],
    "several servers": ["standby_of", "shards"],
    "ImageNet": list(OF_IMAGENET),
    "published, without an effect": list(KEPT)}
# Flags that only one kind of job reads. The published command lines may give the first one of each
# to all jobs, so these get a line; all others are refused where nothing reads them.
OF_WORKERS = ("worker_index", "max_steps", "sleep_time", "server", "patience")
OF_SERVERS = ("worker_num", "outer", "outer_option", "wire", "test_images", "check_period",
              "until", "fail_if_lost", "resume", "standby_of", "shards")
OF_SHARDS = ("host", "port_base", "token_file", "band_width_limit")
PUBLISHED = ("worker_index", "worker_num")
INSTEAD = {"max_steps": "--epochs and --until end a run",
           "sleep_time": "--heterogeneity sets the sleeps of all workers"}

# The published flags, with their names and defaults.
flags.DEFINE_enum("job_name", None, ["ps", "standby", "shard", "worker"], "what this process is",
                  required=True)
# worker_num, worker_index, host, port_base and token_file: if the command line does not give them,
# the environment may (wbsp/environment.py).
flags.DEFINE_integer("worker_num", 2, "number of workers (ps)", lower_bound=1)
flags.DEFINE_integer("worker_index", 0, "index of this worker: 0 ... worker_num - 1",
                     lower_bound=0)
flags.DEFINE_string("base_dir", "wbsp/", "names the synchronization model by its last part, and "
                    "the folder of the run's files; relative: below --log_root")
flags.DEFINE_string("host", "localhost", "the server's address; for the ps the one to listen on")
flags.DEFINE_integer("port_base", 2222, "the server's port", lower_bound=1, upper_bound=65535)
flags.DEFINE_integer("batch_size", None, "examples in a step of this worker; on the ps: initial "
                     f"size for models that balance batches; default: {BATCH}, of stdlib "
                     f"{BATCH_OF_TEXT}", lower_bound=1)
flags.DEFINE_string("data_dir", None, "where cifar-10-batches-bin or imagenet lies; default: the "
                    "environment variable WBSP_DATA_DIR, else Keras's own data folder")
flags.DEFINE_float("check_period", 5.0, "seconds between two evaluations (ps)", lower_bound=0.01)
flags.DEFINE_integer("max_steps", 1_000_000, "steps after which this worker leaves, with those of "
                     "its earlier processes in the run", lower_bound=1)
flags.DEFINE_float("sleep_time", 0.0, "seconds this worker sleeps before each step", lower_bound=0,
                   upper_bound=1e6)
flags.DEFINE_integer("class_num", None, "classes of ImageNet's TFRecords (default: 1000); class "
                     "folders are counted", lower_bound=2)
flags.DEFINE_integer("s", None, "steps that a worker may be ahead of the slowest (ssp)")
KEPT_HELP = "kept for compatibility; has no effect"
for name, default in KEPT.items():
    if isinstance(default, bool):
        flags.DEFINE_bool(name, default, KEPT_HELP)
    else:
        flags.DEFINE_float(name, default, KEPT_HELP)
# Flags that the published runner did not have.
define_flags(None, "; default: the last part of --base_dir", " (ps)", " (ps, standby)",
             "--job_name=shard")
flags.DEFINE_string("model", "cnn", f"{', '.join(models.KNOWN)}; of ImageNet "
                    f"{', '.join(models.IMAGENET)}; of stdlib gpt with any of "
                    ":width=64:layers=3:heads=4:context=64; or module:function of your own")
flags.DEFINE_enum("dataset", None, list(data.KNOWN), "training and test set; stdlib is the text of "
                  "Python's own library; default: cifar10, of gpt stdlib")
flags.DEFINE_integer("image_size", None, "pixels of a side of ImageNet's images; default: the "
                     "model's published size", lower_bound=1)
flags.DEFINE_bool("augment", True, "ImageNet: train random parts of the images, mirrored at "
                  "random, and evaluate their centres; else all of each, squeezed, as published")
flags.DEFINE_integer("test_images", None, "images of the test set in an evaluation, of stdlib "
                     "windows, the same in every run; default: all (ps)", lower_bound=1)
flags.DEFINE_enum("heterogeneity", "none", list(heterogeneity.SLEEPS), heterogeneity.FLAG_HELP)
flags.DEFINE_bool("published_files", False, "write the text files with the published names, which "
                  "end in _wbsp.txt for every model, and wk_loss with the published columns")
flags.DEFINE_float("epochs", 100, "passes over the training set, summed over all workers",
                   lower_bound=0)
flags.DEFINE_string("target", None, "METRIC:VALUE, such as loss:2.0 or accuracy:0.9: stop when a "
                    "version reaches it")
flags.DEFINE_float("target_accuracy", None, "stop when a version reaches it (0..1)", lower_bound=0,
                   upper_bound=1)
define_training_flags()
flags.DEFINE_float("weight_decay", 0.0, "L2 on the dense layers (the published code declares 0.004 "
                   "without effect, for the CNN's convolutions too)", lower_bound=0)
flags.DEFINE_integer("seed", 0, "of initial weights, shuffling and augmentation", lower_bound=0,
                     upper_bound=2**32 - 1)
flags.DEFINE_string("server", None, "addresses of the server and its standby, host:port,host:port "
                    "(worker); default: --host and --port_base")
flags.DEFINE_float("patience", timeouts.WORKER_PATIENCE, "seconds that a worker tries to reach a "
                   "lost server", lower_bound=0)


for name in ("check_period", "sleep_time", "epochs", "target_accuracy", "lr", "weight_decay",
             "connect_timeout", "patience"):
    flags.register_validator(name, lambda value: value is None or not math.isnan(value),
                             "it must be a number")  # a bound lets NaN pass


def given(name):
    """Return the flag's value; None if the command line does not have it."""
    return FLAGS[name].value if FLAGS[name].present else None


def batch_of(dataset):
    """Return --batch_size, or else the usual one of a data set."""
    if FLAGS.batch_size is not None:
        return FLAGS.batch_size
    return BATCH_OF_TEXT if dataset == "stdlib" else BATCH


def run_wide_settings():
    """Return the settings on which all processes of a run must agree: name -> text."""
    dataset = FLAGS.dataset or models.dataset_of(FLAGS.model)
    refuse_what_does_not_fit()
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
        options = with_batch_size(model, str(batch_of(dataset)), options)
    units.of_flag("lr_decays", FLAGS.lr_decays, units.decays)  # a bad value is told here
    given = {name: getattr(FLAGS, name) for name in RUN_WIDE} | {"dataset": dataset}
    return {"sync": sync, "sync_option": json.dumps(options, sort_keys=True),
            **{name: "" if value is None else str(value) for name, value in given.items()}}


def refuse_what_does_not_fit():
    """Raise ValueError for a target or an optimizer that is bad, or for what does not go with it.
    """
    if FLAGS.target is not None:
        Goal.parse("target", FLAGS.target, valued=True)
        if FLAGS.target_accuracy is not None:
            raise ValueError(f"--target={FLAGS.target} and --target_accuracy="
                             f"{FLAGS.target_accuracy:g} are both targets; give one")
    if checked(FLAGS.optimizer or usual(FLAGS.model)) is not None:
        refuse_decays()


def chosen_sync():
    """Return the synchronization model that the flags name: a name for `find` or, on a worker, one
    that only the server knows."""
    return FLAGS.sync or sync_name(FLAGS.base_dir)


def expected():
    """Return the settings of the whole run that this worker was explicitly given."""
    told = run_wide_settings() | {name: str(getattr(FLAGS, name)) for name in OF_IMAGENET}
    chosen = {name for name in (*RUN_WIDE, *OF_IMAGENET) if FLAGS[name].present}
    if FLAGS["sync"].present or FLAGS["base_dir"].present:
        chosen.add("sync")
    if FLAGS["sync_option"].present or FLAGS["s"].present:
        chosen.add("sync_option")
    return {name: told[name] for name in sorted(chosen)}


def refuse_what_has_no_effect():
    """Print which published flags this job does not read.

    Raises:
        ValueError: the command line has another one; one line.
    """
    job = FLAGS.job_name
    read = {"job_name", *KEPT, *(OF_SHARDS if job == "shard" else own_flags())}
    read -= set(OF_SERVERS if job == "worker" else OF_WORKERS)
    if job in ("ps", "standby") and (model := find(chosen_sync())).OPTIONS.get("batch") is None:
        read.discard("batch_size")
    whom = {"worker": "a worker", "shard": "a shard"}.get(job, "the server")
    for name in own_flags():
        if not FLAGS[name].present or name in read:
            continue
        if name in PUBLISHED:
            say(f"--{name} has no effect on {whom}")
            continue
        to = ("the server" if job == "shard" or name in OF_SERVERS else "a worker" if
              name in OF_WORKERS else f"the workers, which each have their own under {model.name}")
        hint = f"; here {INSTEAD[name]}" if name in INSTEAD and job != "shard" else ""
        raise ValueError(f"--{name}={FLAGS[name].value} has no effect on {whom}: give it to "
                         f"{to}{hint}")


def say_what_has_no_effect(dataset):
    """Print which of the given flags for ImageNet have no effect on another data set."""
    for name in OF_IMAGENET if dataset != "imagenet" else ():
        if FLAGS[name].present:
            say(f"--{name} has no effect on {dataset}")
