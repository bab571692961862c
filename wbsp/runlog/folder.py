"""Folders of runs; every run has a folder of its own, so that no run overwrites another.

`--base_dir=wbsp/` names an experiment; its runs lie under the log root as `wbsp/run-001`,
`wbsp/run-002`, ..., each with a `run.json` that says what was run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from wbsp.process.disk import disk_of
from wbsp.runlog.files import read_document, write_document

SETTINGS = "run.json"
SECRET = "secret"  # the entry of the settings with the run's secret; see `wbsp.wire.proof`


def sync_name(base_dir: str | os.PathLike) -> str:
    """The synchronization model that `base_dir` names by its last part: "wbsp/" -> "wbsp".

    Raises ValueError for a `base_dir` without such a part.
    """
    name = Path(base_dir).name
    if not name or name == "..":
        raise ValueError(f"base_dir={str(base_dir)!r} names no folder; give one whose last part is "
                         "the synchronization model, such as wbsp/")
    return name


def run_folder(base_dir: str | os.PathLike, log_root: str | os.PathLike = "runs",
               resume: bool = False) -> Path:
    """The next numbered folder of an experiment, made anew; with `resume`, the newest one.

    A relative `base_dir` lies under `log_root`. Two jobs that start at once get two folders.
    Raises ValueError for a base_dir without a name, FileNotFoundError if there is no run to resume.
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


def unfinished_folder(base_dir: str | os.PathLike, log_root: str | os.PathLike = "runs") -> Path:
    """A folder of an experiment that is no run's before it is `finished_folder`'s.

    Its maker may die at any moment; the next one takes what is left of it for its own. Raises
    OSError.
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
    """Make an `unfinished_folder`, which has all from which a run resumes, the newest run's,
    at once. Raises OSError; then it is what it was."""
    number = max(_numbers(folder.parent), default=0) + 1
    while True:
        place = _numbered(folder.parent, number)
        with contextlib.suppress(FileExistsError):  # another job was faster
            place.mkdir()  # and no other has it
            folder.replace(place)
            disk_of(place).sync_names(place.parent)
            return place
        number += 1


def hold_folder(folder: str | os.PathLike, who: str) -> IO[bytes]:
    """Lock a run's folder against other servers until the returned file is closed or this process
    ends.

    who: text about this server, for the error of another one

    Raises ValueError, with the `who` of the holder, if another server holds the folder.
    """
    file = _path(folder, ".server").open("ab+", buffering=0)
    try:
        disk_of(folder).lock(file)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().decode(errors="replace") or "unknown"
        file.close()
        raise ValueError(f"{folder} belongs to a server that still runs ({holder}); end that one "
                         "first, or start a new run without --resume") from None
    except OSError:  # a file system without locks
        pass
    with contextlib.suppress(OSError):  # a full disk: others are told less
        file.truncate(0)
        file.write(who.encode())
    return file


def is_held(folder: str | os.PathLike) -> bool:
    """Whether a server that runs holds this folder, as far as the file system tells."""
    try:
        with _path(folder, ".server").open() as file:
            disk_of(folder).lock(file, shared=True)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file, or a file system has no locks
        pass
    return False


def numbered_folders(experiment: Path) -> list[Path]:
    """The folders of an experiment's runs, in the order of their numbers."""
    return [_numbered(experiment, number) for number in sorted(_numbers(experiment))]


def folder_of_worker(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder in which a worker keeps its files of the run with these `settings`.

    The folder is `folder` unless a run with another settings["id"] has claimed it, as on a machine
    where runs of two servers have the same name; then it is one beside `folder`. It is made if
    necessary, and claimed for the run.
    """
    for one in (folder, folder.with_name(f"{folder.name}-{settings['id']}")):
        one.mkdir(parents=True, exist_ok=True)
        if _claim(one, settings):
            break
    return one


def write_settings(folder: str | os.PathLike, settings: dict[str, Any]) -> None:
    """Write the settings of a run to run.json: sync, options, workers, model, dataset, seed, batch,
    clock ("real" or "virtual"), command line, versions of software. Replaces the file whole; with a
    secret, by one that this user alone can read."""
    write_document(_path(folder, SETTINGS), settings, private=SECRET in settings)


def read_settings(folder: str | os.PathLike, with_secret: bool = False) -> dict[str, Any]:
    """The settings that `write_settings` wrote; the run's secret is among them only for who serves
    the run.

    Raises, in one line, FileNotFoundError for a folder without them, ValueError for damaged ones.
    """
    folder = _path(folder)
    try:
        settings = read_document(folder / SETTINGS)
    except (FileNotFoundError, NotADirectoryError):
        numbers = _numbers(folder)
        hint = f"; name one of its runs, such as {_numbered(folder, max(numbers))}" if numbers \
            else "; give the folder of a run, such as runs/wbsp/run-001"
        raise FileNotFoundError(f"{folder} is not a run's folder: it holds no {SETTINGS}"
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
        return read_settings(folder).get("id") == settings["id"]
    finally:
        os.close(here)


def _path(folder: str | os.PathLike, *names: str | os.PathLike) -> Path:
    return disk_of(folder).path(folder).joinpath(*names)


def _numbered(experiment: Path, number: int) -> Path:
    return experiment / f"run-{number:03d}"


def _numbers(experiment: Path) -> list[int]:
    found = [re.fullmatch(r"run-(\d{3,})", path.name) for path in experiment.glob("run-*")]
    return [int(match[1]) for match in found if match]
