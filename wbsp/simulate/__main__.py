"""The command that compares synchronization models on a cluster in virtual time.

    python -m wbsp.simulate --sync=bsp,ssp,wbsp,pcc --workers=8 --heterogeneity=H1 \
        --bandwidth=1Gbit --latency=1ms --model=cnn --dataset=cifar10 --target_accuracy=0.6 \
        --seeds=3 --out=runs/h1
    python -m wbsp.simulate --cluster=scripts/clusters/wan.toml --model=small --dataset=shapes10
    python -m wbsp.simulate --advise=my-cluster.toml
    python -m wbsp.simulate --advise=my-cluster.toml --sync=asp,pcc,pcc:weight=work --seeds=3
    python -m wbsp.simulate --advise=my-cluster.toml --sync=pcc --shards=1,2,4
    python -m wbsp.simulate --advise=my-cluster.toml --model=timing --shared_data --examples=50000 \
        --batch_size=64 --epochs=5

The decisions are those of the real server and the training is real; the machines and the network
are simulated from their description. Every run leaves a folder like that of a real run.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from wbsp import command, heterogeneity, units
from wbsp.core.goal import ACCURACY, Goal
from wbsp.core.messages import SharedData
from wbsp.core.outer_optimizer import OUTER_OPTIMIZERS
from wbsp.process.imports import heavy_imports
from wbsp.process.streams import open_streams
from wbsp.runlog.folder import run_folder
from wbsp.simulate.study import advice, batches, compare, worth
from wbsp.simulate.study.cluster_file import read_cluster
from wbsp.simulate.study.measure import measure
from wbsp.simulate.study.progress import Progress
from wbsp.simulate.study.recorded import Recorded, predicted, recorded
from wbsp.simulate.study.runs import Plan, create_model, simulate
from wbsp.simulate.study.screen import LATE, best_of, closest, noise_of
from wbsp.simulate.study.spec import ClusterSpec, Group, StepLaw, published
from wbsp.simulate.study.variants import Variant, variants
from wbsp.simulate.workloads.base import check_back_end, of_experiment
from wbsp.simulate.world.server import check_number
from wbsp.sync import MODELS, parse_options
from wbsp.sync.auto import Auto
from wbsp.sync.bsp import BSP
from wbsp.tensors.codecs import KNOWN, parse

if TYPE_CHECKING:
    from wbsp.runlog.reader import Run
    from wbsp.simulate.workloads.base import Experiment
    from wbsp.simulate.workloads.own import OwnTask

FLAGS = flags.FLAGS
TIMING = "timing"  # in place of a network: no tensors
# Seconds of a step at batch 128, of gpt at 8: of the order of a V100 or, for the small network and
# gpt, of one core.
STEP_SECONDS = {"cnn": 0.02, "alexnet": 0.05, "small": 0.01, "gpt": 0.02, TIMING: 0.02}
DESCRIBING = ("workers", "heterogeneity", "bandwidth", "latency", "step_seconds", "jitter",
              "server_bandwidth", "apply_seconds")  # flags that a cluster file replaces
# Of a network.
TRAINING = ("dataset", "optimizer", "lr", "lr_decays", "lr_steps", "epochs", "test_images")
EPOCHS, EPOCHS_OF_TEXT = 100.0, 1.0
BATCH, BATCH_OF_TEXT = 128, 8
FROM_NO_FILES = {"shapes10": "is drawn by code", "stdlib": "comes with Python"}
ABOUT = {
    "wbsp simulate": "Compare synchronization models on a cluster in virtual time: decisions and "
                     "training are real, machines and network are simulated.",
    "wbsp advise": "Say whether a cluster is faster than its fastest machine alone, and with which "
                   "model and batch. CLUSTER is a TOML file, or the name of one that wbsp has."}
NAME = "wbsp advise" if any(one.startswith(("--advise", "--from")) for one in sys.argv) else (
    "wbsp simulate")
GROUPS = {
    "run": ["sync", "sync_option", "outer", "outer_option", "wire", "model", "task", "dataset",
            "data_dir", "batch_size", "shared_data", "examples", "optimizer", "lr", "lr_decays",
            "lr_steps", "test_images", "check_period", "seeds", "seed"],
    "network": ["advise", "from", "cluster", *DESCRIBING, "shards", "model_bytes"],
    "end": ["target", "target_accuracy", "epochs", "max_steps", "until"],
    "files": ["out", "figures", "verbose"]}

flags.DEFINE_list("sync", list(MODELS), "synchronization models, separated by commas; module:Class "
                  "is your own; pcc:weight=work:wire=int8 is a model with its own option and "
                  "format; pcc/auto has a server at each site, pcc within them and auto between; "
                  f"--advise adds {','.join(advice.SYNC[len(MODELS):])} to the default")
flags.DEFINE_multi_string("sync_option", [], "key=value: an option of the models that have it; "
                          "model.key=value: of that model only")
flags.DEFINE_enum("outer", None, list(OUTER_OPTIMIZERS), "step from the sum of a version's "
                  "updates to the version; default: each model's own, mostly identity")
flags.DEFINE_string("wire", None, f"format of updates and versions on the wire: {KNOWN}; default: "
                    "each model's own, mostly float32")
flags.DEFINE_multi_string("outer_option", [], "key=value: an option of the outer step")
flags.DEFINE_string("cluster", None, "TOML file that describes the cluster, in place of the flags "
                    f"{', '.join(DESCRIBING)}")
flags.DEFINE_string("advise", None, "TOML file of a cluster: rank all models on it, by default "
                    + ", ".join(f"--{name}={value}" for name, value in advice.FLAGS.items())
                    + "; wbsp advise CLUSTER is the same")
flags.DEFINE_string("from", None, "folder of a recorded run: advise on the cluster that it was, by "
                    "its step times, transfers, batch and losses; wbsp advise --from=RUN")
flags.DEFINE_integer("workers", 2, "number of workers", lower_bound=1)
flags.DEFINE_enum("heterogeneity", "none", list(heterogeneity.SLEEPS), heterogeneity.FLAG_HELP)
flags.DEFINE_string("bandwidth", "none", "of each worker's link in each direction: 1Gbit, 20MB, "
                    "none for no limit")
flags.DEFINE_string("latency", "0s", "of each worker's link, one way: 1ms")
flags.DEFINE_string("server_bandwidth", None, "of the server's interface in each direction, which "
                    "all workers share; default: --bandwidth")
flags.DEFINE_string("apply_seconds", "0s", "the server's time for one push")
flags.DEFINE_list("shards", None, "compare servers with these numbers of shards, each with an "
                  "interface like the server's: 1,2,4")
flags.DEFINE_string("step_seconds", None, "compute of one step: 20ms, or 8ms+0.1ms, the fixed part "
                    "and that of an example; with a cluster file whose machines have a speed: of a "
                    "machine of speed 1; default: " + ", ".join(
    f"{name} {1000 * seconds:g}ms" for name, seconds in STEP_SECONDS.items()))
flags.DEFINE_float("jitter", 0.0, "sigma of lognormal step times", lower_bound=0)
flags.DEFINE_string("model_bytes", None, "time the network for a model of this size: 100MB; "
                    "default: the cluster file's, else the network's own")
flags.DEFINE_string("model", "cnn", "cnn, alexnet, small, module:function of your own, gpt with "
                    "any of :width=64:layers=3:heads=4:context=64, or timing: no tensors, for "
                    "large clusters")
flags.DEFINE_string("task", None, "train what this Python file describes, in any framework, by its "
                    "functions make, make_state, step and evaluate: docs/how-to/own-task.md")
flags.DEFINE_enum("dataset", None, ["cifar10", "shapes10", "stdlib"], "training and test set; "
                  "stdlib is the text of Python's own library; default: cifar10, of gpt stdlib")
flags.DEFINE_string("data_dir", None, "folder of CIFAR-10, as for runcifar10gpu.py")
flags.DEFINE_integer("test_images", None, "images of the test set in an evaluation, of stdlib "
                     "windows, the same in every run; default: all images, 256 windows",
                     lower_bound=1)
flags.DEFINE_integer("batch_size", None, "examples in a step; default: those of the cluster "
                     f"file's steps (batch_size), else {BATCH}, of gpt {BATCH_OF_TEXT}",
                     lower_bound=1)
flags.DEFINE_bool("shared_data", False, "all workers share the training set, as that of "
                  "hook.examples: each example is trained once an epoch, by whichever worker is "
                  "free, and a run ends after --epochs")
flags.DEFINE_integer("examples", None, f"with --model={TIMING} --shared_data: examples of the "
                     "training set", lower_bound=1)
command.define_training_flags()
flags.DEFINE_string("target", None, "METRIC:VALUE, such as loss:2.0 or accuracy:0.9: a run ends "
                    "when a version reaches it")
flags.DEFINE_float("target_accuracy", None, "--target=accuracy:VALUE (0..1)")
flags.DEFINE_float("epochs", None, "... or after this many passes over the training set, summed "
                   f"over all workers; default, without another end: {EPOCHS:g}, of stdlib "
                   f"{EPOCHS_OF_TEXT:g}", lower_bound=0)
flags.DEFINE_integer("max_steps", None, "... or after this many steps, summed over all workers",
                     lower_bound=1)
flags.DEFINE_string("until", None, "... or at this virtual time: 300s, 10min")
flags.DEFINE_string("check_period", "5s", "virtual time between two evaluations; default with "
                    "--advise: one that suits the cluster")
flags.DEFINE_integer("seeds", 1, "runs of each model", lower_bound=1)
flags.DEFINE_integer("seed", 0, "of the first run: initial weights, batches and step times")
flags.DEFINE_string("out", "runs/simulate", "folder of the runs")
flags.DEFINE_bool("figures", True, "draw the runs into a folder `figures` in --out")
flags.DEFINE_bool("verbose", False, "with --advise: show all rules and batches that were tried, "
                  "too, with the reasons")


def main(argv: list[str]) -> int:
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        print(run())
    except (ValueError, OSError, RuntimeError) as error:
        print(f"{NAME.partition(' ')[2]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def run() -> str:
    """Run what the flags ask for; return the text for standard output."""
    if FLAGS["from"].value is not None:
        _from_run()
    if FLAGS.task is not None:
        _check_task()
    elif FLAGS.dataset is None:
        FLAGS["dataset"].value = of_experiment("models").dataset_of(FLAGS.model)
    if FLAGS.optimizer is None and _of_text():
        FLAGS["optimizer"].value = "adamw"
    if FLAGS.advise is not None:
        _advised()
    elif FLAGS.verbose:
        raise ValueError("--verbose shows more of an advice: give --advise, too")
    models, counts, plan = _variants(), _shards(), _plan()
    compared = [(variant, plan.of(variant)) for variant in models]
    if counts:
        compared = [(variant.sharded(count), _sharded(plan.of(variant), count))
                    for variant in models for count in counts]
    progress = Progress()
    try:
        if FLAGS["from"].value is not None and plan.experiment is None:
            scaled = [(advice.scaled(variant, own), own) for variant, own in compared]
            return predicted(_recorded(), scaled, FLAGS.seed, _loss())
        if FLAGS.advise is None:
            results = [_result(variant, own, progress) for variant, own in compared]
            text = compare.table(results)
        else:
            scaled = [(advice.scaled(variant, own), own) for variant, own in compared]
            results, text = _advice(scaled, plan, progress, len(counts) > 0)
    finally:
        progress.close()
    if FLAGS.figures:
        drawn = [one for one in results if one.reached or FLAGS.advise is None] or results
        _draw([run for one in drawn for run in one.runs], Path(FLAGS.out) / "figures")
    if len(counts) < 2:
        return text
    servers = iter(results)
    shards = compare.shards({variant.label: {count: next(servers) for count in counts}
                             for variant in models})
    return f"{shards}\n\n{text}" if FLAGS.advise is not None else f"{text}\n\n{shards}"


def _advice(compared: list[tuple[Variant, Plan]], plan: Plan, progress: Progress,
            sharded: bool) -> tuple[list[compare.Result], str]:
    """Train the models that may be best; return their results, and the advice.

    Raises:
        ValueError: the fastest machine alone misses the target.
    """
    alone = None
    if not sharded and (plan.experiment or plan.data):
        alone = _alone(plan, progress)
        if plan.target is None and FLAGS.task is not None:
            plan, alone = _targeted(plan, alone)
            compared = [(variant, replace(
                own, target=plan.target, stop_samples=plan.stop_samples, until=plan.until,
                settings=plan.settings)) for variant, own in compared]
        if plan.experiment and plan.target is not None and not alone.reached:
            raise ValueError(worth.missed(alone))
        if plan.experiment and plan.target is not None and not alone.seconds:
            raise ValueError(f"the first values have {alone.goal.removeprefix('to ')}, untrained: "
                             "give a target that takes some training")
    left, more = "", list[str]()
    if not FLAGS["sync"].present and plan.target is not None:
        results, compared, left = closest(
            compared, FLAGS.seed, lambda variant, plan: _result(variant, plan, progress), alone)
    else:
        results = [_result(variant, own, progress) for variant, own in compared]
    if alone is None:
        said = [] if sharded else [compare.without_verdict(results)]
    else:
        said, more = _verdict(results, alone, compared, plan, progress)
        results = [*results, alone]
    if FLAGS.verbose or alone is None:
        said += ["", f"All models at batch {plan.batch_size}:", "", compare.ranking(results),
                 *(text for one in (left, compare.sites(results), *more) if one
                   for text in ("", one))]
    return results, "\n".join(said).strip("\n")


def _targeted(plan: Plan, alone: compare.Result) -> tuple[Plan, compare.Result]:
    """Return a plan and the result of the fastest machine alone with a target that it reaches
    in its run, for a task without one.

    If the length of the run is no one's choice, the models have the time that it takes alone, and
    a little: with more examples than that, they are slower.
    """
    chosen = not (FLAGS["max_steps"].present or FLAGS["epochs"].present
                  or _task().has_schedule or plan.data)
    part = 0.8 if chosen else 0.5
    target = advice.target_of(alone.runs, part * alone.end)
    FLAGS["target"].value = given = f"{target.metric}:{target.target:g}"
    print(f"--target={given} (none is given): the fastest machine alone has this after {part:.0%} "
          f"of its run of {alone.end:,.4g} s", file=sys.stderr)
    settings, alone = {**plan.settings, "target": given}, replace(alone, target=target)
    if not chosen:
        return replace(plan, target=target, settings=settings), alone
    until = LATE * alone.seconds
    return replace(plan, target=target, stop_samples=math.inf, until=min(plan.until, until),
                   settings={**settings, "max_steps": None, "until": f"{until:g}s"}), alone


def _result(variant: Variant, plan: Plan, progress: Progress, label: str = "") -> compare.Result:
    """Run a model with every seed; `label` replaces the variant's own."""
    runs, label = [], label or variant.label
    for seed in range(FLAGS.seed, FLAGS.seed + FLAGS.seeds):
        progress.begin(f"{label}, seed {seed}")
        folder = run_folder(variant.folder, Path(FLAGS.out))
        runs.append(simulate(plan, variant.sync, variant.options, seed, folder, progress))
        gc.collect()  # the run's replicas and readers, which TensorFlow ends slowly at exit
    return compare.Result(label, tuple(runs), plan.target)


def _alone(plan: Plan, progress: Progress, batch: int | None = None) -> compare.Result:
    """Run the fastest machine alone; `batch`: its own, where that is another than the others'."""
    lone = replace(plan, cluster=worth.lone(plan.cluster), outer=None, outer_options={}, wire=None)
    own, said = ("", "") if batch is None else (f"-batch={batch}", f", batch {batch}")
    return _result(Variant(BSP, {}, f"alone{own}"), lone, progress,
                   f"the fastest machine alone{said}")


def _verdict(results: list[compare.Result], alone: compare.Result,
             compared: list[tuple[Variant, Plan]], plan: Plan,
             progress: Progress) -> tuple[list[str], list[str]]:
    """Train at other batches, and on the fast machines only; return the verdict, and what else
    there is to say."""
    cluster, noise = plan.cluster, noise_of(results)
    best = best_of(results)
    more = [worth.bounded(cluster)]
    if plan.data is not None:
        more.append(worth.own_data(cluster, plan.data))
    if best is None:
        return worth.verdict(None, batches.trained(plan, alone), None, cluster, ""), more
    rivals = [one for one in results if one is best or (one.reached and one.label == Auto.name)]
    tried = [_other_batches(*compared[results.index(one)], one, best, progress) for one in rivals]
    machine = batches.others(
        Variant(BSP, {}, "alone"), plan, batches.trained(plan, alone),
        lambda other: replace(_alone(replace(other, until=min(other.until, LATE * alone.seconds)),
                                     progress, other.batch_size), label=alone.label))
    found = [one for some in tried if (one := batches.best_of(some)) is not None]
    model = min(found, key=lambda one: one.result.seconds)
    variant, own = compared[results.index(next(
        one for one, some in zip(rivals, tried, strict=True) if model in some))]
    if model.batch != own.batch_size:
        other = batches.at_batch(variant, own, model.batch)
        assert other is not None, "it was trained at that batch"
        own = other
    few, fast = None, worth.fast_ones(cluster)
    if 1 < fast < cluster.size:
        few = _result(replace(variant, folder=f"{variant.folder}-fastest={fast}"),
                      replace(own, cluster=worth.fastest(own.cluster, fast)), progress,
                      f"{variant.label}, the fastest {fast} alone")
    if noise is None and plan.experiment is not None and cluster.size > 1:
        noise = noise_of([_result(Variant(BSP, {}, "noise"), worth.noise_plan(plan), progress,
                                  "noise of the gradients")])
    lone = batches.best_of(machine)
    assert lone is not None, "it has reached the target at the full batch"
    server = (f"wbsp ps --host=0.0.0.0 --worker_num={cluster.size} "
              + replace(variant, outer=own.outer, outer_options=own.outer_options,
                        wire=own.wire).flags)
    said = worth.verdict(model, lone, few, cluster, server,
                         noise and noise * plan.batch_size / model.batch)
    for way, first in (("smaller", min), ("larger", max)):
        if any(batches.still_gains(some) == way and one in some for some, one in
               [*((some, model) for some in tried), (machine, lone)]):
            said[1] += (f" A {way} batch may be faster still: ask again with --batch_size="
                        f"{first(model.batch, lone.batch)}.")
    return said, [batches.table([*tried, machine]), *more]


def _other_batches(variant: Variant, plan: Plan, first: compare.Result, best: compare.Result,
                   progress: Progress) -> list[batches.Trained]:
    """Train a model that reached the target with `first` at other batches; return all that was
    reached, each no later than `best`, or a little."""
    def train(other: Plan) -> compare.Result:
        own = replace(variant, folder=f"{variant.folder}-batch={other.batch_size}")
        short = replace(other, until=min(other.until, LATE * best.seconds))
        done = _result(own, short, progress, f"{variant.label}, batch {other.batch_size}")
        return replace(done, label=variant.label)

    if plan.inside is not None or plan.experiment is None:
        return [batches.trained(plan, first)]
    return batches.others(variant, plan, batches.trained(plan, first), train)


def _advised() -> None:
    """Set the flags of --advise that were not given."""
    if FLAGS.cluster is not None:
        raise ValueError("give --cluster or --advise, not both")
    FLAGS.cluster = FLAGS.advise
    chosen: dict[str, Any] = advice.FLAGS_OF_TEXT if _of_text() else advice.FLAGS
    if FLAGS.task is not None:
        chosen = {}
    if FLAGS.target is not None:
        chosen = {name: value for name, value in chosen.items() if not name.startswith("target")}
    for name, value in {**chosen, "sync": advice.SYNC}.items():
        if not FLAGS[name].present:
            setattr(FLAGS, name, value)
    given = _cluster_file()
    if not (FLAGS["sync"].present or FLAGS.shared_data) and given and given.sites:
        FLAGS["sync"].value = [*advice.SYNC, *advice.SITES]


def _from_run() -> None:
    """Have the recorded run be the cluster of the advice, and train nothing unless a network is
    named."""
    if FLAGS.advise is not None or FLAGS.cluster is not None:
        raise ValueError(f"--from={FLAGS['from'].value} and {FLAGS.advise or FLAGS.cluster} both "
                         "describe the cluster; give one")
    FLAGS["advise"].value = FLAGS["from"].value
    if FLAGS.task is None and not FLAGS["model"].present:
        FLAGS["model"].value = TIMING
        FLAGS["model"].present = 1


def _check_task() -> None:
    """Check that the flags suit a task of one's own.

    Raises:
        ValueError: they don't; one line.
    """
    if FLAGS["model"].present:
        raise ValueError(f"--task={FLAGS.task} and --model={FLAGS.model} both say what is trained; "
                         "give one")
    for name in ("data_dir", *TRAINING):
        if FLAGS[name].present and name not in ("lr", "epochs"):
            raise ValueError(f"--{name}={FLAGS[name].value} has no effect on a task, which has its "
                             "own data, optimizer and schedule")
    if FLAGS.lr is None:
        raise ValueError(f"--lr: at which learning rate does {FLAGS.task} train? give it, such as "
                         "--lr=0.001")
    FLAGS["model"].value = Path(FLAGS.task).name


@cache
def _task() -> OwnTask:
    """Return the task of --task.

    Raises:
        ValueError: it is none; one line.
        FileNotFoundError: the file does not exist; one line.
    """
    from wbsp.simulate.workloads.own import OwnTask

    return OwnTask(FLAGS.task, FLAGS.batch_size, FLAGS.lr)


@cache
def _recorded() -> Recorded:
    """Return what the run of --from shows about its machines."""
    return recorded(str(FLAGS["from"].value))


def _variants() -> list[Variant]:
    """Return the checked variants of --sync and --sync_option."""
    if not FLAGS["batch_size"].present:
        given = _cluster_file()
        FLAGS["batch_size"].value = (given and given.batch_size) or _batch()
    compared = variants(FLAGS.sync, FLAGS.sync_option)
    for variant in compared:
        for one in variant.levels:
            create_model(one.sync, one.options, FLAGS.batch_size)
    return compared


def _shards() -> list[int]:
    """Return the numbers of shards to compare, ascending; empty without the flag."""
    if FLAGS.shards is None:
        return []
    given = ",".join(FLAGS.shards)
    if not re.fullmatch("[1-9][0-9]*(,[1-9][0-9]*)*", given):
        raise ValueError(f"--shards={given} is not a list of numbers; give numbers of 1 or more, "
                         "such as 1,2,4")
    counts = sorted(set(map(int, FLAGS.shards)))
    check_number(counts[-1], f"--shards={given}")
    return counts


def _sharded(plan: Plan, count: int) -> Plan:
    """Return the plan with `count` shards like the server in place of the cluster file's."""
    return replace(plan, cluster=plan.cluster.sharded(count),
                   settings={**plan.settings, "shards": count})


def _plan() -> Plan:
    """Return the plan that the flags describe.

    Raises:
        ValueError: a flag is bad; one line.
        OSError: a file cannot be read.
    """
    timing = FLAGS.model == TIMING
    until = _time("until") if FLAGS.until is not None else math.inf
    if not _time("check_period"):
        raise ValueError("--check_period must be above 0")
    target = None if timing else _target()
    for name in ("jitter", "lr", "epochs"):  # a bound lets NaN pass
        if not math.isfinite(FLAGS[name].value or 0):
            raise ValueError(f"--{name}={FLAGS[name].value} must be a finite number")
    for name in (*TRAINING, "target", "target_accuracy", "data_dir", "check_period"):
        allowed = ((FLAGS.shared_data and name == "epochs")
                   or (FLAGS["from"].value is not None and name == "target"))
        if timing and FLAGS[name].present and not allowed:
            raise ValueError(f"--{name} needs a network; --model={TIMING} has none")
    if FLAGS["data_dir"].present and FLAGS.dataset in FROM_NO_FILES:
        raise ValueError(f"--data_dir={FLAGS.data_dir} has no effect on --dataset={FLAGS.dataset}, "
                         f"which {FROM_NO_FILES[FLAGS.dataset]}")
    cluster = _cluster().trains(FLAGS.batch_size)
    if timing and not FLAGS.shared_data and FLAGS.max_steps is None and FLAGS.until is None:
        if FLAGS.advise is None:
            raise ValueError(f"--model={TIMING} needs an end: give --max_steps or --until")
        FLAGS["max_steps"].value = advice.STEPS * cluster.size
    experiment = None if timing else _experiment()
    if FLAGS.task is not None and FLAGS.epochs is None and FLAGS.max_steps is None:
        _choose_length(until, cluster)
    stop = math.inf if FLAGS.max_steps is None else FLAGS.max_steps * FLAGS.batch_size
    if experiment and not FLAGS.shared_data and FLAGS.epochs is None and stop == until == math.inf:
        FLAGS["epochs"].value = EPOCHS_OF_TEXT if _of_text() else EPOCHS
    data = _shared_data(experiment)
    if experiment and data is None and FLAGS.epochs is not None:
        stop = min(stop, FLAGS.epochs * experiment.size)
    if not timing and FLAGS.task is None and (
            _of_text() or of_experiment("models.adamw").checked(FLAGS.optimizer)):
        command.refuse_decays()
        if data is None and stop == math.inf:
            raise ValueError("the rate of adamw follows the run's examples, and --until does not "
                             "say how many there are: give --epochs or --max_steps, too")
    growth = 0.0
    if FLAGS.advise is not None and not FLAGS["check_period"].present:
        growth = advice.PRECISION
        samples = stop if data is None else min(stop, data.n * data.epochs)
        checks = advice.CHECKS
        if FLAGS.task is not None:
            checks = advice.checks(samples / FLAGS.batch_size, *_task().costs(FLAGS.batch_size))
        if period := advice.check_period(cluster, samples / FLAGS.batch_size, checks):
            FLAGS["check_period"].value = f"{period:g}s"
    if FLAGS.wire is not None:
        parse(FLAGS.wire)
    shards = {"shards": cluster.server.shards} if cluster.server.shards > 1 else {}
    return Plan(cluster, experiment, FLAGS.batch_size, stop, until, target,
                _time("check_period"), growth, FLAGS.outer, parse_options(FLAGS.outer_option),
                FLAGS.wire, {**_settings(), **shards}, FLAGS.lr_steps == "mean", data)


def _choose_length(until: float, cluster: ClusterSpec) -> None:
    """Have a task's training end after a time that an advice can wait for.

    Raises:
        ValueError: it is no advice, and has no other end.
    """
    if FLAGS.advise is None:
        if until == math.inf:
            raise ValueError(f"--task={FLAGS.task} needs an end: give --epochs, --max_steps or "
                             "--until")
        return
    speeds = cluster.pace / worth.fastest(cluster, 1).pace
    seconds = speeds * _task().costs(FLAGS.batch_size)[0]
    FLAGS["max_steps"].value = steps = advice.length(seconds)
    print(f"--max_steps={steps} (no end is given): the fastest machine alone trains so many, and "
          f"the cluster {speeds:.3g} times as many in that time, in about {steps * seconds:.2g} s "
          "here. Give your script's --epochs for a verdict on its whole training",
          file=sys.stderr)


def _batch() -> int:
    """Return the batch for which none is given.

    Raises:
        ValueError: that of a task is not known.
    """
    if FLAGS.task is not None:
        raise ValueError(f"--batch_size: how many examples has a step of {FLAGS.task}? give it, "
                         "such as --batch_size=32")
    return BATCH_OF_TEXT if _of_text() else BATCH


def _of_text() -> bool:
    """Return whether the model is the decoder of bytes. Raises ValueError for a bad option."""
    return FLAGS.task is None and of_experiment("models").dataset_of(FLAGS.model) == "stdlib"


def _target() -> Goal | None:
    """Return the target of the flags, or None."""
    accuracy = FLAGS.target_accuracy
    if FLAGS.target is not None:
        if FLAGS["target_accuracy"].present:
            raise ValueError(f"--target={FLAGS.target} and --target_accuracy={accuracy:g} are both "
                             "targets; give one")
        return Goal.of(FLAGS.target)
    if accuracy is not None and not 0 < accuracy <= 1:
        raise ValueError(f"--target_accuracy={accuracy:g} is not an accuracy; give a part of 1, "
                         "such as 0.85")
    return None if accuracy is None else Goal(ACCURACY, True, accuracy)


def _loss() -> float | None:
    """Return the loss of --target, which a recorded run is to have come to; None: its least."""
    goal = None if FLAGS.target is None else Goal.parse("target", FLAGS.target, valued=True)
    if goal is not None and goal.metric != "loss":
        raise ValueError(f"--target={FLAGS.target}: the losses of --from are compared; give "
                         "--target=loss:VALUE")
    return goal and goal.target


def _shared_data(experiment: Experiment | None) -> SharedData | None:
    """Return the data that all workers share; None: each has its own."""
    if not FLAGS.shared_data:
        if FLAGS.examples is not None:
            raise ValueError(f"--examples={FLAGS.examples} is the size of data that workers share; "
                             "give --shared_data")
        return None
    if experiment is not None and FLAGS.examples is not None:
        raise ValueError(f"--examples={FLAGS.examples} and --dataset={FLAGS.dataset} both say how "
                         f"many examples there are; give --examples with --model={TIMING} only")
    if experiment is None and FLAGS.examples is None:
        raise ValueError(f"--shared_data with --model={TIMING}: how many examples are there? give "
                         "--examples=50000, say")
    epochs = FLAGS.epochs
    if epochs is None or epochs < 1 or epochs != int(epochs):
        raise ValueError("--shared_data needs a whole number of --epochs, "
                         + ("which is not given" if epochs is None else f"not {epochs:g}")
                         + "; give --epochs=5, say")
    return SharedData(FLAGS.examples if experiment is None else experiment.size, FLAGS.batch_size,
                      int(epochs))


def _cluster_file() -> ClusterSpec | None:
    """Return the cluster of the file; None: the flags describe it."""
    if FLAGS.cluster is None:
        return None
    if given := [name for name in DESCRIBING if FLAGS[name].present]:
        if (given != ["step_seconds"] or FLAGS["from"].value is not None
                or not read_cluster(FLAGS.cluster).relative):
            raise ValueError(f"--{given[0]} and {FLAGS.cluster} both describe the cluster; give "
                             "one")
    if FLAGS["from"].value is not None:
        return _recorded().cluster
    return read_cluster(FLAGS.cluster)


def _cluster() -> ClusterSpec:
    """Return the cluster of the file, or else of the flags."""
    model_bytes = _flag("model_bytes", units.size)
    if (cluster := _cluster_file()) is not None:
        if cluster.relative:
            seconds, law = _step_seconds()
            cluster = cluster.timed(law or StepLaw(0.0, seconds / FLAGS.batch_size))
        return cluster if model_bytes is None else replace(cluster, model_bytes=model_bytes)
    seconds, law = _step_seconds()
    line = _flag("bandwidth", units.bandwidth)
    shared = line if FLAGS.server_bandwidth is None else _flag("server_bandwidth", units.bandwidth)
    like = Group(step_seconds=seconds, jitter=FLAGS.jitter, latency=_time("latency"), up=line,
                 down=line)
    if law is not None:
        like = like.timed(law)
    server = replace(ClusterSpec.server, ingress=shared, egress=shared,
                     apply_seconds=_time("apply_seconds"))
    return published(FLAGS.workers, FLAGS.heterogeneity, like, server, model_bytes)


def _step_seconds() -> tuple[float, StepLaw | None]:
    """Return the seconds of a step on a mini-batch, and their law if it is known.

    Raises:
        ValueError: they are bad, or neither given nor known.
    """
    if FLAGS.step_seconds is None and FLAGS.task is not None:
        law = _measured()
        return law.seconds(FLAGS.batch_size), law
    if FLAGS.step_seconds is None:
        if FLAGS.model not in STEP_SECONDS:
            raise ValueError(f"--step_seconds: how long does a step of {FLAGS.model} take? give "
                             "it, such as 20ms")
        FLAGS["step_seconds"].value = f"{STEP_SECONDS[FLAGS.model]:g}s"
    seconds, example = _flag("step_seconds", units.step)
    if example is None:
        return seconds, None
    law = StepLaw(seconds, example)
    return law.seconds(FLAGS.batch_size), law


def _measured() -> StepLaw:
    """Return the law of the task's steps on this machine, and print it as the flag that repeats it.
    """
    task = _task()
    law, found = measure(task.seconds, FLAGS.batch_size, task.size)
    FLAGS["step_seconds"].value = str(law)
    took = ", ".join(f"{1000 * seconds:.3g} ms of {examples}" for examples, seconds in found)
    print(f"--step_seconds={law}: a step of {task.name} on this machine ({took} examples)",
          file=sys.stderr)
    return law


def _experiment() -> Experiment:
    if FLAGS.task is not None:
        from wbsp.simulate.workloads.task import TaskExperiment

        return TaskExperiment(_task(), FLAGS.batch_size, FLAGS.lr, _task().schedule)
    if _of_text() or FLAGS.dataset == "stdlib":
        from wbsp.simulate.workloads import gpt

        return gpt.experiment(FLAGS.model, FLAGS.dataset, FLAGS.batch_size, FLAGS.lr,
                              FLAGS.test_images, FLAGS.optimizer)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if chosen := os.environ.get("KERAS_BACKEND"):
        check_back_end(chosen)  # before Keras imports it
    try:
        with heavy_imports():
            from wbsp.simulate.workloads.keras import Experiment, make_deterministic

            make_deterministic()
    except ModuleNotFoundError as error:
        if error.name not in ("keras", "tensorflow", "jax"):
            raise
        raise ValueError(f"--model={FLAGS.model} is trained by Keras on TensorFlow or JAX, and "
                         f"{error.name} is not installed: pip install keras tensorflow, or keras "
                         "jax with KERAS_BACKEND=jax; --model=timing needs neither") from None
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of each batch that is traced
    return Experiment(FLAGS.model, FLAGS.dataset, FLAGS.batch_size, FLAGS.lr, FLAGS.data_dir,
                      FLAGS.test_images, _flag("lr_decays", units.decays), FLAGS.optimizer)


def _settings() -> dict[str, Any]:
    """Return the flags that run.json holds in addition to the settings of the single run."""
    names = ["model", "batch_size", "max_steps", "until", "check_period", "target",
             "target_accuracy"]
    if FLAGS.task is not None:
        names += ["task", "lr", "epochs"]
    elif FLAGS.model != TIMING:
        names += TRAINING
    names += DESCRIBING[1:] if FLAGS.cluster is None else ["cluster"]
    if FLAGS.cluster is not None and FLAGS.step_seconds is not None:  # of a machine of speed 1
        names += ["step_seconds"]
    text = {"text": of_experiment("data.stdlib").text().name} if _of_text() else {}
    return {**{name: FLAGS[name].value for name in names}, **text,
            "command": " ".join(["python -m wbsp.simulate", *sys.argv[1:]])}


def _time(name: str) -> float:
    seconds: float = _flag(name, units.seconds)
    return seconds


def _flag(name: str, parse: Callable[[Any], Any]) -> Any:
    """Return the parsed value of a flag; None if it has none."""
    return units.of_flag(name, FLAGS[name].value, parse)


def _draw(runs: list[Run], folder: Path) -> None:
    """Draw the figures; without matplotlib, print a line instead."""
    from wbsp.figures import draw

    try:
        draw(runs, folder, _target())
        print(f"figures: {folder}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)


if __name__ == "__main__":
    open_streams()
    command.run(main, NAME, ABOUT[NAME], GROUPS, " CLUSTER" if "advise" in NAME else "")
