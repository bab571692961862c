"""The runs that one server serves, one after the other: one for each `fit` of its workers.

A worker whose process continues reports that when it has a run's final version, and introduces
itself for the next run at once, long before its next `fit` needs it. So the server knows which
workers may join, and ends when all their processes have ended.

The series is a state. run.json holds it before the server reports an end to anyone, and with each
later change. A server that resumes, or a standby that takes over, continues from it:

- A run whose checkpoint has no final version is trained further.
- A run has ended, but some workers lack the final version: they may still fetch it. A worker that
  joins for the next fit has it, as its `key_of_process` proves; a process without that proof
  replaces one that has ended.
- A run has ended, and workers will call `fit` again (`living`): the next run begins, with the next
  number. Each process reports the number of its fit. A process that is behind receives the final
  version of an ended run in place of training (`passes`). A process of another series is refused,
  so that no two fits are mixed.

A server and its standby compute the same id for the next run, and each may begin that run where the
other has ended. So the epochs of a series never start again:

- A process that continues from its own run.json, or from the run that it has just ended, takes the
  epoch after the next (`SERVER_STEP`). A process that continues from the other's state takes the
  next one (`STANDBY_STEP`). So one has the odd epochs of the series, and the other the even ones.
- A process takes only epochs above all that it had, and above all that it knows of the other.
- The epoch is in run.json, on the disk, before a worker is welcomed.
- A server refuses a standby that has a state of its own of the server's epoch
  (`wbsp.ps.replication.primary`), because one of their folders is then a copy of the other.

So no epoch of a run is served twice, in whichever order the two die, return and take over. The
later start has the higher epoch, unless neither knew of the other.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from wbsp.runlog.awaited import named
from wbsp.runlog.folder import SECRET, numbered_folders, read_settings
from wbsp.wire.proof import mac

_MOST = 1000  # processes without an index
BESIDE = "-standby"  # ends the name of the folder of a standby's files
STANDBY_STEP, SERVER_STEP = 1, 2  # epochs added to those of the other's state, of one's own state


@dataclass
class Series:
    """The series of a server's runs, and the processes of its workers.

    Attributes:
        single: the server serves one run only.
        id: of the first run, which identifies the series.
        past: id of the ended series of one run in whose place `--resume` begins this one.
        fit: number of the run that is served, or waited for, from 1 on.
        epoch: the newest of this process, or that it knows of the other one; 0: none.
        followed: this process has served a run of the series before.
        living: workers whose processes continue, or may -> the process's own number, as in
            `messages.Hello`, or nothing if it is not known.
        gone: workers whose processes have ended in good order between two runs.
        have: workers whose processes have the final version of the present run.
        nameless: marks of processes without an index that wait for the next run; none while one is
            served.
        chosen: index that the server has chosen for a process -> mark of that process, by which a
            later server of the run knows whose the index is.
        outrun: a worker has ended the run that this server waits for: another server had it.
        readers: processes that have read versions of the run before.
        standby: the run before had a standby at its end.
        other: address of a process that may have begun the present run; None: none may.
        secret: of all its runs, with which a process of one run proves itself in the next.
        folders: known folders of the runs so far, by their numbers.
        saved: the newest entries of run.json that were written.
    """

    single: bool = False
    id: str | None = None
    past: str | None = None
    fit: int = 1
    epoch: int = 0
    followed: bool = False
    living: dict[int, bytes] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    have: set[int] = field(default_factory=set)
    nameless: set[str] = field(default_factory=set)
    chosen: dict[int, str] = field(default_factory=dict)
    outrun: bool = False
    readers: int = 0
    standby: bool = False
    other: str | None = None
    secret: str = ""
    folders: dict[int, Path] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """Return whether another run may follow one that has ended well."""
        return bool(self.living or self.nameless)

    @property
    def later(self) -> bool:
        """Return whether the present run follows another one."""
        return self.followed or self.fit > 1

    @property
    def awaited(self) -> str:
        """Return, in words, the processes that will call `fit` again."""
        count = len(self.nameless)
        some = f"{count} {'process' if count == 1 else 'processes'} without an index"
        return " and ".join([*([named(self.living)] if self.living else []),
                             *([some] if count else [])])

    # The state in run.json.

    def note(self) -> dict[str, Any]:
        """Return the entries of run.json that change while a run is served, or at its end."""
        chosen = {"chosen": {str(index): mark for index, mark in sorted(self.chosen.items())}}
        return chosen | ({} if self.single else {
            "living": sorted(self.living), "gone": sorted(self.gone), "have": sorted(self.have),
            "nameless": sorted(self.nameless)})

    @property
    def unsaved(self) -> bool:
        """Return whether run.json is older than this state."""
        return self.note() != self.saved

    def save(self, write: Callable[..., Any], **others: Any) -> None:
        """Write this state, and `others`, to run.json by write(**entries). Raises OSError."""
        note = self.note()
        write(**others, **note)
        self.saved = note

    def find(self, run: dict[str, Any], ended: dict[str, Any] | None, past: str | None) -> None:
        """Continue from the files of an earlier process.

        Args:
            run: run.json of the run that is resumed; empty: no run is.
            ended: run.json of the ended run that another one follows, or None.
            past: as in the class.
        """
        if run:
            self.restore(run)
        elif ended is not None:
            self.succeed(ended)
        elif self.single:
            self.past = past

    def restore(self, run: dict[str, Any], taken_over: bool = False) -> None:
        """Continue from the run.json of a run that has begun, or that workers wait for.

        `taken_over`: this process was the standby that the run.json names.
        """
        self.id, self.fit = run.get("series") or run.get("id"), run.get("fit", 1)
        self.secret = run.get(SECRET, "")
        self.other = None if taken_over else run.get("standby") or run.get("beside")
        self.past = run.get("past")
        known = run.get("living", range(run.get("workers", 0)) if self.fit > 1 else ())
        self.living = dict.fromkeys(known, b"")  # earlier releases wrote none
        self.gone, self.have = set(run.get("gone", ())), set(run.get("have", ()))
        self.chosen = {int(index): mark for index, mark in run.get("chosen", {}).items()}
        self.nameless = set(run.get("nameless", ()))

    @staticmethod
    def continues(run: dict[str, Any]) -> bool:
        """Return whether another run follows the one with this run.json, which has ended."""
        return bool(run.get("ended") and awaits(run) and run.get("series"))

    def exceeds(self, epoch: int) -> None:
        """Take only epochs above this one from here on; it may be of either process."""
        self.epoch = max(self.epoch, epoch)

    def next_epoch(self, epoch: int, step: int) -> int:
        """Return the epoch in which this process begins a run, or continues it.

        Args:
            epoch: epoch of the state that it continues from; 0: no state.
            step: STANDBY_STEP for the other process's state, SERVER_STEP for its own.
        """
        own = epoch + step if epoch else 1
        behind = max(0, self.epoch - own + SERVER_STEP)  # 0, or 1: it is above all earlier ones
        return own + behind // SERVER_STEP * SERVER_STEP

    def succeed(self, run: dict[str, Any]) -> None:
        """Expect the run that follows the one with this run.json, which another process served."""
        self.restore(run)
        self.fit += 1
        self.have.clear()

    def follow(self) -> None:
        """Expect another run, behind one that this process has served."""
        self.fit += 1
        self.followed = True
        self.have.clear()

    def ended(self, readers: int, standby: bool, other: str | None, epoch: int) -> None:
        """Note how a run has ended, for the next one; arguments as in the class, and its epoch."""
        self.readers, self.standby, self.other = readers, standby, other
        self.exceeds(epoch)

    def forget(self) -> None:
        """Expect no other run of this process."""
        self.living.clear()
        self.nameless.clear()

    def begin(self, before: dict[str, Any], run: str, folder: Path,
              secret: Callable[[], str]) -> dict[str, Any]:
        """Begin or resume a run; return the entries of run.json on the series.

        Args:
            before: the entries so far.
            run: the run's id.
            folder: the run's folder.
            secret: returns a new one, for a series that has none.
        """
        self.secret = before.get(SECRET) or self.secret or secret()
        self.id = before.get("series") or self.id or run
        self.fit = before.get("fit", self.fit)
        self.outrun = False
        self.folders[self.fit] = folder
        experiment = folder.parent.name.removesuffix(BESIDE)
        places = [folder.parent.with_name(name) for name in (experiment, experiment + BESIDE)]
        for path in chain(*map(numbered_folders, places)) if len(self.folders) < self.fit else ():
            with contextlib.suppress(OSError, ValueError):
                settings = read_settings(path)
                fit = settings.get("fit")  # of another user's making, perhaps
                if settings.get("series") == self.id and settings.get("ended") and (
                        isinstance(fit, int)):
                    self.folders.setdefault(fit, path)
        self.saved = self.note()
        past = {} if self.past is None else {"past": self.past}
        return {"series": self.id, "fit": self.fit, **past, **self.saved, SECRET: self.secret}

    def begun(self) -> None:
        """Note that the run has its first version, so no process waits for it any more."""
        self.nameless.clear()

    def reopen(self) -> None:
        """Note that a run which had ended is trained on, so no process has its final version."""
        self.have.clear()

    def had(self, run: str, fit: int) -> bool:
        """Return whether the run with this id is an earlier one of the series, with this number."""
        return 1 <= fit < self.fit and run == (self.id if fit == 1 else run_id(self.secret, fit))

    def is_in(self, folder: Path, fit: int | None = None) -> None:
        """Note the folder of the run with this number; None: of the present run."""
        self.folders[self.fit if fit is None else fit] = folder

    # Processes.

    def due(self, series: str, fit: int, anew: bool = False, begun: bool = True) -> int:
        """Return the number of the run that a process's `fit` belongs to.

        Args:
            series: of the run that the process was in last; empty: it was in none.
            fit: number of its `fit` in that series; 0: it is not known.
            anew: that series has ended for the process.
            begun: the present run has begun.

        Raises:
            ValueError: it belongs to no run of this series; one line without the process's name.
        """
        if not fit:
            return self.fit
        if series != self.id:
            if fit > 1 and not anew:
                raise ValueError(
                    f"begins fit {fit} of another series of fits, and this server serves fit "
                    f"{self.fit} of a series that the worker does not know: start this server "
                    "with --resume to continue the worker's series, or start the worker again")
            if fit > 1 and series == self.past:
                raise ValueError(
                    f"begins fit {fit} of a series whose only run has ended (--one_run): start "
                    "this server without --resume, and without --one_run if more fits follow")
            fit = 1
        if fit > self.fit + begun:
            raise ValueError(f"begins fit {fit}, and this server has not served fit {self.fit} to "
                             "its end: what it holds is older than the worker")
        if fit < self.fit and fit not in self.folders:
            raise ValueError(f"begins with fit {fit}, which has ended, and the folder with its "
                             "final version is not here: put it beside those of the later fits")
        return fit

    def lives(self, worker: int, own: bytes = b"", proven: bool = False) -> None:
        """Note that a worker's session has ended, and that its process continues or may.

        Args:
            worker: index of the worker.
            own: number of its process.
            proven: it is the worker's process; otherwise it may be another one.
        """
        if self.single:
            return
        if proven or worker not in self.living:
            self.living[worker] = own
        self.gone.discard(worker)

    def departs(self, worker: int, own: bytes, proven: bool) -> None:
        """Note a process's message that it ends, or joins no other run; arguments as in `lives`.

        If the worker is expected in the next run, only its own process may send this message.
        """
        if proven or worker not in self.living or (own and self.living[worker] == own):
            self.living.pop(worker, None)
            self.gone.add(worker)

    def lost(self, workers: int) -> set[int]:
        """Return the indices below `workers` without a process that has ended in good order, or is
        known to continue."""
        return set(range(workers)).difference(self.gone, self.living)

    def replaced(self, workers: Iterable[int]) -> None:
        """Note that processes without an index replace those of these workers."""
        for worker in workers:
            self.living.pop(worker, None)

    def comes(self, worker: int | None, own: bytes, proven: bool) -> None:
        """Note a process that waits for the next run; `worker`: its index, if it has one."""
        if worker is not None:
            self.lives(worker, own, proven)
        elif not self.single and len(self.nameless) < _MOST:
            self.nameless.add(self._mark(own))

    def is_named(self, own: bytes) -> None:
        """Note that this process has an index."""
        self.nameless.discard(self._mark(own))

    def is_outrun(self, worker: int, own: bytes, leaves: bool) -> None:
        """Note that a worker's process has ended the run that this server waits for.

        `leaves`: it comes to no other run.
        """
        self.outrun = True
        if leaves:
            self.departs(worker, own, True)

    def chooses(self, worker: int, own: bytes, write: Callable[..., Any]) -> bool:
        """Note that the server has chosen this index for a process with its own number.

        `write`: as in `save`. Return True if the index was not chosen before.

        Raises:
            OSError: the disk cannot store it; the index is not chosen then.
        """
        before, mark = self.chosen, self._mark(own)
        chosen = {index: one for index, one in before.items() if one != mark} | {worker: mark}
        if chosen == before:
            return False
        self.chosen = chosen
        try:
            self.save(write)
        except OSError:
            self.chosen = before
            raise
        return True

    def index_of(self, own: bytes) -> int | None:
        """Return the index that was chosen for this process; None: none was."""
        mark = self._mark(own) if own else None
        return next((index for index, one in self.chosen.items() if one == mark), None)

    def of_another(self, own: bytes) -> set[int]:
        """Return the indices that were chosen for other processes than this one."""
        mark = self._mark(own)
        return {index for index, one in self.chosen.items() if one != mark}

    def _mark(self, own: bytes) -> str:
        return mac(bytes.fromhex(self.secret), "own", own).hex()[:16]

    def has_final(self, worker: int) -> None:
        """Note that a worker's process has the final version of the present run."""
        self.have.add(worker)


@functools.lru_cache(2)  # a standby requests the same one repeatedly
def run_id(secret: str, fit: int) -> str:
    """Return the id of the run with this number in a series, which is not its first.

    A server and its standby compute the same id, without a message.
    """
    return mac(bytes.fromhex(secret), "run", fit).hex()[:8]


def awaits(run: dict[str, Any]) -> int:
    """Return how many processes will call `fit` again after the run with this run.json."""
    return len(run.get("living", ())) + len(run.get("nameless", ()))


def next_run(run: dict[str, Any]) -> dict[str, Any] | None:
    """Return the known part of the run.json of the run that follows the ended one of `run`.

    Its epoch is the one that the server of `run` takes there if its process continues. None: no
    worker calls `fit` again.
    """
    if not awaits(run) or not {"series", "fit", SECRET} <= run.keys():
        return None
    fit = run["fit"] + 1
    return {"id": run_id(run[SECRET], fit), "series": run["series"], "fit": fit,
            "epoch": run["epoch"] + SERVER_STEP, SECRET: run[SECRET], "workers": run["workers"],
            "living": run["living"], "gone": run.get("gone", []), "chosen": run.get("chosen", {}),
            "nameless": run.get("nameless", [])}
