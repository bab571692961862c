"""Processes that evaluate versions in a simulated run: `wbsp.versions` itself, without a model."""

from __future__ import annotations

import json
import random
from collections import Counter

from wbsp.access import Access
from wbsp.core.messages import Measured
from wbsp.reading import Reader
from wbsp.saved import read_at
from wbsp.wire.messages.requests import AskVersion

_PATIENCE = 600.0  # seconds for which a reader tries to reach a server
_AGAIN = 0.05, 2.0  # seconds until a killed one is started again


class SimulatedReader:
    """One reader, over all its processes.

    Attributes:
        read: (process, number, values, last, time) of each version that it has read.
        counted: how often results of each version were accepted.
    """

    def __init__(self, cluster, number):
        self.cluster, self.name = cluster, f"r{number}"
        self._draw = random.Random(f"reader {number} {cluster.number}")
        self._slow = self._draw.choice([0.01, 0.1, 1.0])  # seconds of an evaluation, about
        self._hangs = self._draw.random() < 0.1  # at the last version, or one of the first
        self.read, self.counted, self.lives = [], Counter(), 0
        self._refused, self._process = False, None

    def start(self):
        process = self._process = self.cluster.process(self.name)
        self.lives += 1
        process.start(lambda: self._run(process))

    def dies(self):
        """Kill it (kill -9), and run the command again after a while."""
        process = self._process
        if process is None or not process.alive or self.cluster.over:
            return
        self.cluster.say(f"--- kill {self.name}")
        self.cluster.notes["kill_readers"] += 1
        process.kill()
        self.cluster.world.after(self._draw.uniform(*_AGAIN), self.start)

    def _run(self, process):
        reader = Reader(Access(self.cluster.address, token=self.cluster.token, patience=_PATIENCE),
                        self._say, on=process.host)
        try:
            while (version := reader.next(0.0)) is not None:
                self.read.append((self.lives, version.number, version._saved.vector.tobytes(),
                                  version.last, self.cluster.world.now))
                self.cluster.notes["read"] += 1
                process.sleep(self._slow * self._draw.expovariate(1))
                if self._hangs and (version.last or len(self.read) > 3):
                    self.cluster.notes["readers that hang"] += 1
                    process.sleep(1e9)
                self._refused = False
                version.report(loss=1.0 / (1 + version.number), accuracy=0.5)
                self.counted[version.number] += not self._refused
        except ConnectionError as error:
            self._say(str(error))
            return 1
        return 0

    def _say(self, text):
        self._refused |= "ignores its metrics" in text
        self.cluster.say(f"{self.name}: {text}")


class Validator:
    """The end of an epoch in a worker, as in `fit`."""

    def __init__(self, member, transport, share):
        self._member, self._transport, self._share = member, transport, share
        self._draw = random.Random(f"validator {member.index} {member.lives}")
        self._validated = -1

    def announce(self, runtime):
        runtime.announce()

    def epoch_ends(self, runtime):
        """Validate the newest epoch's version, if the server chooses this worker for it."""
        share, cluster, process = self._share, self._member.cluster, self._member.process
        epoch = max(share.epoch, share.next_epoch - 1) if share.waits else share.epoch
        if epoch <= self._validated:
            return
        self._validated = epoch
        at = runtime.epoch_version(AskVersion(epoch, True))
        if at is None:
            return
        saved = read_at(self._transport.place, at, cluster.token, process.host)
        if isinstance(saved, str):
            cluster.say(f"w{self._member.index}: no validation: {saved}")
            runtime.tell(Measured(at.epoch, {}))
            return
        begun = cluster.world.now
        cluster.phase("validates", process)
        process.sleep(0.05 * self._draw.expovariate(1))
        cluster.laws.validated(self._member, at, saved, begun)
        own = Measured(at.epoch, {"val_loss": 1.0 / (1 + at.epoch)})
        share.validated(own)
        runtime.tell(own)


def evaluations(machine):
    """Return how often the log on a machine's disk has results of each version."""
    found = Counter()
    for path, inode in machine.names.items():
        if path.endswith("/events.jsonl"):
            for line in bytes(inode.data).splitlines():
                event = json.loads(line)
                if event["kind"] == "evaluation":
                    found[event["version"]] += 1
    return found
