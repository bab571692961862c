#!/usr/bin/env python
"""A comparison of synchronization models with real processes on this machine, over several seeds.

    lab/compare_models.py --heterogeneity=H1 --target_accuracy=0.85 --out=runs/compare
    lab/compare_models.py --sync=asp,pcc,pcc:weight=work

runs a server and two workers on this machine for every model and seed, one run after another, and
prints a Markdown table of the times to the target. A run in --out is not repeated, and one with
other flags is not taken for it.
"""

import json
import pathlib
import sys

from absl import flags
from reproduction.command import run_command
from reproduction.real import finished, train

from wbsp import command, heterogeneity
from wbsp.runlog.folder import run_folder
from wbsp.runlog.reader import Run, read_run
from wbsp.simulate.study.variants import Variant, variants
from wbsp.sync import MODELS, with_batch_size

FLAGS = flags.FLAGS
BATCH = 128  # of the launcher's workers

flags.DEFINE_list("sync", list(MODELS), "synchronization models, separated by commas; "
                  "pcc:weight=work is a model with an option of its own")
flags.DEFINE_multi_string("sync_option", [], "key=value: an option of the models that have it; "
                          "model.key=value: of that model alone")
flags.DEFINE_float("lr", None, "initial learning rate; default: the network's published one")
flags.DEFINE_integer("seeds", 3, "runs of each, with seeds 0, 1, ...", lower_bound=1)
flags.DEFINE_integer("workers", 2, "workers of each run", lower_bound=1)
flags.DEFINE_string("model", "small", "network")
flags.DEFINE_string("dataset", "shapes10", "data set")
flags.DEFINE_enum("heterogeneity", "H1", list(heterogeneity.SLEEPS), heterogeneity.FLAG_HELP)
flags.DEFINE_float("target_accuracy", 0.85, "a run ends when a version reaches it")
flags.DEFINE_float("epochs", 100, "... or after so many passes over the training set")
flags.DEFINE_float("check_period", 0.5, "seconds between two evaluations")
flags.DEFINE_integer("test_images", None, "an evaluation looks at so many images of the test set, "
                     "always the same ones; default: all", lower_bound=1)
flags.DEFINE_float("band_width_limit", None, "MB/s in each direction of each worker's traffic")
flags.DEFINE_string("out", "runs/compare", "folder of the runs")


def main(argv):
    return run_command("compare_models", run, argv)


def run() -> int:
    chosen = variants(FLAGS.sync, FLAGS.sync_option)
    for one in chosen:
        one.sync(**with_batch_size(one.sync, BATCH, one.options))
    print(table({variant.label: [run_once(variant, seed) for seed in range(FLAGS.seeds)]
                 for variant in chosen}))
    return 0


def run_once(variant: Variant, seed: int) -> Run:
    """Return the run of a server and its workers; make it unless it was made before."""
    base = pathlib.Path(FLAGS.out).absolute() / f"seed-{seed}" / variant.folder
    sync = variant.sync
    name = sync.name if sync.name in MODELS else f"{sync.__module__}:{sync.__qualname__}"
    server = [f"--seed={seed}", f"--sync={name}",
              *(f"--{flag}={FLAGS[flag].value}" for flag in (
                  "model", "dataset", "heterogeneity", "target_accuracy", "epochs", "check_period",
                  "lr", "test_images") if FLAGS[flag].value is not None),
              *(f"--sync_option={key}={value}" for key, value in variant.options.items())]
    limit = FLAGS["band_width_limit"]
    workers = [[f"--band_width_limit={limit.value}"] if limit.present else []] * FLAGS.workers
    flags_of_run = base / "flags.json"
    if done := finished(base):
        if json.loads(flags_of_run.read_text()) != [server, workers]:
            raise ValueError(f"{base} has a run with other flags, which are in "
                             f"{flags_of_run.name} there; choose another --out")
        return done
    base.mkdir(parents=True, exist_ok=True)
    flags_of_run.write_text(json.dumps([server, workers]))
    print(f"{variant.label}, seed {seed} ...", file=sys.stderr, flush=True)
    codes = train(base, server, workers)
    if any(codes):
        raise SystemExit(f"{variant.label}, seed {seed}: exit codes {codes}; see {base}/*.log")
    return read_run(run_folder(base, resume=True))


def table(compared: dict[str, list[Run]]) -> str:
    """Return a Markdown table with one row a model: mean and range over its seeds."""
    rows = ["| model | seconds to target | versions | steps of workers | compute % of workers | "
            "wait % of workers |", "|---|---|---|---|---|---|"]
    for label, same in compared.items():
        times = [run.time_to(FLAGS.target_accuracy) for run in same]
        reached = [t for t in times if t is not None]
        time = "not reached" if len(reached) < len(times) else _spread(times, ".1f")
        workers = [list(run.summary["workers"].values()) for run in same]

        def each(value, form, workers=workers):
            columns = zip(*workers, strict=True)
            return " / ".join(_mean([value(w) for w in column], form) for column in columns)

        rows.append(
            f"| {label} | {time} | {_mean([run.summary['version'] for run in same], ',.0f')} | "
            f"{each(lambda w: w['steps'], ',.0f')} | "
            f"{each(lambda w: 100 * w['shares']['compute'], '.1f')} | "
            f"{each(lambda w: 100 * w['shares']['wait'], '.1f')} |")
    return "\n".join(rows)


def _mean(values, form: str) -> str:
    return format(sum(values) / len(values), form)


def _spread(values, form: str) -> str:
    return f"{_mean(values, form)} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    command.run(main, "compare_models", __doc__)
