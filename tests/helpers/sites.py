"""Run two sites of two integer workers each below one server as processes, and check their laws.

Both levels are exact in integers: at the server above, W is W_0 plus each site's accepted cuts; at
a site, the sum of the cuts is what it has accepted from its workers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import numpy as np
from conservation import answered_weights, logged
from hosts import Hosts
from integer_replica import UNIT, pattern, read_result, recorded
from jobs import PLAIN, Job, Jobs, ServerJob, free_port
from site_server import noted

from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.reader import read_run
from wbsp.testing.once import Pushes

SITE_SERVER = Path(__file__).with_name("site_server.py")
INTEGER_FIT = Path(__file__).with_name("integer_fit.py")
TOKEN = "a secret of more than sixteen bytes"


class Sites:
    """A server above and the sites below it.

    Attributes:
        top, sites: their servers.
        standbys: site -> its standby.
        workers: of each site.
    """

    def __init__(self, jobs: Jobs, above: str = "asp", inside: str = "asp", sites: int = 2,
                 each: int = 2, options: tuple[str, ...] = (), inner: tuple[str, ...] = PLAIN,
                 hosts: Hosts | None = None):
        """Start the processes; `hosts`: "top", and "site0" ... for the server and the workers of
        each site; None: all are on this one.
        """
        self.jobs, self.above, self.inside, self.each = jobs, above, inside, each
        self.number, self._options, self._inner, self.hosts = sites, options, inner, hosts
        if hosts:
            token = jobs.folder / "token"
            token.write_text(TOKEN)
            self._options += "--host=0.0.0.0", f"--token_file={token}"
            self._inner += f"--upstream_token_file={token}",
        self.ports = [free_port() for _ in range(sites + 1)]
        self.spare = [free_port() for _ in range(sites)]  # of standbys
        self.top = self.start_top()
        self.sites: list[ServerJob] = []
        self.standbys: dict[int, ServerJob] = {}
        self.workers: list[list[Job]] = []

    def start_top(self, *flags: str) -> ServerJob:
        self.top = self._start_top(self.ports[-1], *flags)
        if self.hosts:
            self.top.address = f"{self.hosts.address['top']}:{self.ports[-1]}"
        return self.top

    def start_top_standby(self) -> ServerJob:
        """Start the standby of the server above, on this host."""
        return self._start_top(free_port(), f"--standby_of={self.top.address}")

    def _start_top(self, port: int, *flags: str) -> ServerJob:
        return self.jobs.server(
            *PLAIN, "--check_period=0.1", "--base_dir=top", *self._options, *flags,
            workers=self.number, sync=self.above, port=port, space=self._space("top"))

    def start_site(self, site: int, *flags: str, address: str | None = None) -> ServerJob:
        """Start or restart the server of a site."""
        job = self._start_server(site, self.ports[site], *flags, address=address)
        self.sites[site:site + 1] = [job]
        return job

    def start_standby(self, site: int, *flags: str) -> ServerJob:
        """Start or restart the standby of a site."""
        job = self.standbys[site] = self._start_server(
            site, self.spare[site], f"--standby_of=localhost:{self.ports[site]}", *flags)
        return job

    def _start_server(self, site: int, port: int, *flags: str,
                      address: str | None = None) -> ServerJob:
        self.record(site).mkdir(exist_ok=True)
        job = self.jobs.start(
            f"site{site}", SITE_SERVER, self.record(site) / "cuts.jsonl",
            f"--upstream={address or self.top.address}", f"--site={site}",
            f"--worker_num={self.each}", f"--sync={self.inside}", f"--port_base={port}",
            *self._inner, "--check_period=0.1", f"--base_dir=site{site}",
            *flags, kind=ServerJob,
            space=self._space(f"site{site}"), fork=forked.WBSP)
        job.address, job.cwd = f"localhost:{port}", self.jobs.folder
        return job

    def start_workers(self, site: int, **plan: object) -> None:
        self.workers[site:site + 1] = [[]]
        for worker in range(self.each):
            self.start_worker(site, worker, **plan)

    def start_worker(self, site: int, worker: int, **plan: object) -> Job:
        """Start or restart a worker of a site."""
        address = f"localhost:{self.ports[site]}"
        if site in self.standbys:
            address += f",{self.standbys[site].address}"
        job = self.jobs.integer_worker(address, worker,
                                       self._space(f"site{site}"),
                                       record=str(self.record(site)), seed=site, **plan)
        self.workers[site][worker:worker + 1] = [job]
        return job

    def start_fit(self, site: int, worker: int, **plan: object) -> Job:
        """Start or restart a worker of a site that is a `fit`; `plan`: see `integer_fit`."""
        plan = {"address": f"localhost:{self.ports[site]}", "worker": worker,
                "record": str(self.record(site)), "seed": site, **plan}
        job = self.jobs.start(f"fit{worker}", INTEGER_FIT, json.dumps(plan),
                              space=self._space(f"site{site}"), fork=forked.KERAS)
        if len(self.workers) <= site:
            self.workers.append([])
        self.workers[site][worker:worker + 1] = [job]
        return job

    def stop_workers(self) -> None:
        """Have all workers end as if their steps were done."""
        for site in range(self.number):
            (self.record(site) / "go").touch()

    def start(self, **plan: object) -> Sites:
        for site in range(self.number):
            self.start_site(site)
            self.start_workers(site, **plan)
        return self

    def record(self, site: int) -> Path:
        """Return the folder of the records of this site and its workers."""
        return self.jobs.folder / f"record{site}"

    def end_well(self) -> None:
        for job in (*(job for jobs in self.workers for job in jobs), *self.sites, self.top):
            job.ends_well()

    def conserved(self, told: bool = False) -> checkpoint.Checkpoint:
        """Judge the run; return the last version. `told`: as in `IntegerRun.of_processes`."""
        saved = checkpoint.load(self.top.folder / "checkpoint.safetensors")
        total = 0.0
        for site, job in enumerate(self.sites):
            cuts = self.cuts(site, noted(self.record(site) / "cuts.jsonl"))
            cuts.check()
            assert saved.state.next_seq[site] == len(cuts.made)
            total += cuts.total()
            assert sum(cuts.made.values()) == self.accepted(site, told), f"site {site}"
            own = checkpoint.load(job.folder / "checkpoint.safetensors")
            assert own.vector.tobytes() == saved.vector.tobytes(), "the sites end with one version"
            for worker in range(self.each):
                assert np.float32(read_result(self.record(site), worker)["final"]).tobytes() == (
                    saved.vector.tobytes())
        rest = saved.vector.astype(np.float64) - total * pattern(saved.vector.size)
        assert np.ptp(rest) == 0 and 1 <= rest[0] <= self.each, f"W_0 was {rest}"
        return saved

    def cuts(self, site: int, made: dict[int, Any]) -> Pushes:
        """Return these cuts of a site, and the answers of the server above."""
        # one that was killed may not have logged what it had answered
        return Pushes(f"site {site}", made, logged(self.top.folder).get(site, {})
                      | noted(self.record(site) / "answers.jsonl"))

    def answered(self, site: int) -> int:
        """Return how many cuts of this site the server above has answered."""
        path = self.record(site) / "answers.jsonl"
        return len(noted(path)) if path.exists() else 0

    def accepted(self, site: int, told: bool = False) -> float:
        """Return the sum of what this site accepted from its workers, in patterns.

        `told`: take the answers that the workers received, because the log of a killed server may
        lack some; a killed worker may not have received what is in the log.
        """
        record = self.record(site)
        weights = logged(self.sites[site].folder)
        if told:
            weights = {worker: weights.get(worker, {}) | answered_weights(record, worker)
                       for worker in range(self.each)}
        return sum(Pushes(f"worker {worker}", dict(enumerate(recorded(record, worker))),
                          mine).total(UNIT) for worker, mine in weights.items())

    def _space(self, name: str) -> str | None:
        return self.hosts.space(name) if self.hosts else None

    def events(self, site: int, kind: str) -> list[dict]:
        return [event for event in read_run(self.sites[site].folder).events
                if event["kind"] == kind]


def cuts(record: Path) -> list[list[float]]:
    """Return the lines of a site's record."""
    return [json.loads(line) for line in record.read_text().splitlines()]
