"""Run two sites whose workers share the run's data as processes, and check how often each example
was trained.

The model has one float per example, and a step adds 1 to those of its examples: see
`sharing_worker`.
"""

from __future__ import annotations

import json
from collections import Counter

import forked
import numpy as np
from jobs import ROOT, Job
from sharing_worker import Plan
from sites import Sites

from wbsp.core.permutation import examples
from wbsp.testing.once import Pushes, assert_each

WORKER = ROOT / "tests/helpers/sharing_worker.py"
N, BATCH, EPOCHS = 96, 4, 3


class SharedSites(Sites):
    """Sites of unequal workers. They train three quarters of the run at once, and the rest after a
    signal.
    """

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

    def shared(self, site: int) -> Pushes:
        """Return a site's cuts, over all processes of its server."""
        lines = (self.record(site) / "spans.jsonl").read_text().splitlines()
        cuts = {seq: (spans, np.array(update)) for seq, spans, update in map(json.loads, lines)}
        pushes = self.cuts(site, {seq: update for seq, (_, update) in cuts.items()})
        pushes.spans = {seq: spans for seq, (spans, _) in cuts.items()}
        return pushes

    def check(self) -> np.ndarray:
        """Assert that the server above has accepted each example once per epoch, that each cut
        contains what it names, and that all end with one version.
        """
        cuts = [self.shared(site) for site in range(self.number)]
        assert_each(sum((one.trained for one in cuts), Counter()), N * EPOCHS)
        finals = [np.load(self.record(site) / f"final-{worker}.npy")
                  for site in range(self.number) for worker in range(self.each)]
        assert len({final.tobytes() for final in finals}) == 1
        for one in cuts if self.inside == "asp" else ():
            for seq, update in one.made.items():
                held = np.zeros(N)
                for start, stop in one.spans[seq]:
                    for part in range(start, stop):  # of one epoch each
                        held[examples(part, part + 1, N, 0)] += 1
                # by how many workers the site had
                assert ((held / self.each <= update) & (update <= held)).all(), (seq, update)
        return finals[0]
