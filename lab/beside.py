#!/usr/bin/env python
"""wbsp beside what people use today, in real processes on two cores of this machine.

    lab/beside.py --cells=1-2                            # all entries, seeds 0, 1, 2; hours
    lab/beside.py --cells=1-2 --entries='lone,ddp:uneven=true' --settings=batch=4:lr=2e-3 --seeds=0
    lab/beside.py --cells=1-2 --events=sleep:1,kill:1 --entries=wbsp,ddp
    lab/beside.py --table                                # of what is there

A run of an entry lasts --seconds of real time, from the first step to the last update: a trial
counts how many examples that is. Of each entry all settings of lab/beside/cells.toml are run with
the first seed; the best has the other seeds. A run that is there is not made again, so this may be
stopped and started at will. The machine should have nothing else to do. README.md in lab/beside
says what is equal for all, and what could not be run.
"""

import pathlib
import sys
import time

from absl import flags
from beside import environments, events, plan, table
from beside.run import Asked, Result, result
from reproduction.command import budget, run_command

from wbsp import command

FLAGS = flags.FLAGS

flags.DEFINE_list("cells", ["1-2"], "of lab/beside/cells.toml")
flags.DEFINE_list("entries", [], "such as ddp:uneven=true; default: those of the file")
flags.DEFINE_list("settings", [], "that are swept, such as batch=4:lr=2e-3:beta1=0; default: those "
                  "of the file")
flags.DEFINE_list("seeds", ["0", "1", "2"], "of the runs; settings are swept with the first")
flags.DEFINE_float("seconds", 180.0, "length of a run", lower_bound=1)
flags.DEFINE_bool("busy", False, "slow machines do not sleep: other processes take their cores")
flags.DEFINE_list("events", [], "what happens in the middle of a run of the best setting with the "
                  "first seed: slower:1, sleep:1, crash:1, kill:1, back:1, coordinator, join")
flags.DEFINE_string("out", "runs/beside", "folder of the runs")
flags.DEFINE_string("budget", None, "time after which no run begins, such as 20min")
flags.DEFINE_string("base", "wbsp", "entry with which the table compares the others")
flags.DEFINE_bool("table", False, "run nothing more")
flags.DEFINE_bool("list", False, "print the runs that are missing, and run nothing")
flags.DEFINE_bool("install", False, "create the environments of the entries, and run nothing")


def main(argv):
    return run_command("beside", run, argv)


class Runs:
    """The runs that are asked for."""

    def __init__(self) -> None:
        self._out = pathlib.Path(FLAGS.out).absolute()
        self._end = time.monotonic() + budget(FLAGS.budget)
        self._only_read = FLAGS.table or FLAGS.list
        self.missing: list[Asked] = []
        self.failed = 0

    def result(self, asked: Asked) -> Result | None:
        """Return what a run gave; None: it is not there, or has no loss."""
        make = not self._only_read and time.monotonic() < self._end
        known = result(asked, self._out, False)
        try:
            found = result(asked, self._out, make) if make else known
        except OSError as error:
            print(f"beside: {asked.path}: {error}", file=sys.stderr, flush=True)
            self.failed += 1
            return None
        if found is None:
            self.missing.append(asked)
        elif found != known:
            shown = {key: found[key] for key in ("loss", "seconds", "total", "steps", "codes")}
            print(f"{asked.path}: {shown}", file=sys.stderr, flush=True)
        return None if found is None or found["loss"] is None else found


def run() -> int:
    cells, entries = plan.data()
    if unknown := [name for name in FLAGS.cells if name not in cells]:
        raise ValueError(f"--cells: {unknown[0]!r} is unknown; there are {', '.join(cells)}")
    names = FLAGS.entries or list(entries)
    for name in names:
        if (first := name.partition(":")[0]) not in environments.OF_ENTRY:
            raise ValueError(f"--entries: {first!r} is unknown; there are "
                             f"{', '.join(environments.OF_ENTRY)}")
        plan.options(name.partition(":")[2])
        if not FLAGS.settings and name not in entries:
            raise ValueError(f"--entries: {name} is not in cells.toml: give its --settings")
    for text in FLAGS.events:
        events.Event.read(text)
    if FLAGS.install:
        for name in {environments.OF_ENTRY[name.partition(":")[0]] for name in names}:
            environments.create(name)
        return 0
    runs = Runs()
    for cell in (cells[name] for name in FLAGS.cells):
        for name in names:
            settings = FLAGS.settings or entries[name]
            of_entry(runs, cell, name, [str(plan.setting(text)) for text in settings])
    if FLAGS.list:
        print("\n".join(str(asked.path) for asked in runs.missing))
        return 0
    out = pathlib.Path(FLAGS.out)
    print(table.losses(out, FLAGS.base) + table.happened(out))
    if runs.missing:
        print(f"beside: {len(runs.missing)} runs are missing, of those known by now: --list prints "
              "them", file=sys.stderr)
    return 1 if runs.failed else 0


def of_entry(runs: Runs, cell: plan.Cell, name: str, settings: list[str]) -> None:
    """Make the runs of an entry in a cell: the sweep, then the best setting's."""
    if name.partition(":")[0] == "lone":  # one run for all networks between its cell's machines
        cell = cell._replace(name=plan.lone(cell.name), mbit=None)
    first, *others = map(int, FLAGS.seeds)

    def asked(text: str, seed: int, event: str = "") -> Asked:
        late = cell.slow[-1:] if event.startswith("join") else ()
        return Asked(cell._replace(slow=cell.slow + late), name, text, seed, FLAGS.seconds,
                     FLAGS.busy and len(cell.slow) > 1, event)

    swept = [(found["loss"], n, text) for n, text in enumerate(settings)
             if (found := runs.result(asked(text, first))) is not None]
    if not swept:
        return
    _, _, best = min(swept)
    for seed in others:
        runs.result(asked(best, seed))
    for event in FLAGS.events:
        runs.result(asked(best, first, event))


if __name__ == "__main__":
    command.run(main, "beside", __doc__)
