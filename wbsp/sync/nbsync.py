"""NBSync: local computing in parallel with global synchronization.

Source: Zhou, Li, Yu, Luo, Sun, "NBSync: Parallelism of local computing and global synchronization
for fast distributed machine learning in WANs", IEEE Transactions on Services Computing, 2023,
doi 10.1109/TSC.2023.3304312. The rule follows the first author's public prototype.
"""

from typing import Literal

from wbsp.sync.base import About, Option, Push, WorkerRule
from wbsp.sync.bsp import BSP


class NBSync(BSP):
    """No worker waits: it trains until the next version has arrived, at least one step.

        worker: after the first step: push x - W_0; x = W_0
                at every later step's end, if the next version W_n has arrived:
                    push x - W_(n-1), for round n + 1; x = W_n
        server: as BSP: accept(p, 1/N); all active workers have pushed: commit, grant all

    Hence W_(n+1) = W_n + mean over k of (LocalSGD_k(W_(n-1)) - W_(n-1)) [code]. How many local
    steps fit into a round is not decided [paper]: each worker makes as many as its own round
    trip lasts. Progress leaves the live model when it is pushed, and returns one round later,
    inside W [code]. The prototype continues from the first step's end without removing its
    progress, so that this step counts twice; here x returns to W_0 [derived]. A worker that joins
    starts in this way, too, and the round of its join waits for its first push [ours]: no round
    takes an update from before the last version but one.

    merge=add keeps the progress in the live model, x = W_n + pushed progress, as CoCoD-SGD does
    [ours]. Replacing oscillates almost undamped where many steps fit into a round [derived].
    normalize=true gives an update the weight (mean steps of the round before) / (its steps) / N,
    so that fast workers do not pull W towards their own data (FedNova) [ours]. All updates
    of a round share the mean, which takes the bias away; taking the mean of the last round only
    scales the round as a whole. An update from the newest version itself (a worker's first step,
    the rest when it ends) keeps its weight: one step must not be blown up to a round of them.
    """

    name = "nbsync"
    about = About(
        bound="an update of version n + 1 was computed from version n - 1",
        waits="no worker, ever",
        traffic="N pushes and N fetches a version",
        source="Zhou et al., IEEE TSC 2023",
        certainty="from the author's prototype; merge=add and normalize ours")
    OPTIONS = {
        "merge": Option("replace", "pushed progress when a version arrives: removed from the live "
                        "model, or kept in it", choices=("replace", "add")),
        "normalize": Option(False, "weigh an update by the inverse of its steps"),
    }

    merge: str
    normalize: bool

    def __init__(self, **options: object):
        super().__init__(**options)
        adopt: Literal["replace", "rebase"] = "rebase" if self.merge == "add" else "replace"
        self.rule = WorkerRule(push="on_adopt", wait="never", adopt=adopt)
        self._mean_steps: float | None = None  # of the pushes in the last round that had any
        self._steps = self._pushes = 0  # in this round

    def weight_of(self, push: Push) -> float:
        return self._factor(push) / len(self.active)

    def on_commit(self, now: float) -> None:
        if self._pushes:
            self._mean_steps = self._steps / self._pushes
        self._steps = self._pushes = 0

    def _factor(self, push: Push) -> float:
        lag = self.lag(push)
        if not self.normalize or not lag:
            return 1.0
        self._steps += push.steps
        self._pushes += 1
        return (self._mean_steps or push.steps) / push.steps
