"""Make a server that is ready to run from settings, for both entry points."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any

from wbsp import __version__, timeouts
from wbsp import environment as cluster
from wbsp.process.host import HOST, Host
from wbsp.process.signals import Interrupts
from wbsp.ps.checkpoint.format import Checkpoint, load, save
from wbsp.ps.checkpoint.resume import Runs
from wbsp.ps.checkpoint.state import check_run
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT
from wbsp.ps.clock import Clock
from wbsp.ps.config import Reporter, RunInfo, ServerConfig, ShardPlan
from wbsp.ps.evaluation import Evaluator, EvaluatorAt
from wbsp.ps.full_disk import FullDisk
from wbsp.ps.readers import SCORE
from wbsp.ps.replication.election import Standing
from wbsp.ps.replication.snapshot import RunCopy, RunNote
from wbsp.ps.replication.standby import Standby
from wbsp.ps.series import (
    BESIDE,
    SERVER_STEP,
    STANDBY_STEP,
    Series,
    awaits,
    next_run,
    run_id,
)
from wbsp.ps.server import Server
from wbsp.ps.sharding.coordinator import ShardLost
from wbsp.runlog.console import Console, say
from wbsp.runlog.files import beside_of, read_document
from wbsp.runlog.folder import (
    CONSOLE,
    SECRET,
    SETTINGS,
    finished_folder,
    hold_folder,
    read_settings,
    sync_name,
    write_settings,
)
from wbsp.runlog.server import MOST, ServerLog
from wbsp.sync import SyncModel
from wbsp.tensors.codecs import FLOAT32
from wbsp.wire.addresses import is_loopback, own_address, split_address
from wbsp.wire.guard import too_few_files
from wbsp.wire.messages.from_server import RunSettings
from wbsp.wire.proof import SIZE
from wbsp.wire.sockets import ServerSocket


def where_to_listen(host: str | None, port: int | None, default_port: int) -> tuple[str, int]:
    """Return the host and port to listen on: those given, else from the workers' environment.

    The environment names an address that leads here, perhaps through address translation, or one of
    several; so the server listens on every interface.

    Raises:
        ValueError: the environment is ambiguous or bad; one line.
    """
    said = cluster.server_address("ps") if host is None and port is None else None
    if said is None:
        return own_address(host or "localhost"), port or default_port
    try:
        hosts, ports = zip(*map(split_address, said.text.split(",")), strict=True)
    except ValueError as error:
        raise said.refused(error) from None
    if len(set(ports)) > 1:
        raise said.refused("several ports; give this server's: --port_base")
    return hosts[0] if all(map(is_loopback, hosts)) else "*", ports[0]


_IDENTITY = {"name": "identity"}  # the outer step of a run whose run.json names none
# What a resumed run's settings may differ in without a line; "outer" is compared apart.
_OF_A_START = frozenset({"command", "folder", "outer", "date", "host", "python"})
_MOST_LOST = 20  # shards in a row without a checkpoint between


def _recorder(folder: pathlib.Path, run: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return `record` of `Server`, for the settings `run` in this folder's run.json."""
    def record(**changes: Any) -> dict[str, Any]:
        if changes:
            write_settings(folder, run | changes)
            run.update(changes)
        return run

    return record


@dataclass(frozen=True)
class _Plan:
    """The server that this process is, or may become.

    Attributes:
        settings: those that joining workers must share, except those that each run adds (name ->
            text).
        runs: the folders of `config`.
        sockets: the newest one, which the runs of a series have in common.
    """

    settings: dict[str, str]
    model: SyncModel
    config: ServerConfig
    runs: Runs
    interrupts: Interrupts
    start_evaluator: Callable[[EvaluatorAt], Evaluator] | None = None
    on: Host = HOST
    series: Series = field(default_factory=Series)
    sockets: list[ServerSocket] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Return whether the run that is served, or was served last, has a first version."""
        folder = self.runs.current
        return folder is not None and (folder / CHECKPOINT).exists()

    def next(self) -> _Plan:
        """Return the plan of a new run after one that has ended well."""
        self.series.follow()
        return replace(self, runs=self.runs.next())

    def listen(self) -> ServerSocket:
        """Open the server's socket, or return that of the run before, if it is still bound.

        Raises:
            ValueError: a setting is bad; one line.
            OSError: the port cannot be used; one line.
        """
        config = self.config
        if self.sockets and not self.sockets[0].closed:
            return self.sockets[0]
        socket = ServerSocket(config.host, config.port, config.token, config.worker_num, on=self.on)
        self.sockets[:] = [socket]
        if line := too_few_files(config.worker_num):
            say(line)
        return socket

    def _now(self, folder: pathlib.Path) -> dict[str, Any]:
        """Return run.json for a run that begins in this folder."""
        config = self.config
        return {**self.settings, "workers": config.worker_num, "folder": str(self._place(folder)),
                "options": json.loads(self.settings["sync_option"]), "clock": "real",
                "check_period": config.check_period, "bandwidth": config.bandwidth,
                **config.outer.settings(), "command": " ".join(sys.argv), **self._here()}

    def _here(self) -> dict[str, str]:
        """Return when and where a server of this plan starts, and in which software."""
        return {"date": self.on.clock.date(), "host": platform.node(),
                "release": __version__, "python": platform.python_version()}

    def note(self, socket: ServerSocket, folder: pathlib.Path, before: dict[str, Any],
             saved: Checkpoint | None, step: int, beside: str | None,
             elected: bool = False) -> dict[str, Any]:
        """Write and return run.json of a run that resumes from `saved`, or begins.

        The call may be repeated after an error.

        Args:
            socket: the server's.
            folder: the run's.
            before: settings of the run so far.
            saved: a checkpoint, or None.
            step: as in `Series.next_epoch`, of `before`.
            beside: address of the run's other process. It may continue the run, too, until most
                workers have connected here, so a later start of this process asks there first.
            elected: workers elected this process by votes, so the other process may still make
                versions from `saved` on.

        Raises:
            ValueError: a setting does not fit the run; one line.
            OSError: the file cannot be written; one line.
        """
        run = dict(before) if saved else self._now(folder)
        wire = self.settings["wire"]
        ranges = self.settings.get("ranges")
        if saved and before.get("wire", FLOAT32.name) != wire:
            raise ValueError(f"--wire={wire}: this run was started with --wire="
                             f"{before.get('wire', FLOAT32.name)}, which its workers still use; "
                             "give that")
        if saved and before.get("ranges") != ranges:
            raise ValueError(f"--shards: this run was started with {before.get('ranges')} shards, "
                             f"and with --wire={wire} its workers depend on that; give as many")
        series = self.series
        run["id"] = before.get("id") or (
            run_id(series.secret, series.fit) if series.secret and series.fit > 1
            else self.on.scheduler.random(4).hex())
        run |= series.begin(before, run["id"], folder,
                            lambda: self.on.scheduler.random(SIZE).hex())
        run["epoch"] = series.next_epoch(before.get("epoch", series.epoch), step)
        run["standby"] = None if saved else series.other
        run["shards"] = self.config.shards.setting
        run["beside"] = beside
        if saved and elected:
            run["elected"] = saved.state.version
        run["port"] = socket.port
        run["ended"] = False
        write_settings(folder, run)
        return run

    def server(self, socket: ServerSocket, folder: pathlib.Path, hold: IO[bytes],
               run: dict[str, Any], saved: Checkpoint | None, resume: bool) -> Server:
        """Return a server of the run with the settings `run`, which resumes `saved`, or begins.

        The call may be repeated after an error.

        Raises:
            ValueError: a setting does not fit the run; one line.
            OSError: a file or process fails; one line.
        """
        model = deepcopy(self.model)  # another server may follow
        config = self.config
        if saved is not None and saved.state.over:
            config = replace(config, shards=ShardPlan())  # shards have no work left
        settings = RunSettings(
            str(run["id"]), model.name, config.wire.name, config.worker_num,
            str(self._place(folder)), str(folder.absolute()), str(run["series"]), run["fit"],
            self.series.single, self.settings)
        console = Console(f"{model.name} {folder}", self.on.stderr, folder / CONSOLE)
        console.note("a server of wbsp {release} starts on {host}, {date}, Python {python}: "
                     "{command}".format(**self._here(), command=" ".join(sys.argv)))
        log = ServerLog(folder, model.name, append=resume, say=console.line,
                        published=self.settings.get("published_files") == "True", most=MOST)
        info = RunInfo(config, model.rule, settings, run["epoch"],
                       saved is not None or not self.runs.asked, bytes.fromhex(run[SECRET]),
                       series=self.series,
                       rival=saved is not None and run.get("elected") == saved.state.version)
        server = Server(model, socket, info,
                        Reporter(folder, log, console, Clock(self.on.clock.monotonic)),
                        self.interrupts, _recorder(folder, run), self.start_evaluator, hold)
        if saved is not None or not self.series.followed:
            console.line(f"the files of this run are in {folder}")
        if saved:
            server.resume(saved)
            console.line(f"resuming from version {saved.state.version}")
            if half := self.runs.passed_over:
                console.line(f"skipped {half.name}: it has a checkpoint, but no {SETTINGS} with "
                             "its run")
            if changes := self._changes(run, self._now(folder)):
                console.line(f"settings differ from the original run: {', '.join(changes)}")
        else:
            self.runs.say_of_others(console.line)
        return server

    @staticmethod
    def _changes(run: dict[str, Any], now: dict[str, Any]) -> list[str]:
        """Return the differences between a run's settings and those of a new run."""
        changes = [f"{name} {run[name]!r}, now {value!r}" for name, value in now.items()
                   if name not in _OF_A_START and run.get(name, value) != value]
        then = run.get("outer", _IDENTITY)
        outer = now.get("outer", _IDENTITY)
        return changes if then == outer else [*changes, f"outer {then!r}, now {outer!r}"]

    def _reached(self, folder: pathlib.Path, saved: Checkpoint) -> str | None:
        """Return why a run that has ended would end again at once by the flags, or None."""
        samples = saved.state.totals[1]
        limit = self.config.stop_samples
        if samples >= limit:
            return f"it has trained {samples:,} samples, and ends after {limit:,.0f} (--epochs)"
        summary = folder / "summary.json"
        accuracy = read_document(summary).get("accuracy") if summary.exists() else None
        if isinstance(accuracy, float) and accuracy >= (target := self.config.target_accuracy):
            return f"its accuracy is {accuracy:.4f}, and it ends at {target:g} (--target_accuracy)"
        return None

    def _place(self, folder: pathlib.Path) -> pathlib.Path:
        """Return a run's folder in the form for workers."""
        config = self.config  # a relative folder is below each worker's own log root
        return (folder if pathlib.Path(config.base_dir).is_absolute()
                else folder.relative_to(config.log_root))

    def prepare(self, socket: ServerSocket, other: str | None,
                lost: ShardLost | None = None) -> Callable[[], int]:
        """Return a function that serves, or waits to serve, and returns an exit code.

        Args:
            socket: the server's.
            other: address of a server or standby that may serve instead.
            lost: the error that ended this process's earlier server, or None.

        Raises:
            ValueError: the run cannot be served; one line.
            OSError: a file or process fails; one line.
        """
        earlier = self.runs.to_resume()
        folder = earlier or self.runs.new()
        hold = hold_folder(folder, _me(socket))
        try:
            return self._prepare(socket, other, lost, folder, hold, earlier is not None)
        except BaseException:
            hold.close()
            raise

    def _prepare(self, socket: ServerSocket, other: str | None, lost: ShardLost | None,
                 folder: pathlib.Path, hold: IO[bytes], resume: bool) -> Callable[[], int]:
        """Prepare to serve a run in this folder, which is locked; `resume`: it has files."""
        beside_of(folder / CHECKPOINT).unlink(missing_ok=True)  # of a server killed while writing
        saved = load(folder / CHECKPOINT) if resume and (folder / CHECKPOINT).exists() else None
        before: dict[str, Any] = check_run(
            read_settings(folder, with_secret=True) if (folder / SETTINGS).exists() else {},
            str(folder / SETTINGS))
        if self.series.id is None:  # this process has served no run yet
            self.series.find(before, self.runs.before, self.runs.past)
        self.series.exceeds((before or self.runs.before or {}).get("epoch", 0))
        if not before and self.runs.before is not None:
            before = next_run(self.runs.before) or {}
        other = other or before.get("standby") or before.get("beside") or (
            self.series.other if before and not saved else None)
        if saved and saved.state.over and before.get("ended"):  # named, so that it continues
            if (reached := self._reached(folder, saved)) is not None:
                say(f"{folder} has ended, and continuing would end it at once: {reached}")
                socket.close()
                hold.close()
                return lambda: 0
            saved = saved._replace(state=replace(saved.state, over=False, ended=False))
            self.series.reopen()
        over = saved is not None and saved.state.over

        if saved and other and "id" not in before:
            raise ValueError(f"{folder / SETTINGS} does not name the run of the checkpoint beside "
                             f"it, which {other} may serve: restore that file, or name another "
                             "run, such as --resume=run-001")
        take_over = _TakeOver(self, socket, other)

        def serve(copy: RunCopy | RunNote | None, above: int = 0,
                  elected: bool = False) -> Server:
            if copy is not None:
                return take_over(copy, above, elected)
            self.series.exceeds(above)
            run = self.note(socket, folder, before, saved, SERVER_STEP,
                            other if saved else None, elected)
            server = self.server(socket, folder, hold, run, saved, resume)
            if lost is not None:
                server.tell("shard_lost", reason=str(lost))
            return server

        def close() -> None:
            """All workers had the final version, which is here, when this process ended."""
            if not over or before.get("ended"):
                return
            try:
                write_settings(folder, before | {"ended": True})
            except OSError as error:
                say(f"cannot note in {folder} that its run has ended: {error.strerror or error}; "
                    "its checkpoint has the final version")

        # A run that is over has no later state, but another process may have begun the next one.
        # Without a checkpoint, as on a full disk, a standby that is named may hold a version.
        if saved and other and not (over and not self.series.goes_on):
            own = Standing.of(before, saved.state, SERVER_STEP)
        elif other and not saved and (awaits(before) if self.series.later
                                      else before.get("standby")):
            own = Standing.of_note(before, SERVER_STEP)
        else:
            return serve(None).run
        return partial(_stand_by, self, Standby(
            socket, other, self.settings | self.config.terms, serve, self.interrupts, own,
            self.config.share, keep=take_over.keep, close=close))


class _TakeOver:
    """Take-over of a run by a standby, into a new folder; repeatable after an error.

    The folder is renamed when the checkpoint and the run's settings are in it: however this process
    ends, the next one finds either all of it or the earlier run.
    """

    def __init__(self, plan: _Plan, socket: ServerSocket, other: str | None = None):
        """Prepare; `other`: address of the server that this process has followed."""
        self._plan = plan
        self._socket = socket
        self._other = other
        self._hold: IO[bytes] | None = None
        self._folder: pathlib.Path  # locked

    def __call__(self, held: RunCopy | RunNote | None, above: int = 0,
                 elected: bool = False) -> Server:
        """Return the server of the run that this process holds, in an epoch that is above `above`.

        `elected`: as in `_Plan.note`.

        Raises:
            ValueError: a setting does not fit the run; one line.
            OSError: a file or process fails; one line.
        """
        assert held is not None, "a standby serves what it holds"
        self._plan.series.restore(held.run, taken_over=True)
        self._plan.series.exceeds(above)
        server = (self._resume(held, elected) if isinstance(held, RunCopy)
                  else self._begin(held))
        server.tell("took_over")
        return server

    def _begin(self, note: RunNote) -> Server:
        """Return the server of a run that has not begun."""
        if self._hold is None:
            self._folder = self._plan.runs.new()
            self._hold = hold_folder(self._folder, _me(self._socket))
        run = self._plan.note(self._socket, self._folder, note.run, None, STANDBY_STEP, self._other)
        return self._plan.server(self._socket, self._folder, self._hold, run, None, False)

    def keep(self, copy: RunCopy) -> None:
        """Write the last version of a run that another one follows.

        Once this process serves a later run, a worker that was started anew passes this one with
        it. A later start of this process finds it as a run that it has ended itself, behind which
        the process that it has followed may have begun the next one.
        """
        if not copy.saved.state.ended:
            return
        series = self._plan.series
        run = {**copy.run, "ended": True, "epoch": series.next_epoch(copy.run["epoch"],
                                                                     STANDBY_STEP),
               "standby": self._other, "beside": None, "port": self._socket.port}
        try:
            folder = self._plan.runs.unfinished()
            save(folder / CHECKPOINT, copy.saved)
            write_settings(folder, run)
            folder = finished_folder(folder)
        except OSError as error:
            say(f"cannot keep the last version of fit {copy.run.get('fit')} beside that of its "
                f"server: {error.strerror or error}; if that is lost, workers that are started "
                "anew need its folder")
            return
        series.exceeds(run["epoch"])
        series.is_in(folder, copy.run.get("fit", 1))

    def _resume(self, copy: RunCopy, elected: bool) -> Server:
        """Return the server of a run that continues from a snapshot."""
        runs = self._plan.runs
        if self._hold is None:
            self._folder = runs.unfinished()
            self._hold = hold_folder(self._folder, _me(self._socket))
        if self._folder != runs.current:
            save(self._folder / CHECKPOINT, copy.saved)  # before any decision
        run = self._plan.note(self._socket, self._folder, copy.run, copy.saved, STANDBY_STEP,
                              self._other, elected)
        if self._folder != runs.current:
            self._keep_best(copy.run)
            self._folder = runs.finished(self._folder)
            self._plan.series.is_in(self._folder)
        return self._plan.server(self._socket, self._folder, self._hold, run, copy.saved, True)

    def _keep_best(self, run: dict[str, Any]) -> None:
        """Copy the best version from the folder of the server before, if it can be read."""
        config = self._plan.config
        before = self._plan.on.disk.path(config.log_root) / str(run.get("folder", ""))
        with contextlib.suppress(OSError, ValueError):
            if (before / BEST).exists() and read_settings(before).get("id") == run["id"]:
                for name in (BEST, SCORE):
                    shutil.copyfile(before / name, self._folder / name)


def prepare_server(settings: dict[str, str], model: SyncModel, config: ServerConfig,
                   start_evaluator: Callable[[EvaluatorAt], Evaluator] | None = None,
                   on: Host = HOST) -> Callable[[], int]:
    """Check all settings and listen; return a function that serves and returns an exit code.

    The function serves, or waits to serve as a standby. From here on the server handles the
    process's signals.

    Args:
        settings: those that workers must share (name -> text), among them `sync_option`, the
            model's options as JSON.
        model: the synchronization model.
        config: the server's settings.
        on: the host that this process runs on.

    Raises:
        ValueError: a setting is bad; one line.
        OSError: a file, port or process fails; one line.
    """
    settings = {**settings, "wire": config.wire.name}
    if not config.wire.lossless:  # each range is encoded separately, also by a later server
        settings["ranges"] = str(config.shards.number)
    interrupts = Interrupts(on).install()
    resume = config.resume
    if config.standby_of:
        resume = bool(resume)
        folder = pathlib.Path(config.base_dir)
        config = replace(config, base_dir=str(
            folder.with_name(f"{sync_name(config.base_dir)}{BESIDE}")))
    runs = Runs(config.base_dir, on.disk.path(config.log_root), config.port, resume)
    plan = _Plan(settings, model, config, runs, interrupts, start_evaluator, on,
                 Series(single=config.one_run))
    socket = plan.listen()
    plan = replace(plan, config=replace(config, port=socket.port))
    left = runs.to_resume()
    if config.standby_of and not _holds_some(runs, left):
        take_over = _TakeOver(plan, socket, config.standby_of)
        first: Callable[[], int] = partial(_stand_by, plan, Standby(
            socket, config.standby_of, plan.settings | config.terms, take_over, interrupts,
            share=config.share, first=config.connect_timeout, keep=take_over.keep))
        for line in config.reach:
            say(line)
    else:
        first = plan.prepare(socket, config.standby_of)
    return partial(_serve_all, plan, first)


def _holds_some(runs: Runs, left: pathlib.Path | None) -> bool:
    """Return whether a standby that is restarted holds a state in its folder.

    A folder without a checkpoint may be from a standby that was killed while it took over; it has
    a state if it waits for a later run of a series, or follows a run that has ended.
    """
    if left is not None and (left / CHECKPOINT).exists():
        return True
    if left is not None:
        with contextlib.suppress(OSError, ValueError):
            if check_run(read_settings(left), str(left)).get("fit", 1) > 1:
                return True
    return runs.before is not None


def _stand_by(plan: _Plan, standby: Standby) -> int:
    """Wait, and serve when this process is elected; return the exit code."""
    code = standby.run()
    if not standby.serves:  # no worker joins this process's next run
        plan.series.forget()
    return code


def _serve_all(plan: _Plan, serve: Callable[[], int]) -> int:
    """Serve one run after the other, while workers may join the next; return the exit code."""
    code = _serve_on(plan, serve)
    while code == 0 and plan.series.goes_on and plan.interrupts.first is None:
        plan.interrupts.end_without_acts()
        plan = plan.next()
        del serve
        gc.collect()  # the objects of a run refer to each other, and hold its vectors
        try:
            serve = _prepare(plan)
        except (ValueError, OSError) as error:
            say(f"stopping: {error}")
            code = 1
            break
        code = _serve_on(plan, serve)
        if not plan.begun:
            if code == 0 and not plan.series.goes_on:
                _note_end(plan)
            plan.runs.forget_unused()
            break
    for socket in plan.sockets:
        if not socket.closed:
            socket.close(timeouts.SERVER_LINGER)
    return code


def _prepare(plan: _Plan, lost: ShardLost | None = None) -> Callable[[], int]:
    """Prepare the next server of this process; wait for a full disk as for a run's last version.

    `lost`: as in `_Plan.prepare`.

    Raises:
        ValueError: the run cannot be served; one line.
        OSError: a file or process fails; one line.
    """
    return FullDisk(say, plan.config.log_root).persist(
        lambda: plan.prepare(plan.listen(), None if lost is None else lost.standby, lost),
        f"cannot {'resume' if lost else 'begin the next fit'}", plan.on.clock,
        lambda: plan.interrupts.first is None)


def _note_end(plan: _Plan) -> None:
    """Note in the newest run of a series, which has ended, that no other one follows."""
    folder = plan.series.folders.get(plan.series.fit - 1)
    if folder is not None:
        with contextlib.suppress(OSError, ValueError):
            write_settings(folder, read_settings(folder, with_secret=True) | {
                "living": [], "nameless": []})


def _serve_on(plan: _Plan, serve: Callable[[], int]) -> int:
    """Serve, and again from the newest checkpoint whenever a shard is lost; return the exit code.
    """
    died = 0  # shards in a row
    since = _newest(plan)
    while True:
        try:
            try:
                return serve()
            except ShardLost as error:
                lost = error
            newest = _newest(plan)
            died = died + 1 if newest == since else 0
            since = newest
            if died >= _MOST_LOST:
                say(f"stopping: lost {died} shards in a row without a checkpoint between; the "
                    f"last: {lost}")
                return 1
            plan.interrupts.end_without_acts()
            serve = _prepare(plan, lost)
        except (ValueError, OSError) as error:  # also of a standby that could not start
            say(f"stopping: {error}")
            return 1


def _newest(plan: _Plan) -> float:
    """Return the time at which the newest checkpoint was written; 0: none was."""
    with contextlib.suppress(OSError):
        if plan.runs.current is not None:
            return (plan.runs.current / CHECKPOINT).stat().st_mtime
    return 0.0


def _me(socket: ServerSocket) -> str:
    return f"process {os.getpid()} on {platform.node()}, port {socket.port}"
