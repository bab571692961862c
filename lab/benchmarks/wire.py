"""One push and one pull: wbsp beside its peers and a copy in memory.

    python -m lab.benchmarks.wire [--quick] [--json FILE]

A real server process and worker processes on this machine. wbsp runs asp, under which every push
is committed and granted at once; its workers do everything that Keras workers do except computing.
It is measured over shared memory, as it is within a machine, and over TCP. Each peer is measured
with these two in turn, block by block, and compared within each turn. With more workers than
processor cores the figures are those of a busy machine.

ps-lite and PyTorch get Pythons of their own in ~/.cache/wbsp, which the first run makes by pip.
WBSP_TORCH: another PyTorch, as arguments of pip. What cannot be installed, or would not fit into
memory, is left out and said so.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import psutil

from lab.benchmarks.contenders import gloo, memcpy, pslite, tensorflow
from lab.benchmarks.contenders.environment import Missing
from lab.benchmarks.contenders.team import Team, start_team
from lab.benchmarks.contenders.worker import wbsp_worker
from scripts.harness import in_words, print_table, ratios, server, spread, write_json

SIZES = (148_298, 25_500_000, 138_250_000)  # floats: the CIFAR-10 CNN, ResNet50 and VGG16


@dataclass(frozen=True)
class Contender:
    """Something that is measured, and what it has in memory at most."""

    start: Callable[[int, int], AbstractContextManager[Team]]  # (workers, floats of the model)
    each: float  # vectors of the model's size for each worker
    beside: float  # vectors beside these
    process: float  # megabytes of a process without vectors
    least: int = 1  # workers

    def megabytes(self, workers: int, size: int) -> float:
        """For so many workers and their server, as measured and rounded up."""
        vectors = self.each * workers + self.beside
        return vectors * 4 * size / 1e6 + (workers + 1) * self.process


def _wbsp(transport: str) -> Callable[[int, int], AbstractContextManager[Team]]:
    @contextmanager
    def start(workers: int, size: int) -> Iterator[Team]:
        """Yield a server under asp and its workers, which check at the end what they hold."""
        with server("asp", workers, f"--transport={transport}") as address, \
                start_team(wbsp_worker, [(address, worker, workers, size)
                                         for worker in range(workers)]) as started:
            yield started
            started.finish()

    return start


OURS = {"shared": Contender(_wbsp("auto"), 6, 4, 35), "tcp": Contender(_wbsp("tcp"), 6, 2, 35)}
PEERS = {
    "tensorflow": Contender(tensorflow.clients, 5, 0, 450),
    "coordinator": Contender(tensorflow.coordinator, 7, 1, 600),
    "ps-lite": Contender(pslite.kvstore, 4, 2, 100),
    "gloo": Contender(gloo.all_reduce, 1, 1, 200, least=2),
    "memcpy": Contender(memcpy.copies, 3, 0, 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="floats in the model")
    parser.add_argument("--workers", type=int, nargs="+", default=(1, 2, 4, 8))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--turns", type=int, default=7, help="blocks of each contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block, at least one trip")
    parser.add_argument("--quick", action="store_true",
                        help="0.6 and 102 MB, 1 and 2 workers, 3 short turns")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if args.quick:
        args.sizes, args.workers, args.turns, args.seconds = SIZES[:2], (1, 2), 3, 0.2
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # memory of the host, on all sides
    figures = measure(args.sizes, args.workers, args.peers, args.turns, args.seconds)
    write_json(args.json, {"wire": figures})
    if failed := sum(len(row["failed"]) for row in figures):
        sys.exit(f"lab.benchmarks.wire: not all was measured, {failed} failed; see above why")


def measure(sizes: Sequence[int], workers: Sequence[int], peers: list[str], turns: int,
            seconds: float) -> list[dict]:
    """Measure all combinations of `sizes` and `workers`, print a table, return its rows."""
    rows = []
    for size, n in itertools.product(sizes, workers):
        print(f"measures {4e-6 * size:.1f} MB with workers: {n}", file=sys.stderr)
        rows.append(_compare(size, n, peers, turns, seconds))
    print_table(
        ("model MB", "workers", "contender", "ms", *(f"{one} / it" for one in OURS)),
        [(f"{row['bytes'] / 1e6:.1f}", str(row["workers"]), name, f"{row[name]['ms']:,.2f}",
          *(in_words(row[f"{one}/{name}"]) if f"{one}/{name}" in row else "-" for one in OURS))
         for row in rows for name in (*OURS, *peers) if name in row])
    print("ms: a push and a pull of one worker (gloo: an all-reduce), median; ratios of times: "
          "median (range)\nover the turns in which both were measured, below 1 wbsp is faster")
    for row in rows:
        for how in ("left out", "failed"):
            for name, why in row[how.replace(" ", "_")].items():
                print(f"{how}: {name}, {row['bytes'] / 1e6:.1f} MB, workers {row['workers']}: "
                      f"{why}")
    print(f"load of this machine: {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    return rows


def _compare(size: int, workers: int, peers: list[str], turns: int, seconds: float) -> dict:
    """Return the figures of one size of model (floats) and number of workers."""
    row: dict = {"floats": size, "bytes": 4 * size, "workers": workers, "left_out": {},
                 "failed": {}}
    times: dict[str, list[float]] = {}
    pairs: list[tuple[float, float]] = []
    for peer in peers:
        try:
            for together in _fitting(peer, size, workers):
                found = _turns(together, size, workers, turns, seconds)
                for name, seen in found.items():
                    times.setdefault(name, []).extend(seen)
                    if name in OURS:
                        row[f"{name}/{peer}"] = ratios(seen, found[peer])
                if all(name in found for name in OURS):
                    pairs += zip(found["shared"], found["tcp"], strict=True)
        except Missing as reason:
            row["left_out"][peer] = str(reason)
        except RuntimeError as error:  # what else was measured, for hours perhaps, still counts
            row["failed"][peer] = str(error)
    if pairs:
        row["shared/tcp"] = ratios(*zip(*pairs, strict=True))
    for name, seen in times.items():
        ms = spread([1e3 * one for one in seen])
        row[name] = {"ms": ms["median"], "ms_min": ms["min"], "ms_max": ms["max"],
                     "mb_per_s": workers * 2 * 4 * size / 1e3 / ms["median"]}
    return row


def _fitting(peer: str, size: int, workers: int) -> list[dict[str, Contender]]:
    """What is measured in turn: the peer and all of ours, or each of ours where memory is short.

    Raises Missing where not even that fits.
    """
    if workers < PEERS[peer].least:
        raise Missing(f"it does nothing with fewer than {PEERS[peer].least} workers")
    free = 0.95 * psutil.virtual_memory().available / 1e6
    choices = [OURS], [{name: one} for name, one in OURS.items()]
    for choice in choices:
        needed = max(sum(contender.megabytes(workers, size) for contender in
                         (*ours.values(), PEERS[peer])) for ours in choice)
        if needed <= free:
            return [{**ours, peer: PEERS[peer]} for ours in choice]
    raise Missing(f"beside wbsp it would take {needed / 1e3:.1f} GB, {free / 1e3:.1f} may be used")


def _turns(contenders: dict[str, Contender], size: int, workers: int, turns: int,
           seconds: float) -> dict[str, list[float]]:
    """Seconds of a round trip of each in each turn; the first, which warms up, left out."""
    medians: dict[str, list[float]] = {name: [] for name in contenders}
    with ExitStack() as stack:
        teams = {name: stack.enter_context(one.start(workers, size))
                 for name, one in reversed(contenders.items())}  # the peer first: it may be missing
        for turn in range(turns + 1):
            for name in contenders:
                trips = teams[name].block(seconds)
                if turn:
                    medians[name].append(statistics.median(trips))
    return medians


if __name__ == "__main__":
    main()
