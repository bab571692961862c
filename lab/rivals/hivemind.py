"""hivemind: peers gather a target batch, each at its own pace, and average when it is there.

Source: hivemind.Optimizer with `target_batch_size` (github.com/learning-at-home/hivemind,
hivemind/optim/optimizer.py) [code, from notes on it]; Ryabinin et al., "Moshpit SGD", NeurIPS 2021
[paper: the averaging]. Without delay_* options:

    peer: gradients of `batch` examples, again and again, at the same parameters, summed up
          all peers together have `target` examples? average, weighted by examples; the
          optimizer's step; the next epoch

- A peer sees the sum when its batch ends. A batch that is under way then still counts, if it ends
  within `matchmaking` seconds, in which groups are formed; the peers do not wait longer.
- Who ends later is out of step: its gradients of this epoch are dropped, and it loads the others'
  state before it goes on. Who is lost takes its own gradients of this epoch along; only a loss in
  an average stops the others until it is noticed.
- The average is the butterfly of one group: 2 (n - 1) / n of the bytes, and two messages after one
  another.

The progress that peers know of one another through the DHT is exact and immediate here, which
favours hivemind: there it is refreshed every 0.5 s at best, and `matchmaking_time` is 3 s or more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from rivals.chain import Update
from rivals.ring import Members, all_reduce, copied
from wbsp.simulate.world.machine import Machine


def hivemind(machines: Sequence[Machine], batch: int, target: int, size: float, detect: float, *,
             matchmaking: float = 0.1) -> Iterator[Update]:
    """Yield the epochs, each one update.

    Args:
        machines: of the peers.
        batch: examples that a peer accumulates at once.
        target: examples of an update, at least.
        size: bytes of all gradients.
        detect: seconds until a loss is noticed.
        matchmaking: seconds for which an average waits for a peer at most.
    """
    now, steps, members = 0.0, [0] * len(machines), Members(machines, size, detect)
    late: dict[int, float] = {}  # peer -> when it begins, where that is behind the others

    def ends(peer: int, begin: float) -> float:
        steps[peer] += 1
        return begin + machines[peer].seconds(steps[peer] - 1, begin)

    while True:
        now, peers = members.next_round(now)
        if not peers:
            return
        losses = {peer: members.lost(peer, now) for peer in peers}
        under_way = [(ends(peer, max(begin, late.get(peer, 0.0))), peer)
                     for peer, begin in peers.items()]
        late = {}
        heapify(under_way)
        samples: dict[int, int] = {}
        reached = now
        while under_way and sum(samples.values()) < target:
            end, peer = heappop(under_way)
            samples = {one: count for one, count in samples.items() if losses[one] >= end}
            if losses[peer] < end:
                continue
            reached, samples[peer] = end, samples.get(peer, 0) + batch
            if sum(samples.values()) < target:
                heappush(under_way, (ends(peer, end), peer))
        begin_average = reached
        for end, peer in sorted(under_way):
            if losses[peer] < min(end, reached + matchmaking):
                samples.pop(peer, None)
            elif end <= reached + matchmaking:
                samples[peer] = samples.get(peer, 0) + batch
                begin_average = end
            else:
                samples.pop(peer, None)
                late[peer] = end + copied(machines[peer], size)
                begin_average = reached + matchmaking
        if not samples:  # all were lost
            now = members.next_join(now)
            continue
        end = begin_average + averaged([machines[peer] for peer in samples], size)
        lost = {peer: losses[peer] for peer in samples if losses[peer] < end}
        if lost:  # while they average: again without them
            for peer in lost:
                del samples[peer]
            end = max(lost.values()) + detect
            end += averaged([machines[peer] for peer in samples], size) if samples else 0.0
        if samples:
            yield Update(end, samples)
        now = end


def averaged(group: Sequence[Machine], size: float) -> float:
    """Return the seconds of an average in one group."""
    if len(group) == 1:
        return 0.0
    return all_reduce(group, size).transfer + 2 * max(one.latency for one in group)
