#!/usr/bin/env python
"""Long trainings in virtual time, of the published models and of what goes past them.

    lab/long_runs.py                  # many hours; can be stopped and started again
    lab/long_runs.py --budget=1h      # begins nothing new after an hour
    lab/long_runs.py --budget=0s      # only writes the page

Finished runs are kept in lab/reports/long-runs.csv, a line each, and are not repeated. The tables
of lab/reports/long-runs-2026-11-28.md are written from them. CIFAR-10 comes from the folder in
WBSP_DATA_DIR, or through Keras.
"""

import os
import pathlib
import shutil
import sys
import time

from absl import flags
from reproduction import long, long_report
from reproduction.book import BOOK, SECONDS, Book
from reproduction.command import budget, exit_code, run_command
from reproduction.display import Display
from reproduction.work import ROOT, carry_out, fetch_data

from wbsp import command

FLAGS = flags.FLAGS
PAGE = ROOT / "lab/reports/long-runs-2026-11-28.md"

flags.DEFINE_string("out", str(ROOT / "runs/long"), "folder of the runs under way")
flags.DEFINE_string("book", str(BOOK), "file of the finished runs")
flags.DEFINE_string("page", str(PAGE), "file to write the tables into, between the marks")
flags.DEFINE_integer("jobs", None, "processes side by side; default: one a core", lower_bound=1)
flags.DEFINE_string("budget", None, "begin nothing new after so long: 70min; 0s only writes the "
                    "page")
flags.DEFINE_list("workers", ["2", "8"], "numbers of workers")


def main(argv):
    return run_command("long_runs", run, argv)


def run() -> int:
    workers = [int(n) if n in map(str, SECONDS) else None for n in FLAGS.workers]
    if None in workers or not workers:
        raise ValueError(f"--workers={','.join(FLAGS.workers)}: choose of "
                         f"{', '.join(map(str, SECONDS))}")
    until, book = time.monotonic() + budget(FLAGS.budget), Book(pathlib.Path(FLAGS.book))
    failures, stopped, jobs = [], False, []
    try:
        while time.monotonic() < until and not failures:
            jobs = long.plan(pathlib.Path(FLAGS.out).absolute(), book, workers)
            if not any(job.left() for job in jobs):
                break  # otherwise the rates that are known now may ask for more
            fetch_data(jobs)
            failures = carry_out(jobs, FLAGS.jobs or os.cpu_count(), until, Display().show)
    except KeyboardInterrupt:
        stopped = True
    for job in jobs:
        if not job.left():
            shutil.rmtree(job.folder, ignore_errors=True)  # the book has what is left of it
    print(f"writing {FLAGS.page}", file=sys.stderr)
    long_report.write(book, pathlib.Path(FLAGS.page))
    return exit_code("long_runs", failures, stopped)


if __name__ == "__main__":
    command.run(main, "long_runs", __doc__)
