#!/usr/bin/env python
"""What weights by work and by time do where the data of the workers differ, in virtual time.

    lab/split_classes.py                # minutes; CIFAR-10 from WBSP_DATA_DIR, or through Keras

Two workers, one of them `--slower` times slower, network `small`: the fast worker trains the first
five classes alone, the slow one the others. Prints the accuracy on the classes of each, the mean of
the versions in the run's second half, as a Markdown table.
"""

import pathlib
import sys

import numpy as np
from absl import flags

from wbsp import command
from wbsp.figures.table import markdown
from wbsp.process.imports import heavy_imports
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.world.server import ServerSpec
from wbsp.sync import create

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # data and models of the checkout

FLAGS = flags.FLAGS
FORMS = {"bsp": {}, "asp": {}, "asp weight=time": {"weight": "time"},
         "wbsp weight=time": {"weight": "time"}, "pcc": {}, "pcc weight=work": {"weight": "work"},
         "pcc weight=time": {"weight": "time"}}
CLASSES = range(5), range(5, 10)  # of the fast worker, of the slow one
BATCH = 128

flags.DEFINE_string("dataset", "cifar10", "cifar10 or shapes10")
flags.DEFINE_float("slower", 4.0, "seconds of a slow step, in those of a fast one",
                   lower_bound=1)
flags.DEFINE_float("seconds", 30.0, "virtual seconds of a run", lower_bound=1)
flags.DEFINE_integer("seeds", 3, "runs of each model", lower_bound=1)
flags.DEFINE_float("lr", 0.05, "learning rate", lower_bound=0)


def main(argv):
    with heavy_imports():
        import data
        import models
        from data import pipeline
        from models.training import compile
        from wbsp.simulate.workloads.keras import KerasWorkload, make_deterministic, share
    make_deterministic()
    try:
        sets = {split: data.load(FLAGS.dataset, split=split) for split in ("train", "test")}
    except (ValueError, OSError) as error:
        print(f"split_classes: {error}", file=sys.stderr)
        return 1
    augmented = FLAGS.dataset == "cifar10"
    parts = [_of(*sets["train"], classes) for classes in CLASSES]
    tests = [pipeline.test(*_of(*sets["test"], classes), 1000).cache() for classes in CLASSES]

    def batches(seed):
        return lambda worker: pipeline.train(*parts[worker], BATCH, seed, worker, augmented)

    network = share(compile(models.build("small", 0), "small", FLAGS.lr),
                            next(iter(batches(0)(0))))
    line = {"jitter": 0.1, "latency": 0.001, "up": 1e9 / 8, "down": 1e9 / 8}
    groups = [Group(step_seconds=0.02 * factor, **line) for factor in (1.0, FLAGS.slower)]
    spec = ClusterSpec(tuple(groups), ServerSpec(1e9 / 8, 1e9 / 8))
    rows = []
    for form, options in FORMS.items():
        scores = []
        for seed in range(FLAGS.seeds):
            workload = KerasWorkload(network, models.build("small", seed), 2, batches(seed), BATCH)
            cluster = Cluster(create(form.split()[0], **options), spec.machines(seed), workload,
                              spec.server, model_bytes=593_192)
            seen = []
            for second in range(1, round(FLAGS.seconds) + 1):
                cluster.run(second)
                if second > FLAGS.seconds / 2:
                    version = cluster.engine.store.latest.vector
                    seen.append([100 * workload.evaluate(version, test)["accuracy"]
                                 for test in tests])
            scores.append(np.mean(seen, 0))
            print(f"{form}, seed {seed}: {scores[-1]}", file=sys.stderr, flush=True)
        columns = np.array(scores)  # [seeds, 2]
        rows.append([form, *map(_spread, [*columns.T, columns.mean(1)])])
    print(markdown(["model", "classes of the fast worker", "classes of the slow worker", "all"],
                   rows))
    return None


def _of(images, labels, classes):
    chosen = np.isin(labels, list(classes))
    return images[chosen], labels[chosen]


def _spread(values):
    return f"{values.mean():.1f} ({values.min():.1f} to {values.max():.1f})"


if __name__ == "__main__":
    command.run(main, "split_classes", __doc__)
