"""Two sites whose workers share the run's data, as processes, and what came of each example.

The model has one float an example, and a step adds 1 at each of its examples: see `sharing_worker`.
"""

from __future__ import annotations

import json
from collections import Counter

import forked
import numpy as np
from conservation import _logged
from jobs import ROOT, Job
from sharing_worker import Plan
from site_server import noted
from sites import Sites

from wbsp.core.permutation import examples

WORKER = ROOT / "tests/helpers/sharing_worker.py"
N, BATCH, EPOCHS = 96, 4, 3


class SharedSites(Sites):
    """Sites of unequal workers. They train three quarters of the run, and the rest when told."""

    def start_worker(self, site: int, worker: int, **plan: object) -> Job:
        seconds = 0.02 * (1 + 2 * site + worker)
        address = f"localhost:{self.ports[site]}"
        if site in self.standbys:
            address += f",{self.standbys[site].address}"
        told = Plan(address, worker, str(self.record(site)), N, BATCH, EPOCHS, seconds,
                    N * EPOCHS * 3 // 4)
        job = self.jobs.start(f"worker{worker}", WORKER, json.dumps(vars(told) | plan),
                              space=self._space(f"site{site}"), fork=forked.WBSP)
        self.workers[site][worker:worker + 1] = [job]
        return job

    def cuts(self, site: int) -> dict[int, tuple[list[list[int]], np.ndarray]]:
        """seq -> positions and update of a site's cuts, over all lives of its server."""
        lines = (self.record(site) / "spans.jsonl").read_text().splitlines()
        return {seq: (spans, np.array(update)) for seq, spans, update in map(json.loads, lines)}

    def trained(self) -> Counter[int]:
        """How often each position is in a push that the server above has accepted."""
        weights, total = _logged(self.top.folder), Counter[int]()
        for site in range(self.number):
            known = weights.get(site, {}) | noted(self.record(site) / "answers.jsonl")
            for seq, weight in known.items():
                if weight:
                    for span in self.cuts(site)[seq][0]:
                        total.update(range(*span))
        return total

    def check(self) -> np.ndarray:
        """Each example is once an epoch in what the server above has accepted, each cut holds what
        it names, and all end with one version."""
        assert self.trained() == Counter(range(N * EPOCHS))
        finals = [np.load(self.record(site) / f"final-{worker}.npy")
                  for site in range(self.number) for worker in range(self.each)]
        assert len({final.tobytes() for final in finals}) == 1
        for site in range(self.number) if self.inside == "asp" else ():
            for spans, update in self.cuts(site).values():
                held = np.zeros(N)
                for start, stop in spans:
                    for part in range(start, stop):  # of one epoch each
                        held[examples(part, part + 1, N, 0)] += 1
                # by how many workers the site had
                assert ((held / self.each <= update) & (update <= held)).all(), (spans, update)
        return finals[0]
