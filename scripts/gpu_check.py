#!/usr/bin/env python
"""What holds on a GPU, and what it costs: a check for any machine that has one.

    python scripts/gpu_check.py --json=gpu.json                     # some six minutes
    KERAS_BACKEND=torch python scripts/gpu_check.py --quick --networks=cnn,resnet50
    python scripts/gpu_check.py --device=cpu --quick --networks=small    # a rehearsal

With TensorFlow, JAX or PyTorch: the one that KERAS_BACKEND names, or the first that sees a GPU. It
needs no data. Checked: versions equal to the CPU's. Measured, each beside what it is compared with:
the hook in a step of each network; two workers on the GPU beside one; their share of computing
where one sleeps; the way of a model from the GPU's memory to the server and back.

Each part is printed as it ends; one that fails is a line, and the others continue. The exit code is
1 where a part failed or found something wrong, and where there is no GPU.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from absl import flags

import models
from scripts.gpu import parts, tables
from scripts.gpu.device import BACK_ENDS, PartError, Place, find
from scripts.harness import write_json
from wbsp import __version__, command

FLAGS = flags.FLAGS

flags.DEFINE_bool("quick", False, "a few turns of each")
flags.DEFINE_string("json", None, "file to write all figures into")
flags.DEFINE_list("networks", ["cnn", "alexnet", "resnet50", "vgg16"], "whose hook is measured: "
                  f"{', '.join({**models.KNOWN, **models.IMAGENET})}; empty: none")
flags.DEFINE_string("small", "cnn", "the network of all other parts")
flags.DEFINE_integer("batch_size", None, "examples in a step; default: 128 of CIFAR-10's pictures, "
                     "32 of ImageNet's", lower_bound=1)
flags.DEFINE_integer("image_size", None, "pixels of a side of ImageNet's pictures; default: as "
                     "published", lower_bound=1)
flags.DEFINE_list("sizes", [f"{mb:g}" for mb in parts.SIZES_MB], "MB of models that make round "
                  "trips; empty: none")
flags.DEFINE_float("limit", 480.0, "seconds after which what is left counts as failed",
                   lower_bound=1)
flags.DEFINE_float("part_limit", 150.0, "likewise, of one part", lower_bound=1)
flags.DEFINE_enum("device", "gpu", ["gpu", "cpu"], "cpu: rehearse the check; its figures say "
                  "nothing about a GPU")


def main(argv):
    began = time.monotonic()
    try:
        if len(argv) > 1:
            raise ValueError(f"unknown argument {argv[1]!r}; flags are written --name=value")
        plan = plan_of_flags()
        if FLAGS.json:
            write_json(FLAGS.json, {})  # rather a bad name now than the figures lost
        place, names = where(began + FLAGS.limit)
    except (LookupError, ValueError, OSError) as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    print(f"{place.back_end} on {', '.join(names)}", flush=True)
    figures = {"wbsp": __version__, "back_end": place.back_end, "device": place.device,
               "names": names, "parts": {}}
    for name, part in parts.all_of(plan).items():
        figures["parts"][name] = carry_out(name, part, place, plan, began)
        write_json(FLAGS.json, figures)
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if all(one["ok"] for one in figures["parts"].values()) else 1


def carry_out(name, part, place, plan, began):
    """Do one part and print it; return its figures."""
    start = time.monotonic()
    one = {"rows": [], "ok": False}
    try:
        rows = part(place, plan, min(began + FLAGS.limit, start + FLAGS.part_limit))
        one |= {"rows": rows, "ok": all(row["ok"] for row in rows)}
        print()
        tables.show(name, rows)
    except (RuntimeError, ValueError, OSError) as error:
        one["error"] = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        one["details"] = error.details if isinstance(error, PartError) else str(error)
    one["seconds"] = time.monotonic() - start
    if not one["ok"]:
        reason = one.get("error", "see WRONG above")
        print(f"gpu_check: {name} failed: {reason}", file=sys.stderr)
    sys.stdout.flush()
    return one


def plan_of_flags():
    """Return what to measure. Raises ValueError for wrong flags."""
    known = {**models.KNOWN, **models.IMAGENET}
    for name in FLAGS.networks:
        if name not in known:
            raise ValueError(f"--networks={name}: choose of {', '.join(known)}")
        models.check(name, "imagenet" if name in models.IMAGENET else "cifar10", FLAGS.image_size)
    if FLAGS.small not in models.KNOWN:
        raise ValueError(f"--small={FLAGS.small}: choose of {', '.join(models.KNOWN)}")
    try:
        sizes = tuple(float(mb) for mb in FLAGS.sizes)
    except ValueError:
        raise ValueError(f"--sizes={','.join(FLAGS.sizes)}: write MB, such as 0.6,102") from None
    if any(not 1e-5 <= mb <= 1e5 for mb in sizes):
        raise ValueError(f"--sizes={','.join(FLAGS.sizes)}: a model has 0.00001 to 100000 MB")
    pairs, epochs, seconds = (3, 1, 2.0) if FLAGS.quick else (12, 2, 6.0)
    return parts.Plan(FLAGS.networks, FLAGS.batch_size, FLAGS.image_size, FLAGS.small, pairs,
                      epochs, seconds, sizes)


def where(end):
    """Where to compute, and the names of the GPUs. Raises LookupError without a device."""
    wanted = os.environ.get("KERAS_BACKEND")
    if FLAGS.device == "gpu":
        return find(wanted, end)
    if wanted not in (None, *BACK_ENDS):
        raise LookupError(f"KERAS_BACKEND={wanted}: choose one of {', '.join(BACK_ENDS)}")
    return Place(wanted or BACK_ENDS[0], "cpu"), ["the CPU: a rehearsal"]


if __name__ == "__main__":
    command.run(main, "gpu_check", __doc__)
