"""Thousands of simulated runs, counted; or one of them again, as its seed and plan say."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from simulated.cluster import Cluster
from simulated.plan import PHASES, Plan, drawn
from wbsp.sync import MODELS

KINDS = ("kills", "power", "kill_shards", "kill_workers", "leaves", "cuts", "isolations", "breaks",
         "storm", "sleeps", "full", "slow disk", "drift", "memory", "chosen", "strangers",
         "mistakes", "wild", "evaluator")


@contextlib.contextmanager
def scratch():
    """A folder in memory, where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def as_json(plan):
    """What of a plan is not as usual, for `--plan`."""
    usual = Plan()
    return json.dumps({field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)
                       if getattr(plan, field.name) != getattr(usual, field.name)})


def from_json(text):
    values = json.loads(text)
    for name in ("naps", "latency", "pair", "outage", "speeds", "victims", "data"):
        if values.get(name):
            values[name] = tuple(values[name])
    values["aimed"] = tuple(map(tuple, values.get("aimed", ())))
    return Plan(**values)


def explain(plan, seed, error):
    """A failure, in a few lines: what, where, and how it is played again."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    notes = " ".join(getattr(error, "__notes__", ()))
    return (f"{type(error).__name__} {str(error)[:400]} {notes} ({where})\n"
            f"    python tests/simulation --seeds={seed}:{seed + 1} --loud "
            f"--plan='{as_json(plan)}'")


class Tally:
    """What was played."""

    def __init__(self):
        self.runs = self.standby = self.shards = self.both = self.data = self.sparse = 0
        self.seconds, self.events, self.virtual = 0.0, 0, 0.0
        self.models, self.formats, self.faults, self.failed = Counter(), Counter(), Counter(), []
        self.options = Counter()

    def play(self, plan, seed, folder, loud=False):
        """Play a run and count it; the run, or None where it failed."""
        began = time.process_time()
        cluster = None
        try:
            cluster = Cluster(plan, seed, folder, loud)
            return cluster.run()
        except Exception as error:
            if loud:
                traceback.print_exc()
            self.failed.append(explain(plan, seed, error))
        finally:
            self.seconds += time.process_time() - began
            self.runs += 1
            self.standby += plan.standby
            self.shards += bool(plan.shards)
            self.both += bool(plan.standby and plan.shards)
            self.data += plan.data is not None
            self.sparse += plan.sparse
            self.models[plan.sync] += 1
            if plan.options:
                self.options[plan.sync] += 1
            self.formats[plan.wire] += 1
            if cluster is not None:
                self.events += cluster.world.events
                self.virtual += cluster.world.now
                self.faults.update({kind: 1 for kind in cluster.notes})  # runs that had it
        return None

    def __str__(self):
        lines = [f"{self.runs:,} runs, {len(self.failed)} failed; {self.standby:,} with a standby, "
                 f"{self.shards:,} with shards, {self.both:,} with both, {self.data:,} with shared "
                 f"data, {self.sparse:,} with sparse updates",
                 "models: " + ", ".join(f"{k} {n:,}" for k, n in sorted(self.models.items())),
                 "with other options than the usual: " + ", ".join(
                     f"{k} {n:,}" for k, n in sorted(self.options.items())),
                 "formats: " + ", ".join(f"{k} {n:,}" for k, n in sorted(self.formats.items())),
                 "runs with a fault: " + ", ".join(f"{k} {self.faults[k]:,}" for k in KINDS),
                 "runs struck at a phase: " + ", ".join(
                     f"{p} {self.faults[f'phase {p}']:,}" for p in PHASES),
                 f"{self.seconds:,.0f} s of processor time, "
                 f"{self.runs / max(self.seconds, 1e-9):.1f} runs a second, "
                 f"{self.virtual:,.0f} s of virtual time"]
        return "\n".join(lines)


def plans(args, models):
    """(plan, seed) of all runs."""
    low, high = map(int, args.seeds.split(":")) if args.seeds else (args.first,
                                                                    args.first + args.runs)
    for seed in range(low, high):
        if args.plan is not None:
            yield from_json(args.plan), seed
        else:
            yield drawn(models[seed % len(models)], seed, args.standby, args.shards,
                        data=args.data, sparse=args.sparse), seed


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python tests/simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many, each of another seed")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", help="LOW:HIGH, in place of --runs and --first")
    parser.add_argument("--models", default=",".join(MODELS), help="which take turns")
    parser.add_argument("--plan", help="JSON: the same plan for all seeds; see simulated/plan.py")
    parser.add_argument("--standby", action=argparse.BooleanOptionalAction,
                        help="with or without in all runs; default: as drawn")
    parser.add_argument("--shards", action=argparse.BooleanOptionalAction, help="likewise")
    parser.add_argument("--data", action=argparse.BooleanOptionalAction,
                        help="likewise: data that all workers share")
    parser.add_argument("--sparse", action=argparse.BooleanOptionalAction,
                        help="likewise: updates that move a few rows of a table")
    parser.add_argument("--failures", type=int, default=20, help="so many are printed")
    parser.add_argument("--loud", action="store_true", help="print all lines of each run")
    parser.add_argument("--every", type=int, default=5000, help="runs between two reports")
    args = parser.parse_args(arguments)
    models = args.models.split(",")
    tally, told = Tally(), 0
    with scratch() as folder:
        for plan, seed in plans(args, models):
            tally.play(plan, seed, folder, args.loud)
            for failure in tally.failed[told:args.failures]:
                print(f"FAILED seed {seed}: {failure}", flush=True)
            told = len(tally.failed)
            if tally.runs % args.every == 0:
                print(tally, flush=True)
    print(tally, flush=True)
    return int(bool(tally.failed))
