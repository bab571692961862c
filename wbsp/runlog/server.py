"""Files of the server: every event, every evaluation, the loss, and the summary at the end."""

from __future__ import annotations

import math
import os
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from wbsp.core.stats import Member, Report
from wbsp.process.disk import disk_of
from wbsp.runlog.events import outlives
from wbsp.runlog.files import MIB, LineFile, columns, to_json, write_document, write_whole
from wbsp.runlog.straggler import StragglerScore
from wbsp.runlog.summary import summarize, table
from wbsp.runlog.worker import PUBLISHED_NAME
from wbsp.sync.noise import NoiseScale

# Events of a run in which a process or a line has failed; the summary counts them.
FAILURES = frozenset({"resume", "took_over", "alone", "reattach", "resent", "lost",
                      "shard_lost"})
_FREQUENT = frozenset({"accept", "commit"})
_EACH = frozenset({"accept", "reject", "commit", "norm", "duplicate"})  # several a second
MOST = 128 * MIB  # bytes of a real run's events with each push and version; then sums follow
_TALLY = 60.0  # seconds between two of these
_UNWRITTEN = 1000  # events of these kinds, at most
_FRAMES = 20  # of a traceback, in an event
_NOISE = "the meter of the noise scale"

T = TypeVar("T")


class ServerLog:
    """Writer of the server's files in a run's `folder`; times are seconds since the run's start.

    Used by the thread that owns the engine. No run depends on these files, and none ends by them:
    of what fails, such as a meter or a curve, one line is printed, and the rest continues.

    Args:
        append: continue the files of a resumed run.
        virtual: leave out the date, so that equal runs give equal files.
        say: called with one line when a file cannot be written.
        published: give the text file the published code's name, under every model.
        most: bytes of events after which single pushes and versions are no longer written.

    Raises:
        FileExistsError: files exist, without `append`.
    """

    def __init__(self, folder: str | os.PathLike[str], sync: str, tensorboard: bool = True,
                 append: bool = False, virtual: bool = False, say: Callable[[str], None] = print,
                 published: bool = False, most: float = math.inf):
        self.folder, self.sync, self._say = disk_of(folder).path(folder), sync, say
        self._events = LineFile(self.folder / "events.jsonl", append, say)
        named = PUBLISHED_NAME if published else sync
        self._evaluations = LineFile(self.folder / f"ps_global_loss_{named}.txt", append, say)
        self._scalars = None
        if tensorboard:
            from wbsp.runlog.tensorboard import Scalars
            self._scalars = Scalars(self.folder, virtual, say)
        self._stragglers = StragglerScore()
        self._recent, self._whole = Staleness(), Staleness()
        self._noise, self._sgd = NoiseScale(), True  # all workers' updates are sums of gradients
        self._most = most
        self._tally_due: float | None = None  # None: all pushes and versions are written
        self._unwritten = deque[tuple[float, str, dict[str, Any]]]()  # events
        self._periodic = False  # `training` measures speeds, and evaluations do not
        self.failures: Counter[str] = Counter()  # events of the kinds that `FAILURES` names
        self._given_up: set[str] = set()  # what has failed; each is printed once
        self._newest = 0.0  # time of the newest event

    def attempt(self, what: str, act: Callable[..., T], *args: Any) -> T | None:
        """Return what `act` returns; if it raises, continue without it, and print that once.

        Args:
            what: what is missing then, as the subject of a line.
        """
        try:
            return act(*args)
        except Exception as error:
            self._give_up(what, error)
            return None

    def _give_up(self, what: str, error: Exception) -> None:
        if what in self._given_up:
            return
        self._given_up.add(what)
        self._say(f"{what} failed: {error!r}; continuing without it; this is a bug of wbsp, please "
                  "report it (events.jsonl has the traceback)")
        self._events.write(self._newest, to_json({
            "t": self._newest, "kind": "error",
            "traceback": traceback.format_exception(error)[-_FRAMES:]}) + b"\n")

    def event(self, t: float, kind: str, /, **fields: Any) -> None:
        """Write one event; has the signature of the engine's `log`.

        Pushes and versions are written with the next other event, or by `settle`, because a server
        answers a push first.
        """
        self._newest = t
        self._unwritten.append((t, kind, fields))
        if kind not in _FREQUENT or len(self._unwritten) >= _UNWRITTEN:
            self.settle()

    def settle(self) -> None:
        """Write the events that are not written yet."""
        while self._unwritten:
            t, kind, fields = self._unwritten.popleft()
            try:  # three `attempt`s, for each push of a run: calls cost time
                self._write(t, kind, fields)
            except Exception as error:
                self._give_up(f"writing events of kind {kind}", error)
            try:
                self._count(kind, fields)
            except Exception as error:
                self._give_up("counting staleness", error)
            if _NOISE not in self._given_up:
                try:
                    self._measure(kind, fields)
                except Exception as error:
                    self._give_up(_NOISE, error)

    def _write(self, t: float, kind: str, fields: dict[str, Any]) -> None:
        if kind not in _EACH or not self._full(t):
            self._events.write(t, to_json({"t": t, "kind": kind, **fields}) + b"\n")
        if kind == "start":
            self._events.flush()  # readers count from here, also if this process is killed

    def _count(self, kind: str, fields: dict[str, Any]) -> None:
        if kind in FAILURES:
            self.failures[kind] += 1
        elif kind == "accept":
            behind = fields["version"] - fields["base"]
            self._recent.add(behind)
            self._whole.add(behind)

    def _measure(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "join":
            self._sgd = self._sgd and "sgd" in fields
        elif kind == "commit":
            self._noise.committed(fields["version"], fields.get("merged", 0))
        elif kind == "accept" and "norm2" in fields:
            self._noise.push(fields["weight"], fields["steps"], fields["samples"], fields["norm2"],
                             fields["version"] - fields["base"])
        if kind in ("commit", "norm") and "norm2" in fields:
            self._noise.measured(fields["version"], fields["norm2"])

    def _full(self, t: float) -> bool:
        """Return whether the events have reached their limit."""
        if self._tally_due is None and self._events.size >= self._most:
            self._tally_due = t
            self._say(f"{self._events.path} has reached {self._most / MIB:,.0f} MiB: from here on "
                      "it has the sums of each worker's pushes, and no longer each push and "
                      "version")
        return self._tally_due is not None

    def tally(self, t: float, version: int, members: Mapping[int, Member]) -> None:
        """Log what pushes and versions add up to, if they are no longer written and it is due."""
        if self._tally_due is None or t < self._tally_due:
            return
        self._tally_due = t + _TALLY
        self.event(t, "tally", version=version, staleness=self.staleness, workers={
            worker: {"steps": member.steps, "samples": member.samples, "seconds": member.seconds,
                     "pushes": member.pushes, "rejected": dict(member.rejected)}
            for worker, member in members.items()})

    @property
    def noise(self) -> dict[str, float] | None:
        """Return the noise scale in examples, the examples of a step, the part of the work that
        counts, and how many times as much it would count in steps of half the size; or None.
        """
        self.settle()
        return None if _NOISE in self._given_up else self.attempt(_NOISE, self._scale)

    def _scale(self) -> dict[str, float] | None:
        scale, part = self._noise.scale, self._noise.efficiency
        if not self._sgd or scale is None or part is None:
            return None
        batch = self._noise.batch
        found = {"scale": scale, "batch": batch, "efficiency": part,
                 "half": self._noise.gain(batch / 2)}
        return {name: float(f"{value:.4g}") for name, value in found.items()}

    def flush(self) -> None:
        """Hand all events to the operating system, so that a kill of this process loses none."""
        self.settle()
        self._events.flush()

    def resume(self, t: float, version: int, staleness: Mapping[str, int],
               failures: Mapping[str, int] | None = None) -> None:
        """Resume the files from the checkpoint of `version`.

        Later evaluations are cut off; later events stay, and readers leave them out.

        Args:
            t: seconds at which the checkpoint was made.
            version: of the checkpoint.
            staleness: in the checkpoint.
            failures: in the checkpoint.
        """
        newest = float(format(t, ".9g"))  # as `columns` writes it
        self._evaluations.cut(
            lambda line: outlives(float(line.partition(b",")[0]), newest))
        self._whole = Staleness(**staleness)
        self.failures = Counter(failures)
        self.event(t, "resume", version=version)

    @property
    def staleness(self) -> dict[str, int]:
        """Return the staleness of all accepted pushes, in the form that `resume` takes."""
        self.settle()
        return asdict(self._whole)

    def evaluation(self, t: float, version: int, loss: float | None, accuracy: float | None,
                   top5: float | None, members: Mapping[int, Member],
                   reports: Mapping[int, Report],
                   others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Log loss, accuracies (0..1) and other metrics of `version`, a snapshot at `t`, on the
        test set.

        ps_global_loss, if the three are known: time, step of the slowest worker, sum of the worker
        steps, loss, top-1 error, top-5 error, and sums over the workers: seconds of the last push,
        its MiB, seconds of the last pull, its MiB.
        """
        if loss is not None and accuracy is not None and top5 is not None:
            self.attempt("writing ps_global_loss", self._write_evaluation, t, loss, accuracy, top5,
                         members, reports)
        named = {"loss": loss, "accuracy": accuracy, "top5": top5}
        known = {name: value for name, value in named.items() if value is not None}
        known |= others
        steps = self._log_evaluation(t, version, named, members, known if others else None)
        measured = {} if self._periodic else self._measured(version, members, reports)
        self._draw(t, steps, {
            f"evaluation/{'top5_accuracy' if name == 'top5' else name}": value
            for name, value in known.items()} | measured)

    def _write_evaluation(self, t: float, loss: float, accuracy: float, top5: float,
                          members: Mapping[int, Member], reports: Mapping[int, Report]) -> None:
        steps = sum(member.steps for member in members.values())
        slowest = min((member.steps for member in _present(members).values()), default=0)
        last = reports.values()
        self._evaluations.write(t, columns(
            t, slowest, steps, loss, 1 - accuracy, 1 - top5,
            sum(r.last_push_seconds for r in last), sum(r.push_bytes for r in last) / MIB,
            sum(r.last_pull_seconds for r in last), sum(r.pull_bytes for r in last) / MIB))
        self._evaluations.flush()

    def evaluated(self, t: float, version: int, metrics: Mapping[str, float],
                  members: Mapping[int, Member]) -> None:
        """Log a reader's metrics of `version`, which it received at `t`."""
        named = {name: metrics.get(name) for name in ("loss", "accuracy", "top5")}
        steps = self._log_evaluation(t, version, named, members, metrics)
        if metrics:
            self._draw(t, steps, {f"evaluation/{name}": value for name, value in metrics.items()})

    def _log_evaluation(self, t: float, version: int, named: Mapping[str, float | None],
                        members: Mapping[int, Member], metrics: Mapping[str, float] | None) -> int:
        """Write the event; return the steps of all workers. `metrics`: all, if others than those
        that every event names were measured."""
        steps = sum(member.steps for member in members.values())
        self.event(t, "evaluation", version=version, steps=steps, **named,
                   **({} if metrics is None else {"metrics": dict(metrics)}),
                   **self._known_noise())
        self._events.flush()
        return steps

    def training(self, t: float, version: int, loss: float, samples: int,
                 members: Mapping[int, Member], reports: Mapping[int, Report]) -> None:
        """Log the mean training loss of `samples` since the last call; `version`: newest at `t`."""
        self._periodic = True
        steps = sum(member.steps for member in members.values())
        self.event(t, "training", version=version, steps=steps, loss=loss, samples=samples,
                   **self._known_noise())
        self._draw(t, steps, {"training/loss": loss, **self._measured(version, members, reports)})

    def _draw(self, t: float, steps: int, points: dict[str, float]) -> None:
        """Add a point to each of TensorBoard's curves."""
        if self._scalars:
            self.attempt("writing TensorBoard's curves", self._scalars.write, t, steps, points)

    def _known_noise(self) -> dict[str, Any]:
        noise = self.noise
        return {} if noise is None else {"noise": noise}

    def _measured(self, version: int, members: Mapping[int, Member],
                  reports: Mapping[int, Report]) -> dict[str, float]:
        """Return points for TensorBoard's curves, measured since the last call."""
        self.settle()
        scalars: dict[str, float] = {"version": version}
        if self._recent.pushes:
            scalars |= {"staleness/mean": self._recent.mean, "staleness/max": self._recent.max}
        self._recent = Staleness()
        if (noise := self.noise) is not None:
            scalars["noise/scale"] = noise["scale"]
        return scalars | (self.attempt("the meter of speeds", self._speeds, members, reports) or {})

    def _speeds(self, members: Mapping[int, Member],
                reports: Mapping[int, Report]) -> dict[str, float]:
        speeds = {f"compute_share/worker_{worker}": report.share("compute")
                  for worker, report in reports.items()}
        for worker, score in self._stragglers.update(_present(members)).items():
            speeds |= {f"speed/worker_{worker}": score.speed,
                       f"speed_vs_best/worker_{worker}": score.vs_best,
                       f"speed_vs_own_best/worker_{worker}": score.vs_own_best}
        return speeds

    def summary(self, t: float, members: Mapping[int, Member], reports: Mapping[int, Report],
                version: int, accuracy: float | None, reason: str,
                missing: Mapping[int, str] | None = None) -> str:
        """Write summary.json and summary.txt.

        Args:
            t: seconds that the run took.
            members: totals of the workers.
            reports: the workers' own totals.
            version: of the final model.
            accuracy: of the final model, 0..1, if known.
            reason: why the run stopped.
            missing: workers that have not finished -> why.

        Returns:
            The text, several lines.
        """
        self.settle()
        if self._tally_due is not None:
            self._tally_due = t
            self.tally(t, version, members)
        numbers = {"sync": self.sync, **summarize(t, members, reports, version, accuracy, reason,
                                                  self._stragglers),
                   "staleness": {"mean": self._whole.mean, "max": self._whole.max,
                                 "pushes": self._whole.pushes},
                   "noise": self.noise,
                   "failures": dict(self.failures), "missing": dict(missing or {})}
        text = table(self.sync, numbers)
        try:
            write_document(self.folder / "summary.json", numbers)
            write_whole(self.folder / "summary.txt", text.encode())
        except OSError as error:
            self._say(f"cannot write the summary into {self.folder}: {error.strerror}")
        return text

    def close(self) -> None:
        self.settle()
        self._events.close()
        self._evaluations.close()
        if self._scalars:
            self._scalars.close()


def _present(members: Mapping[int, Member]) -> Mapping[int, Member]:
    """Return the members that are present or have finished, or all if that is no member."""
    return {w: m for w, m in members.items() if m.active or m.finished} or members


@dataclass
class Staleness:
    """Staleness of accepted pushes: versions between a push's base and its acceptance."""

    pushes: int = 0
    sum: int = 0  # versions, over all pushes
    max: int = 0  # versions

    def add(self, versions: int) -> None:
        self.pushes += 1
        self.sum += versions
        self.max = max(self.max, versions)

    @property
    def mean(self) -> float:
        return self.sum / self.pushes if self.pushes else 0.0
