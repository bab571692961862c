"""Run a server, optionally with a standby and shards, and integer workers that record every cut, as
real processes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
from conservation import IntegerRun, assert_conserved
from integer_replica import read_result
from jobs import free_port, until

TOKEN = "a secret of more than sixteen bytes"
OFTEN = "--check_period=0.2"
NEVER = "--check_period=3600"  # nothing but W_0 is written before the end


class ServerAndStandby:
    """A server, its standby, and workers that know both addresses."""

    def __init__(self, jobs, sync="pcc", workers=2, hosts=None, shards="1", standby=True,
                 flags=(NEVER,), dies=None):
        """Start the processes.

        Args:
            hosts: each process has a separate one (server, standby, w0, w1, ...); None: all have
                this one.
            standby: start one.
            shards: as the flag.
            dies: of the first server, see `Jobs.server`.
        """
        self.jobs, self.sync, self.number, self.hosts = jobs, sync, workers, hosts
        self.ports = free_port(), free_port()
        names = ["server", *["standby"] * standby]
        self.addresses = [f"{hosts.address[name] if hosts else 'localhost'}:{port}"
                          for name, port in zip(names, self.ports, strict=False)]
        self.flags = [*flags, "--base_dir=run", f"--shards={shards}"]
        self.plan = {}
        if hosts:  # beyond this machine a token is needed
            token = jobs.folder / "token"
            token.write_text(TOKEN)
            self.flags += ["--host=0.0.0.0", f"--token_file={token}"]
            self.plan["token_file"] = str(token)
        self.server = self._start("server", 0, dies=dies).listens()
        self.standby = self.start_standby().listens() if standby else None
        self.planned = {}  # worker -> its steps; None: it ends at a signal
        self.workers = []

    def start_server(self, *flags):
        return self._start("server", 0, *flags)

    def start_standby(self, *flags):
        return self._start("standby", 1, f"--standby_of={self.addresses[0]}", *flags)

    def _start(self, name, index, *flags, dies=None):
        return self.jobs.server(*self.flags, *flags, sync=self.sync, workers=self.number,
                                port=self.ports[index], space=self._space(name), dies=dies)

    def _space(self, name):
        return self.hosts.space(name) if self.hosts else None

    def worker(self, steps, **plan):
        index = len(self.workers)
        self.planned[index] = None if "stop_when_told" in plan else steps
        job = self.jobs.integer_worker(",".join(self.addresses), index, self._space(f"w{index}"),
                                       steps=steps, **self.plan, **plan)
        self.workers.append(job)
        return job

    def trains(self):
        """Have two workers train that do not end before `go`; wait until the standby holds a
        version.
        """
        first, _ = self.worker(120, seconds=0.01, hold_at=90), self.worker(80, seconds=0.015)
        if self.standby is not None:
            self.standby.until("holding version")
        first.until("step 30 done")

    def kill(self, who):
        """Kill the "server" or the "standby" (kill -9), whatever it does now, and start it again.
        """
        job = getattr(self, who)
        job.kill()
        job.was_clean()
        setattr(self, who, getattr(self, f"start_{who}")("--resume"))

    def kill_repeatedly(self, kills, draw):
        """Kill the server, its standby or one of its shards this many times, each after this many
        versions; return the seconds from each kill to the next version.

        Args:
            draw: a random.Random that chooses the victim and the moment.
        """
        waits, said = [], {}
        for _ in range(kills):
            if self.standby is not None:
                until(lambda known=said: self.held(known), "the standby to hold something")
                said = {job: len(job.find("holding version"))
                        for job in (self.server, self.standby)}
            version = self.newest() + draw.randint(0, 20)
            until(lambda least=version: self.newest() >= least, "more versions")
            shards = self.flags[-1] != "--shards=1" and until(self.shards, "shards")
            victim = draw.choice(["server", *["standby"] * (self.standby is not None),
                                  *["shard"] * bool(shards)])
            known, since = self.newest(), time.monotonic()
            if victim == "shard":
                draw.choice(shards).kill()
            else:
                self.kill(victim)
            until(lambda least=known: self.newest() > least + 1, "a version after the kill")
            waits.append(time.monotonic() - since)
        return waits

    def shards(self, job=None):
        """Return the processes of a server's shards on this machine; default: of the process that
        serves.
        """
        return shards_of(job or self.serving)

    @property
    def serving(self):
        """Return the process that serves: its run has the highest epoch."""
        return max((self.server, self.standby), key=lambda job: run_json(job).get("epoch", 0))

    def held(self, said):
        """Return whether the other process holds a copy, and the serving one knows it; `said`:
        process -> how often it had printed so before its part began.
        """
        other = self.standby if self.serving is self.server else self.server
        return (len(other.find("holding version")) > said.get(other, 0)
                and run_json(self.serving).get("standby") is not None)

    def versions(self):
        """Return the version of each worker; 0 before its first step."""
        steps = [worker.find("step .* done, version") for worker in self.workers]
        return [int(lines[-1].split()[-1]) if lines else 0 for lines in steps]

    def newest(self):
        """Return the newest version of any worker."""
        return max(self.versions())

    def go(self):
        (self.jobs.folder / "go").touch()

    def ends(self, *servers):
        """Assert that all end in good order and agree; the first of the servers has served last."""
        for job in (*self.workers, *servers):
            job.ends_well()
        run = IntegerRun.of_processes(run_json(servers[0])["folder"], self.jobs.folder, told=True)
        saved = assert_conserved(run)
        for worker, planned in self.planned.items():
            result = read_result(self.jobs.folder, worker)
            assert result["steps"] == saved.state.members[worker].steps, run_json(servers[0])
            assert planned in (result["steps"], None)
            assert result["version"] == saved.state.version
        return saved


def shards_of(server):
    """Return the processes of a server's shards on this machine."""
    here = psutil.Process(server.process.pid)
    return [one for one in here.children() if "wbsp.ps.sharding.process" in command(one)]


def command(process):
    """Return the words of a process's command line; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def run_json(job):
    """Return the run.json of the newest run that a process has served; {} if there is none."""
    if job is None or not (lines := job.find("the files of this run are in")):
        return {}
    folder = Path(job.cwd) / lines[-1].rpartition(" are in ")[2]
    return json.loads((folder / "run.json").read_text()) | {"folder": folder}
