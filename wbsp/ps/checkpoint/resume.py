"""Which run a server goes on with: the one that `--resume` means, or a new one.

Several experiments may share a folder, and somebody types the command of yesterday's run again. So
a run that has come to its end is not gone on with unless it is named, nor one that was served at
another port, unless there is no other.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from absl import flags

from wbsp.process.disk import disk_of
from wbsp.ps.checkpoint.state import check_run
from wbsp.ps.checkpoint.writer import CHECKPOINT
from wbsp.runlog.folder import (
    finished_folder,
    is_held,
    numbered_folders,
    read_settings,
    run_folder,
    unfinished_folder,
)

BESIDE = "-standby"  # ends the name of the folder of a standby's files
_NAMED = 3  # unfinished runs in one line, at most


class _Resume(flags.ArgumentParser):
    """--resume, --noresume, --resume=run-001"""

    def parse(self, argument: Any) -> bool | str:
        if isinstance(argument, bool):
            return argument
        return {"true": True, "1": True, "false": False, "0": False}.get(argument.lower(), argument)

    def flag_type(self) -> str:
        return "run"


def resume_flag(for_whom: str = "") -> flags.Flag:
    """The flag --resume, for `flags.DEFINE_flag` in the module that it is a flag of."""
    parser: Any = _Resume()
    return flags.Flag(
        parser, flags.ArgumentSerializer(), "resume", False, "go on from the last checkpoint of "
        "the newest run that was served on this port, unless that has come to its end; "
        f"--resume=run-001: of that run, whatever it came to{for_whom}", boolean=True)


class _Past:
    """A run of an earlier server, as its folder tells of it."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def settings(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return check_run(read_settings(self.folder), str(self.folder))
        return {}

    @property
    def begun(self) -> bool:
        return (self.folder / CHECKPOINT).exists()

    @property
    def whole(self) -> bool:
        """False also for a checkpoint without its run's settings: what a server of an older release
        left that died while it took over."""
        return self.begun and "id" in self.settings

    @property
    def port(self) -> int | None:
        """On which it was served last; None: not known, of an older release."""
        return self.settings.get("port")

    def __str__(self) -> str:
        return self.folder.name + ("" if self.port is None else f" (port {self.port})")


class Runs:
    """The folders of an experiment's runs, for the server on `port`.

    resume: go on with an earlier run, if there is one to go on with; text: with the one so named
    current: folder of the run that this process serves, or served last
    passed_over: a newer folder, with a checkpoint and no settings of a run; None: there is none
    """

    def __init__(self, base_dir: str, log_root: str | Path, port: int, resume: bool | str = False):
        self._base_dir = base_dir
        self._log_root = log_root
        self._port = port
        self._resume = resume
        self._experiment = disk_of(log_root).path(log_root) / base_dir
        self.current: Path | None = None
        self.passed_over: Path | None = None

    def new(self) -> Path:
        """A new folder, for a new run."""
        self.current = run_folder(self._base_dir, self._log_root)
        return self.current

    def next(self) -> Runs:
        """Of a run that follows one of this process, and begins."""
        return Runs(self._base_dir, self._log_root, self._port)

    def forget_unused(self) -> bool:
        """Remove the folder of a run that has not begun, and will not; True if it is one."""
        if self.current is None or (self.current / CHECKPOINT).exists():
            return False
        shutil.rmtree(self.current, ignore_errors=True)
        return True

    def unfinished(self) -> Path:
        """A folder for a run that is taken over; it counts once it is `finished`. Raises OSError.
        """
        return unfinished_folder(self._base_dir, self._log_root)

    def finished(self, folder: Path) -> Path:
        """The folder of a run from an `unfinished` one that has its checkpoint and its settings.
        Raises OSError."""
        self.current = finished_folder(folder)
        return self.current

    def to_resume(self) -> Path | None:
        """Folder of the run to go on with; None: there is none, or it has come to its end.

        Raises ValueError, in one line that names the runs, where none is meant clearly.
        """
        if self.current is None and self._resume:
            self.current = self._meant()
        return self.current

    @property
    def asked(self) -> bool:
        """Whether to go on with an earlier run, if there is one."""
        return bool(self._resume)

    def say_of_others(self, say: Callable[[str], None]) -> None:
        """Of a run that begins: why it does, and which others are not finished."""
        earlier = [run for run in self._past if run.folder != self.current]
        if earlier and self._ended(earlier[0]) and self._resume:
            say(f"{earlier[0].folder.name} has come to its end: this is a new run; "
                f"--resume={earlier[0].folder.name} continues that one")
        elif self._resume:
            say("no checkpoint found; starting a new run")
        if left := [run for run in earlier if self._unfinished(run)]:
            say(f"not finished: {', '.join(map(str, left[:_NAMED]))}"
                f"{' and others' if len(left) > _NAMED else ''}; to go on with one of them, end "
                f"this server and start it with --resume={left[0].folder.name}")

    @property
    def _past(self) -> list[_Past]:
        """The newest first."""
        return [_Past(folder) for folder in reversed(numbered_folders(self._experiment))]

    @cached_property
    def _ended_ids(self) -> set[str]:
        """Of runs that came to their end, here or at a standby that took over."""
        beside = self._experiment.with_name(f"{self._experiment.name}{BESIDE}")
        return {run.settings["id"] for experiment in (self._experiment, beside)
                for run in map(_Past, numbered_folders(experiment))
                if run.settings.get("ended") and "id" in run.settings}

    def _ended(self, run: _Past) -> bool:
        return run.settings.get("id") in self._ended_ids

    def _unfinished(self, run: _Past) -> bool:
        """Whether its server has died, or was ended, in mid-run."""
        return run.begun and not self._ended(run) and not is_held(run.folder)

    def _meant(self) -> Path | None:
        past = self._past
        if isinstance(self._resume, str):
            found = [run.folder for run in past if run.folder.name == self._resume and run.begun]
            if not found:
                known = ", ".join(str(run) for run in past if run.begun) or "none"
                raise ValueError(f"--resume={self._resume}: {self._experiment} has no such run "
                                 f"with a checkpoint; it has {known}")
            return found[0]
        mine = [run for run in past if run.port in (None, self._port)]
        if any(run.whole for run in mine):
            newest = next(run for run in mine if run.begun)
            self.passed_over = None if newest.whole else newest.folder
            mine = [run for run in mine if run.whole or not run.begun]
        for run in mine:
            if run.begun and not self._ended(run):
                return run.folder
            if run.begun:
                break
        if mine:  # the newest did not come to a checkpoint: its workers, if any, know its id
            return None if mine[0].begun else mine[0].folder
        left = [run for run in past if self._unfinished(run)]
        if len(left) > 1:
            raise ValueError(f"--resume: none of the runs in {self._experiment} was served on port "
                             f"{self._port}, and several are not finished: "
                             f"{', '.join(map(str, left))}; say which, such as "
                             f"--resume={left[0].folder.name}, or begin a new one without --resume")
        if left:
            return left[0].folder
        unused = past and not past[0].begun and not is_held(past[0].folder)
        return past[0].folder if unused else None
