"""One run with its raw logs, and the trial that finds how many examples last so long."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from beside import environments, start
from beside.environments import OF_ENTRY, ROOT
from beside.events import Event, Processes
from beside.machines import Network, free_ports
from beside.plan import Cell, Plan, file_name
from models.gpt import shape

TRIAL = 15.0  # seconds, about
GUESS = 5e7  # parameters x examples/s of the first machine, before any trial
OFF = 0.05  # of the time that a run may differ
TRIES = 3
LATE = 180.0  # seconds beyond three times its length, after which a run is ended
HEAD, TAIL = 12, 4  # lines of a process, from what happened on, and its last ones
MARK = "BESIDE_RUN"  # in the environment of all processes of a run
CODE = f"{ROOT}{os.pathsep}{ROOT / 'lab'}"
Result = dict[str, Any]


class Asked(NamedTuple):
    """A run that is asked for: its parts are also its folder.

    Attributes:
        event: what happens in it; "": nothing.
    """

    cell: Cell
    entry: str
    setting: str
    seed: int
    seconds: float
    busy: bool = False
    event: str = ""

    @property
    def key(self) -> str:
        """Return what its pace depends on."""
        batch = self.setting.partition(":")[0]
        return "/".join([self.cell.name + ("-busy" if self.busy else ""), self.entry, batch])

    @property
    def path(self) -> Path:
        """Return its folder within that of all runs."""
        cell = self.cell.name + ("-busy" if self.busy else "")
        last = f"seed-{self.seed}" + (f"-{file_name(self.event)}" if self.event else "")
        return Path(cell, f"{self.seconds:g}s", file_name(self.entry), file_name(self.setting),
                    last)

    def plan(self, total: int) -> Plan:
        """Return its plan with so many examples."""
        late = self.event.startswith("join")
        return Plan(self.cell.name, self.entry, self.setting, self.seed, total, self.cell.model,
                    self.cell.slow, not self.busy, len(self.cell.slow) - late)


def result(asked: Asked, out: Path, make: bool) -> Result | None:
    """Return the result of a run, with the right length; make it if it is missing and `make`."""
    place, found = out / asked.path, None
    for n in range(TRIES):
        folder = place / f"try-{n}"
        if (done := folder / "result.json").exists():
            found = json.loads(done.read_text())
        elif make:
            total = round(pace(asked, out) * asked.seconds)
            found = carry_out(asked, asked.plan(total), folder)
            if found["loss"] is not None and not asked.event:
                _keep_pace(asked, out, found["total"] / found["seconds"])
        else:
            return found
        if asked.event or not found["off"] or found["loss"] is None:
            break
    return found


def pace(asked: Asked, out: Path) -> float:
    """Return the examples/s of all machines, of a trial or of the last run."""
    kept = _paces(out)
    if asked.key not in kept:
        calm = asked._replace(event="", cell=asked.cell if not asked.event.startswith("join") else
                              asked.cell._replace(slow=asked.cell.slow[:-1]))
        form = shape(asked.cell.model)
        assert form is not None
        guess = GUESS / form.parameters * sum(1 / slow for slow in calm.cell.slow)
        total = round(guess * TRIAL)
        found = carry_out(calm, calm.plan(total), out / "trials" / file_name(asked.key))
        if found["seconds"] is None:
            raise OSError(f"the trial of {asked.key} failed, see {found['folder']}")
        _keep_pace(asked, out, total / found["seconds"])
    return _paces(out)[asked.key]


def _paces(out: Path) -> dict[str, float]:
    path = out / "pace.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _keep_pace(asked: Asked, out: Path, found: float) -> None:
    (out / "pace.json").write_text(
        json.dumps(_paces(out) | {asked.key: found}, indent=1) + "\n")


def carry_out(asked: Asked, plan: Plan, folder: Path) -> Result:
    """Carry out a run in an empty folder, and return its result, which is also its result.json."""
    _end_all(folder)  # of a run that was killed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    name = OF_ENTRY[plan.name]
    environments.create(name)
    (folder / "versions.txt").write_text(environments.versions(name) or "")
    with Network(asked.cell) as network:
        plan = dataclasses.replace(plan, addresses=network.addresses,
                                   ports=free_ports(2 + len(network.addresses)))
        plan.write(folder)
        begun, moved, codes = _run(asked, plan, folder, network)
    found = {"cell": plan.cell, "entry": plan.entry, "setting": plan.setting, "seed": plan.seed,
             "busy": asked.busy, "event": asked.event, "wanted": asked.seconds,
             "total": plan.total, "folder": str(folder), "commit": commit(),
             "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
             "codes": codes, "bytes": moved, **measured(plan, folder, begun)}
    found["off"] = found["seconds"] is None or abs(
        found["seconds"] / asked.seconds - 1) > OFF
    found["loss"] = loss(folder, plan) if found["seconds"] is not None else None
    if asked.event or found["loss"] is None:
        found["said"] = said(folder)
    (folder / "result.json").write_text(json.dumps(found) + "\n")
    return found


def _run(asked: Asked, plan: Plan, folder: Path,
         network: Network) -> tuple[float, int | None, dict[str, int | None]]:
    """Run the processes; return when they started, the bytes between the first step and the last
    one, and the exit codes (None: ended by us)."""
    jobs = {job.name: job for job in start.jobs(plan, folder)}

    def begin(name: str) -> psutil.Popen:
        job = jobs[name]
        words = [*network.on(job.machine), *job.words]
        with (folder / "commands.txt").open("a") as file:
            file.write(f"{shlex.join(words)}\n")
        with (folder / f"{name}.log").open("ab") as log:
            return psutil.Popen(words, stdout=log, stderr=log, cwd=folder, start_new_session=True,
                                env=_environment(plan, folder, job.machine, network))

    processes = Processes(folder, plan.name, begin)
    # In sessions of their own, between which the kernel divides a core.
    busy = [subprocess.Popen([*network.on(machine), "sh", "-c", "while :; do :; done"],
                             start_new_session=True)
            for machine, slow in enumerate(plan.slow) if asked.busy
            for _ in range(round(slow) - 1)]
    begun = time.monotonic()
    early = [name for name, job in jobs.items() if job.serves or job.machine < plan.begin]
    first: int | None = None
    last: int | None = None
    happening: threading.Thread | None = None
    try:
        for name in early:
            processes.start(name)
        while time.monotonic() < begun + 3 * asked.seconds + LATE:
            time.sleep(0.1)
            if first is None and all((folder / f"ready-{n}").exists() for n in range(plan.begin)):
                first = network.bytes()
                if asked.event:
                    happening = threading.Thread(target=_happen, args=(asked, processes),
                                                 daemon=True)
                    happening.start()
            if last is None and any(folder.glob("end-*.json")):
                last = network.bytes()
            codes = {name: one.poll() for name, one in processes.of.items()
                     if not jobs[name].serves}
            if happening is not None and happening.is_alive():
                continue
            if None not in codes.values():
                break
            if any(codes.values()) and not asked.event:
                time.sleep(5)  # for what the others say of it
                break
    finally:
        codes = {name: one.poll() for name, one in processes.of.items()}
        for name in processes.of:
            processes.signal(name, signal.SIGKILL)
            processes.of[name].wait()
        for other in busy:
            other.kill()
            other.wait()
        _end_all(folder)
    return begun, None if first is None or last is None else last - first, codes


def _happen(asked: Asked, processes: Processes) -> None:
    """Let the event happen after a third of the run, and note when."""
    time.sleep(asked.seconds / 3)
    (processes.folder / "event.json").write_text(json.dumps(
        {"time": time.monotonic(), "event": asked.event,
         "sizes": {log.name: log.stat().st_size for log in processes.folder.glob("*.log")}}) + "\n")
    try:
        processes.happen(Event.read(asked.event))
    except ProcessLookupError as error:
        (processes.folder / "event.log").write_text(f"{error}\n")


def said(folder: Path) -> dict[str, list[str]]:
    """Return what the user sees of each job: the first lines (after the event), and the last."""
    event = folder / "event.json"
    sizes = json.loads(event.read_text())["sizes"] if event.exists() else {}
    found = {}
    for log in sorted(folder.glob("*.log")):
        lines = log.read_bytes()[sizes.get(log.name, 0):].decode(errors="replace").splitlines()
        found[log.stem] = [*lines[:HEAD], *lines[HEAD:][-TAIL:]]
    return found


def _end_all(folder: Path) -> None:
    """End what has outlived its launcher: processes with this run's folder in their environment."""
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(MARK) == str(folder):
                one.kill()


def _environment(plan: Plan, folder: Path, machine: int,
                 network: Network) -> dict[str, str]:
    """Return what a process of a machine finds: one thread, and only this checkout's code."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WBSP_")}
    return kept | {
        MARK: str(folder), "PYTHONPATH": CODE, "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": network.device,
        "TP_SOCKET_IFNAME": network.device, "REPLICA_GROUP_ID": str(machine),
        "TORCHFT_LIGHTHOUSE": f"http://{plan.addresses[0]}:{plan.ports[0]}",
        # What machines of their own would have: no memory is shared with a server elsewhere.
        "WBSP_TRANSPORT": "auto" if machine == 0 else "tcp"}


def measured(plan: Plan, folder: Path, begun: float) -> Result:
    """Return what the processes' own files say: seconds, steps, examples, waits."""
    first, times, trained = [], [], Counter[int]()
    steps, pauses = {}, {}
    for machine in range(len(plan.slow)):
        path = folder / f"steps-{machine}.txt"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        made = [line for line in lines if line[0] != "begin"]
        first += [float(line[1]) for line in lines if line[0] == "begin"][:1]
        moments = [float(line[line[0] == "begin"]) for line in lines]
        pauses[str(machine)] = max((b - a for a, b in pairwise(moments)), default=0.0)
        times += [float(line[0]) for line in made]
        trained.update(int(place) for line in made for place in line[2:])
        steps[str(machine)] = len(made)
    ends = [json.loads(path.read_text())["end"] for path in folder.glob("end-*.json")]
    if not ends or not times:
        return {"seconds": None, "steps": steps}
    began = max(first[:plan.begin])
    return {
        "seconds": max(ends) - began, "start_seconds": began - begun,
        "end_seconds": max(ends) - max(times), "steps": steps, "examples": trained.total(),
        "twice": trained.total() - len(trained),
        "never": sum(place not in trained for place in range(plan.total)),
        "pauses": pauses}


def loss(folder: Path, plan: Plan) -> float | None:
    """Return the loss of the final weights; None: there are none that can be read."""
    done = subprocess.run([str(environments.python(OF_ENTRY[plan.name])), "-m", "beside.evaluate",
                           str(folder)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": CODE, "CUDA_VISIBLE_DEVICES": ""})
    (folder / "evaluate.log").write_text(done.stderr)
    return float(done.stdout) if done.returncode == 0 else None


def commit() -> str:
    """Return the checkout's commit, with a + if its files were changed since."""
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True,
                              text=True).stdout.strip()
    changed = git("status", "--porcelain", "--", "lab/beside", "models", "data", "wbsp")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
