"""Folders of runs; every run has its own folder, so that no run overwrites another.

`--base_dir=wbsp/` names an experiment; the folders of its runs are `wbsp/run-001`, `wbsp/run-002`,
... under the log root, each with its settings in `run.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from wbsp.limits import one_line
from wbsp.process.disk import disk_of
from wbsp.runlog.files import read_document, shown, write_document

SETTINGS = "run.json"
_HOLDER = 400  # bytes of the description of a server
CONSOLE = "console.log"  # the server's lines
SECRET = "secret"  # the entry of the settings with the run's secret; see `wbsp.wire.proof`


def sync_name(base_dir: str | os.PathLike[str]) -> str:
    """Return the synchronization model in the last part of `base_dir`: "wbsp/" -> "wbsp".

    Raises:
        ValueError: `base_dir` has no such part.
    """
    name = Path(base_dir).name
    if not name or name == "..":
        raise ValueError(f"base_dir={str(base_dir)!r} names no folder; give one whose last part is "
                         "the synchronization model, such as wbsp/")
    return name


def run_folder(base_dir: str | os.PathLike[str], log_root: str | os.PathLike[str] = "runs",
               resume: bool = False) -> Path:
    """Create and return the next numbered folder of an experiment; with `resume`, the newest one.

    A relative `base_dir` is relative to `log_root`. Two jobs that start at once get two folders.

    Raises:
        ValueError: `base_dir` has no name.
        FileNotFoundError: the experiment has no run to resume.
    """
    sync_name(base_dir)
    experiment = _path(log_root, base_dir)
    numbers = _numbers(experiment)
    if resume:
        if not numbers:
            raise FileNotFoundError(f"no run to resume in {experiment}; start one without resuming")
        return _numbered(experiment, max(numbers))
    experiment.mkdir(parents=True, exist_ok=True)
    number = max(numbers, default=0) + 1
    while True:
        folder = _numbered(experiment, number)
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another job was faster
            number += 1


def unfinished_folder(base_dir: str | os.PathLike[str],
                      log_root: str | os.PathLike[str] = "runs") -> Path:
    """Create and return a hidden folder of an experiment; `finished_folder` makes it a run's.

    If its process is killed before, the next one reuses the folder.

    Raises:
        OSError: the folder cannot be created.
    """
    sync_name(base_dir)
    experiment = _path(log_root, base_dir)
    experiment.mkdir(parents=True, exist_ok=True)
    number = max(_numbers(experiment), default=0) + 1
    while True:
        folder = experiment / f".{_numbered(experiment, number).name}"
        folder.mkdir(exist_ok=True)
        if not is_held(folder):
            return folder
        number += 1


def finished_folder(folder: Path) -> Path:
    """Rename an `unfinished_folder` to the newest run's, and return the new path.

    The folder must hold all from which a run resumes; the rename is atomic.

    Raises:
        OSError: the rename failed; the folder is unchanged.
    """
    number = max(_numbers(folder.parent), default=0) + 1
    while True:
        place = _numbered(folder.parent, number)
        with contextlib.suppress(FileExistsError):  # another job was faster
            place.mkdir()  # exclusive
            folder.replace(place)
            disk_of(place).sync_names(place.parent)
            return place
        number += 1


def hold_folder(folder: str | os.PathLike[str], who: str) -> IO[bytes]:
    """Lock a run's folder against other servers.

    The lock lasts until the returned file is closed or this process ends.

    Args:
        folder: the run's folder.
        who: description of this server, for the error of another one.

    Raises:
        ValueError: another server has locked the folder; one line with its `who`.
    """
    file = _path(folder, ".server").open("ab+", buffering=0)
    try:
        disk_of(folder).lock(file)
    except BlockingIOError:
        file.seek(0)
        holder = one_line(file.read(_HOLDER).decode(errors="replace")) or "unknown"
        file.close()
        raise ValueError(f"{folder} is locked by a running server ({holder}); end that server "
                         "first, or start a new run without --resume") from None
    except OSError:  # a file system without locks
        pass
    with contextlib.suppress(OSError):  # a full disk: other servers name no holder
        file.truncate(0)
        file.write(who.encode())
    return file


def is_held(folder: str | os.PathLike[str]) -> bool:
    """Return whether a running server has locked this folder, if the file system has locks."""
    try:
        with disk_of(folder).regular(_path(folder, ".server")) as file:
            disk_of(folder).lock(file, shared=True)
    except BlockingIOError:
        return True
    except (OSError, ValueError):  # there is no such file, or a file system has no locks
        pass
    return False


def numbered_folders(experiment: Path) -> list[Path]:
    """Return the folders of an experiment's runs, in the order of their numbers."""
    return [_numbered(experiment, number) for number in sorted(_numbers(experiment))]


def folder_of_worker(folder: Path, settings: Mapping[str, Any]) -> Path:
    """Return the folder for a worker's files of the run with these `settings`; create it.

    It is `folder` unless a run with another settings["id"] has claimed that, for example where runs
    of two servers have equal names; then it is one next to `folder`. The run claims it.
    """
    for one in (folder, folder.with_name(f"{folder.name}-{settings['id']}")):
        one.mkdir(parents=True, exist_ok=True)
        if _claim(one, settings):
            break
    return one


def write_settings(folder: str | os.PathLike[str], settings: dict[str, Any]) -> None:
    """Write the settings of a run to run.json, atomically.

    Only this user can read a file with a secret.

    Args:
        folder: the run's folder.
        settings: sync, options, workers, model, dataset, seed, batch, clock ("real" or "virtual"),
            command line, date, host, release of wbsp, version of Python.
    """
    write_document(_path(folder, SETTINGS), settings, private=SECRET in settings)


def read_settings(folder: str | os.PathLike[str], with_secret: bool = False) -> dict[str, Any]:
    """Read the settings of a run.

    Args:
        folder: the run's folder.
        with_secret: include the run's secret, for a server of the run.

    Raises:
        FileNotFoundError: the folder has none; one line.
        OSError: they cannot be read.
        ValueError: they are damaged; one line.
    """
    folder = _path(folder)
    try:
        settings = read_document(folder / SETTINGS)
    except (FileNotFoundError, NotADirectoryError):
        numbers = _numbers(folder)
        hint = f"; name one of its runs, such as {_numbered(folder, max(numbers))}" if numbers \
            else "; give the folder of a run, such as runs/wbsp/run-001"
        raise FileNotFoundError(f"{shown(folder)} is not a run's folder: it holds no {SETTINGS}"
                                f"{hint}") from None
    if not with_secret:
        settings.pop(SECRET, None)
    return settings


def _claim(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Claim `folder` for the run with these settings; False if another run has claimed it."""
    here = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(here, fcntl.LOCK_EX)  # another worker may claim it at the same time
        if not (folder / SETTINGS).exists():
            if any(folder.glob("wk_*")):  # a folder of an older release, which wrote no settings
                return False
            write_settings(folder, dict(settings))
        with contextlib.suppress(ValueError):  # damaged: another run's
            return bool(read_settings(folder).get("id") == settings["id"])
        return False
    finally:
        os.close(here)


def _path(folder: str | os.PathLike[str], *names: str | os.PathLike[str]) -> Path:
    return disk_of(folder).path(folder).joinpath(*names)


def _numbered(experiment: Path, number: int) -> Path:
    return experiment / f"run-{number:03d}"


def _numbers(experiment: Path) -> list[int]:
    found = [re.fullmatch(r"run-(\d{3,9})", path.name, re.ASCII)
             for path in experiment.glob("run-*")]
    return [int(match[1]) for match in found if match]
