"""What it costs the server to hand out shared data: processor time of an ask, and of a push.

    python -m lab.benchmarks.ledger [--workers 10 1000] [--json FILE]

The object that the server drives, alone. Workers of random speeds ask for work and hand it over, in
random order; one push of fifty is rejected, so that what is free is in pieces. Under `pcc` who asks
is given a range at once; under `bsp` all ask, and are given one when the round's version is
granted: both are in an ask.
"""

from __future__ import annotations

import argparse
import random
import time

from scripts.harness import print_table, spread, write_json
from wbsp.core.messages import SharedData, Work
from wbsp.core.shared_work import SharedWork
from wbsp.limits import Offset
from wbsp.sync import create
from wbsp.sync.base import Push

BATCH = 128
_EXAMPLES = 10**9  # more than all are given
_LATE = 50  # one of so many pushes is rejected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=30, help="asks and pushes of each worker")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    rows = [measure(sync, workers, args.rounds) for sync in ("pcc", "bsp")
            for workers in args.workers]
    print_table(("workers", "model", "an ask, us", "range", "a push, us", "range"), [
        (f"{row['workers']:,}", row["sync"], *(
            cell for part in ("ask_us", "push_us") for cell in (
                f"{row[part]['median']:.1f}",
                f"{row[part]['min']:.1f}-{row[part]['max']:.1f}"))) for row in rows])
    write_json(args.json, {"ledger": rows})


def measure(sync: str, workers: int, rounds: int) -> dict:
    """Microseconds of an ask and of a push, median and range over the rounds."""
    data = SharedData(_EXAMPLES, BATCH, 1)
    model = create(sync)
    work, draw, now = SharedWork(data, model.rule), random.Random(0), 0.0
    waits = model.rule.wait == "model"
    for worker in range(workers):
        work.open(worker, data, 0, None)
        work.granted(worker)
    place = dict.fromkeys(range(workers), Offset(0))  # of each worker in its sequence
    asks, pushes = [], []
    for number in range(rounds):
        order = draw.sample(range(workers), workers)
        begin = time.process_time()
        told = [one for worker in order for one in work.ask(worker, place[worker], False, now)]
        if waits:
            for worker in order:
                work.granted(worker)
            told += work.feed(now)
        asks.append(1e6 * (time.process_time() - begin) / workers)
        for one in told:
            assert isinstance(one.message, Work)
            given = one.message
            place[one.worker] = Offset(place[one.worker] + given.stop - given.start)
        handed = [(Push(worker, number, 0, 1, BATCH, 0.1, to=place[worker]), draw.randrange(_LATE),
                   now + draw.uniform(0.5, 1.5)) for worker in order]
        begin = time.process_time()
        for push, late, then in handed:
            work.pushed(push, late > 0, True, waits, then)
            work.feed(then)
        pushes.append(1e6 * (time.process_time() - begin) / workers)
        now += 1.5
    return {"workers": workers, "sync": sync, "ask_us": spread(asks), "push_us": spread(pushes)}


if __name__ == "__main__":
    main()
