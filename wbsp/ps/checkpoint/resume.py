"""The run that a server serves: the one that `--resume` selects, or a new one.

Several experiments may share a folder, and a user may repeat the command of an earlier run. So a
server resumes a run that has ended only if it is named, and one that was served at another port
only if it is the only one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from absl import flags

from wbsp.process.disk import disk_of
from wbsp.ps.checkpoint.state import check_run
from wbsp.ps.checkpoint.writer import CHECKPOINT
from wbsp.ps.series import BESIDE, Series
from wbsp.runlog.folder import (
    finished_folder,
    is_held,
    numbered_folders,
    read_settings,
    run_folder,
    unfinished_folder,
)

_NAMED = 3  # unfinished runs in one line, at most


class _Resume(flags.ArgumentParser[bool | str]):
    """--resume, --noresume, --resume=run-001"""

    def parse(self, argument: Any) -> bool | str:
        if isinstance(argument, bool):
            return argument
        said = str(argument)
        return {"true": True, "1": True, "false": False, "0": False}.get(said.lower(), said)

    def flag_type(self) -> str:
        return "run"


def resume_flag(for_whom: str = "") -> flags.Flag[Any]:
    """Return the flag --resume, for `flags.DEFINE_flag` in the module that owns it."""
    parser: Any = _Resume()
    return flags.Flag(
        parser, flags.ArgumentSerializer(), "resume", False, "resume from the last checkpoint of "
        "the newest run that was served on this port, unless that has ended; "
        f"--resume=run-001: of that run, ended or not{for_whom}", boolean=True)


class _Past:
    """A run of an earlier server, read from its folder."""

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
        """False if the checkpoint lacks its run's settings.

        A server of an older release left that when it was killed while it took over.
        """
        return self.begun and "id" in self.settings

    @property
    def port(self) -> int | None:
        """Port at which it was served last; None: not known, of an older release."""
        return self.settings.get("port")

    def __str__(self) -> str:
        return self.folder.name + ("" if self.port is None else f" (port {self.port})")


class Runs:
    """The folders of an experiment's runs, for the server on `port`.

    Attributes:
        resume: continue an earlier run, if one can be continued; text: the run of this name.
        current: folder of the run that this process serves, or served last.
        passed_over: a newer folder with a checkpoint and without a run's settings, or None.
        before: run.json of the run that the present one follows, which a server that has ended
            served; None: this is no such run.
        past: series of the run that has ended, and is followed by none: in its place a new one
            begins; None: there is no such run.
    """

    def __init__(self, base_dir: str, log_root: str | Path, port: int, resume: bool | str = False):
        self._base_dir = base_dir
        self._log_root = log_root
        self._port = port
        self._resume = resume
        self._experiment = disk_of(log_root).path(log_root) / base_dir
        self.current: Path | None = None
        self.passed_over: Path | None = None
        self.before: dict[str, Any] | None = None
        self.past: str | None = None

    def new(self) -> Path:
        """Create a folder for a new run."""
        self.current = run_folder(self._base_dir, self._log_root)
        return self.current

    def next(self) -> Runs:
        """Return the folders for a new run that follows one of this process."""
        return Runs(self._base_dir, self._log_root, self._port)

    def forget_unused(self) -> None:
        """Remove the folder of a run that will not begin."""
        if self.current is not None and not (self.current / CHECKPOINT).exists():
            disk_of(self.current).remove(self.current)

    def unfinished(self) -> Path:
        """Create a folder for a run that is taken over; `finished` makes it valid.

        Raises:
            OSError: it cannot be created.
        """
        return unfinished_folder(self._base_dir, self._log_root)

    def finished(self, folder: Path) -> Path:
        """Rename an `unfinished` folder, which has checkpoint and settings, to a run's folder.

        Raises:
            OSError: it cannot be renamed.
        """
        self.current = finished_folder(folder)
        return self.current

    def to_resume(self) -> Path | None:
        """Return the folder of the run to resume; None: none exists, or it has ended.

        Raises:
            ValueError: the choice is ambiguous; one line that names the runs.
        """
        if self.current is None and self._resume:
            self.current = self._meant()
        return self.current

    @property
    def asked(self) -> bool:
        """True if an earlier run is to be continued, if one exists."""
        return bool(self._resume)

    def say_of_others(self, say: Callable[[str], None]) -> None:
        """Print why a new run begins, and which others are not finished."""
        earlier = [run for run in self._past if run.folder != self.current]
        if self.before is not None:
            say(f"{earlier[0].folder.name} has ended, and its workers come again: waiting for "
                "their next fit; start this server without --resume to begin anew")
        elif earlier and self._ended(earlier[0]) and self._resume:
            say(f"{earlier[0].folder.name} has ended: this is a new run; "
                f"--resume={earlier[0].folder.name} continues that one")
        elif self._resume:
            say("no checkpoint found; starting a new run")
        if left := [run for run in earlier if self._unfinished(run)]:
            say(f"not finished: {', '.join(map(str, left[:_NAMED]))}"
                f"{' and others' if len(left) > _NAMED else ''}; to continue one of them, end "
                f"this server and start it with --resume={left[0].folder.name}")

    @property
    def _past(self) -> list[_Past]:
        """Return the earlier runs, the newest first."""
        return [_Past(folder) for folder in reversed(numbered_folders(self._experiment))]

    @cached_property
    def _ended_ids(self) -> set[str]:
        """Return the ids of runs that ended, here or at a standby that took over."""
        beside = self._experiment.with_name(f"{self._experiment.name}{BESIDE}")
        return {run.settings["id"] for experiment in (self._experiment, beside)
                for run in map(_Past, numbered_folders(experiment))
                if run.settings.get("ended") and "id" in run.settings}

    def _ended(self, run: _Past) -> bool:
        return run.settings.get("id") in self._ended_ids

    def _unfinished(self, run: _Past) -> bool:
        """Return whether its server ended in mid-run."""
        return run.begun and not self._ended(run) and not is_held(run.folder)

    def _look_back(self, run: _Past) -> None:
        """Note what an ended run has left."""
        with contextlib.suppress(OSError, ValueError):
            settings = check_run(read_settings(run.folder, with_secret=True), str(run.folder))
            if Series.continues(settings):
                self.before = settings
            else:
                self.past = settings.get("series")

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
        if mine and mine[0].begun:
            self._look_back(mine[0])
            return None
        if mine:  # the newest has no checkpoint: its workers, if any, know its id
            written = next((run for run in mine if "id" in run.settings), None)
            if written is not None and written.begun:  # a server was killed before it wrote its own
                self._look_back(written)
            return mine[0].folder
        left = [run for run in past if self._unfinished(run)]
        if len(left) > 1:
            raise ValueError(f"--resume: none of the runs in {self._experiment} was served on port "
                             f"{self._port}, and several are not finished: "
                             f"{', '.join(map(str, left))}; name one, such as "
                             f"--resume={left[0].folder.name}, or start a new one without --resume")
        if left:
            return left[0].folder
        unused = past and not past[0].begun and not is_held(past[0].folder)
        return past[0].folder if unused else None
