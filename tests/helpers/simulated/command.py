"""Play thousands of simulated runs and count their results; or play one of them again, by its seed
and plan.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import multiprocessing
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from simulated.kinds import KINDS, TURNS, name_of, player
from simulated.plan import PHASES
from simulated.series_world import MOMENTS
from wbsp.sync import MODELS
from wbsp.timeouts import REATTACH

FAULTS = ("kills", "kill_top", "power", "kill_shards", "kill_workers", "leaves", "cuts",
          "isolations", "breaks", "absences", "fences", "storm", "sleeps", "full", "slow disk",
          "drift", "memory", "chosen", "strangers", "mistakes", "wild", "evaluator", "readers",
          "kill_readers", "validations")
_AT_ONCE = 20  # seeds that a process takes


@contextlib.contextmanager
def scratch():
    """Return a folder in memory, if there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def as_json(plan):
    """Return what differs in a plan from the defaults, for `--plan`."""
    usual = type(plan)()
    return json.dumps({field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)
                       if getattr(plan, field.name) != getattr(usual, field.name)})


def from_json(text, kind="any"):
    def frozen(value):
        return tuple(map(frozen, value)) if isinstance(value, list) else value
    return KINDS[kind].plan(**{name: frozen(value) for name, value in json.loads(text).items()})


def explain(plan, seed, error):
    """Describe a failure in a few lines: what, where, and the command that plays it again."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    notes = " ".join(getattr(error, "__notes__", ()))
    kind = name_of(plan)
    which = "" if kind == next(iter(KINDS)) else f"--kinds={kind} "
    return (f"seed {seed}: {type(error).__name__} {str(error)[:400]} {notes} ({where})\n"
            f"    python tests/simulation {which}--seeds={seed}:{seed + 1} --loud "
            f"--plan='{as_json(plan)}'")


class Tally:
    """Counts of the simulated runs.

    Attributes:
        runs, models, options, formats: numbers of runs, by kind, and so on.
        struck: numbers of runs in which something happened.
        times: how often it happened, in all runs.
    """

    def __init__(self):
        self.runs, self.models, self.options, self.formats = (Counter() for _ in range(4))
        self.struck, self.times, self.failed = Counter(), Counter(), []
        self.seconds, self.events, self.virtual = 0.0, 0, 0.0

    def play(self, plan, seed, folder, loud=False, kind=""):
        """Play a run and count it; return the run, or None if it failed."""
        began = time.process_time()
        run = None
        try:
            run = player(plan)(plan, seed, folder, loud)
            return run.run()
        except Exception as error:
            if loud:
                traceback.print_exc()
            self.failed.append(explain(plan, seed, error))
        finally:
            self.seconds += time.process_time() - began
            self.runs.update({"all": 1, f"kind {kind}": 1, "a standby": plan.standby,
                              "shards": bool(getattr(plan, "shards", 0)),
                              "both": bool(plan.standby and getattr(plan, "shards", 0)),
                              "shared data": plan.data is not None,
                              "sparse updates": getattr(plan, "sparse", False)})
            model = getattr(plan, "sync", None) or plan.above
            self.models[model] += 1
            self.options[model] += bool(plan.options)
            self.formats[getattr(plan, "wire", "float32")] += 1
            if run is not None:
                self.events += run.world.events
                self.virtual += run.world.now
                self.struck.update({kind for kind, times in run.notes.items() if times})
                self.times.update(run.notes)
        return None

    def add(self, other):
        """Add the runs that another process has played."""
        for name, value in vars(other).items():
            if isinstance(value, Counter):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def __str__(self):
        runs, struck = self.runs, self.struck

        def listed(counts):
            return ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()) if n)
        lines = [f"{runs['all']:,} runs, {len(self.failed)} failed; " + ", ".join(
                     f"{runs[name]:,} with {name}" for name in (
                         "a standby", "shards", "both", "shared data", "sparse updates")),
                 "kinds: " + listed({name.removeprefix("kind "): n for name, n in runs.items()
                                     if name.startswith("kind ")}),
                 "models: " + listed(self.models),
                 "with other options than the usual: " + listed(self.options),
                 "formats: " + listed(self.formats),
                 "runs with a fault: " + ", ".join(f"{k} {struck[k]:,}" for k in FAULTS),
                 "runs struck at a phase: " + ", ".join(
                     f"{p} {struck[f'phase {p}']:,}" for p in PHASES),
                 "take-overs by votes after: " + ", ".join(
                     f"{how} {self.times[f'votes after {how}']:,}" for how in (
                         "a nap", "a cut", "a death"))
                 + f"; absences beyond {REATTACH:g} s: "
                   f"{self.times['absences beyond REATTACH']:,}; deaths within 8 s of another: "
                   f"{self.times['deaths within 8 s of another']:,}",
                 "deaths at the end of a fit: " + ", ".join(
                     f"{moment} {self.times[f'death at {moment}']:,}" for moment in MOMENTS),
                 f"{self.seconds:,.0f} s of processor time, "
                 f"{runs['all'] / max(self.seconds, 1e-9):.1f} runs a second, "
                 f"{self.virtual:,.0f} s of virtual time"]
        return "\n".join(lines)


def planned(args, seed):
    """Return the kind and the plan of this seed."""
    kinds, models = args.kinds.split(","), args.models.split(",")
    kind = kinds[seed % len(kinds)]
    if args.plan is not None:
        return kinds[0], from_json(args.plan, kinds[0])
    model = models[seed // len(kinds) % len(models)]
    return kind, KINDS[kind].draws(model, seed, args.data, args.sparse)


def play(args, seed):
    """Play one run, and count it."""
    kind, plan = planned(args, seed)
    tally = Tally()
    with scratch() as folder:
        tally.play(plan, seed, folder, args.loud, kind)
    return tally


@contextlib.contextmanager
def played(args, seeds):
    """Yield the tallies of all seeds as they finish, from this many processes."""
    if args.jobs == 1:
        yield map(functools.partial(play, args), seeds)
        return
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        yield pool.imap_unordered(functools.partial(play, args), seeds, _AT_ONCE)


def parser():
    parser = argparse.ArgumentParser(prog="python tests/simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many, each of another seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", help="LOW:HIGH, in place of --runs and --first")
    parser.add_argument("--kinds", default=",".join(TURNS),
                        help=f"which take turns, of {', '.join(KINDS)}; default: %(default)s")
    parser.add_argument("--models", default=",".join(MODELS), help="which take turns")
    parser.add_argument("--plan", help="JSON: the same plan for all seeds, of the first kind; see "
                                       "simulated/plan.py, site_world.py and series_world.py")
    parser.add_argument("--data", action=argparse.BooleanOptionalAction,
                        help="with data that all workers share or without, in all runs; default: "
                             "as drawn")
    parser.add_argument("--sparse", action=argparse.BooleanOptionalAction,
                        help="likewise: updates that move a few rows of a table")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play")
    parser.add_argument("--failures", type=int, default=20, help="so many are printed")
    parser.add_argument("--loud", action="store_true", help="print all lines of each run")
    parser.add_argument("--every", type=int, default=5000, help="runs between two reports")
    return parser


def main(arguments=None):
    args = parser().parse_args(arguments)
    if unknown := {*args.kinds.split(",")} - {*KINDS}:
        parser().error(f"--kinds has {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    low, high = map(int, args.seeds.split(":")) if args.seeds else (args.first,
                                                                    args.first + args.runs)
    total = Tally()
    try:
        with played(args, range(low, high)) as tallies:
            for tally in tallies:
                for failure in tally.failed[:args.failures - len(total.failed)]:
                    print(f"FAILED {failure}", flush=True)
                total.add(tally)
                if total.runs["all"] % args.every == 0:
                    print(total, flush=True)
    except KeyboardInterrupt:
        print("interrupted; so far:")
        print(total, flush=True)
        return 130
    print(total, flush=True)
    return int(bool(total.failed))
