#!/usr/bin/env python
"""Make lab/reports/reproduction-2026-11-28.md from nothing: each run, figure and number.

    lab/reproduce.py            # hours; can be stopped and started again
    lab/reproduce.py --quick    # a reduced version, eight minutes on two cores

A run that is finished is not repeated. The report is written from what there is, also after
Ctrl-C or when the --budget is spent. CIFAR-10 comes from the folder in WBSP_DATA_DIR, or through
Keras.
"""

import importlib.util
import os
import pathlib
import sys
import time

from absl import flags
from reproduction import report, settings
from reproduction.command import budget, exit_code, run_command
from reproduction.display import Display
from reproduction.results import Results
from reproduction.work import (
    ROOT,
    Simulation,
    carry_out,
    fetch_data,
    reality,
    reality_to_60,
    zipline,
)

from wbsp import command

FLAGS = flags.FLAGS
PAGE = ROOT / "lab/reports/reproduction-2026-11-28.md"  # notes; the report is by hand

flags.DEFINE_bool("quick", False, "fewer settings, lower targets, one seed")
flags.DEFINE_bool("miniature", False, "the whole chain on a handful of tiny runs: does it work?")
flags.DEFINE_string("out", None, "folder of the runs; default: runs/reproduce, with -quick or "
                    "-miniature behind it")
flags.DEFINE_string("report", None, f"file to write; default: {PAGE.relative_to(ROOT)}, of a "
                    "reduced version report.md in --out")
flags.DEFINE_integer("jobs", None, "processes side by side; default: one a core", lower_bound=1)
flags.DEFINE_string("budget", None, "begin nothing new after so long: 70min; 0s only writes the "
                    "report")


def main(argv):
    return run_command("reproduce", run, argv)


def run() -> int:
    if FLAGS.quick and FLAGS.miniature:
        raise ValueError("give --quick or --miniature, not both")
    if importlib.util.find_spec("matplotlib") is None:
        raise OSError("figures need matplotlib; install it with: pip install matplotlib")
    size = "quick" if FLAGS.quick else "miniature" if FLAGS.miniature else ""
    planned, later = {"quick": settings.quick, "miniature": settings.miniature,
                      "": settings.full}[size]()
    out = pathlib.Path(FLAGS.out or ROOT / "-".join(filter(None, ["runs/reproduce", size])))
    page = FLAGS.report or (out / "report.md" if size else PAGE)
    seconds = budget(FLAGS.budget)
    until = time.monotonic() + seconds
    printing = [reality(settings.known("bsp", "asp", "wbsp", "pcc"), 30, out.absolute()),
                reality_to_60(settings.known(*settings.TO_60), out.absolute()),
                zipline(out.absolute())]
    first, last = ([Simulation(setting, seed, out.absolute()) for setting, seed in part]
                   for part in (planned, later))
    jobs = [*first, *([] if size else printing), *last]
    failures, stopped, display = [], False, Display()
    if seconds:
        fetch_data(jobs)
    try:
        failures = carry_out(jobs, FLAGS.jobs or os.cpu_count(), until, display.show)
    except KeyboardInterrupt:
        stopped = True
    display.end()
    print("writing the report", file=sys.stderr)
    report.write(Results([*first, *last]), printing, PAGE, pathlib.Path(page))
    print(page)
    return exit_code("reproduce", failures, stopped)


if __name__ == "__main__":
    command.run(main, "reproduce", __doc__)
