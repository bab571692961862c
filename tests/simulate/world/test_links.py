"""Fair-share links: max-min fair, against a brute-force fluid model."""

import random

import pytest

from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.links import FairShareLink

INF = float("inf")


def ends(capacity, transfers):
    """Times at which transfers (start, size, cap) end, in their order."""
    clock, result = Clock(), {}
    interface = FairShareLink(clock, capacity)

    def begin(i, size, cap):
        interface.carry(size, cap, 0.0, 0.0, lambda: result.setdefault(i, clock.now))
    for i, (start, size, cap) in enumerate(transfers):
        clock.at(start, begin, i, size, cap)
    clock.run()
    return [result[i] for i in range(len(transfers))]


def brute_force(capacity, transfers):
    """The same times, by water-filling anew at every change."""
    left = {i: size for i, (_, size, _) in enumerate(transfers)}
    now, result = 0.0, [0.0] * len(transfers)
    while left:
        running = [i for i in left if transfers[i][0] <= now]
        rates, spare = {}, capacity
        for n, i in enumerate(sorted(running, key=lambda i: transfers[i][2])):
            rates[i] = min(transfers[i][2], spare / (len(running) - n))
            spare -= rates[i]
        starts = [transfers[i][0] - now for i in left if transfers[i][0] > now]
        pause = min([left[i] / rates[i] for i in running] + starts)
        for i in running:
            left[i] -= rates[i] * pause
        now += pause
        for i in running:
            if left[i] <= 1e-9 * transfers[i][1]:
                del left[i]
                result[i] = now
    return result


@pytest.mark.parametrize("transfers, expected", [
    ([(0, 6, INF)], [1.5]),
    ([(0, 6, 1)], [6.0]),
    ([(0, 6, INF), (0, 6, INF)], [3.0, 3.0]),
    ([(0, 6, 1), (0, 6, INF)], [6.0, 2.0]),
    ([(0, 6, 3), (1, 6, 3)], [2.5, 3.5]),  # 3 B/s alone, 2 and 2 together
    ([(0, 8, INF), (1, 1, INF)], [2.25, 1.5]),
    ([(0, 0, 2), (0, 4, 2)], [0.0, 2.0]),
])
def test_shares_of_four_bytes_a_second(transfers, expected):
    assert ends(4.0, transfers) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_random_transfers_agree_with_water_filling(seed):
    draw = random.Random(seed)
    transfers = [(draw.choice([0, 1, 2.5, draw.uniform(0, 9)]), draw.uniform(0.1, 20),
                  draw.choice([INF, 1.0, 3.0, draw.uniform(0.1, 8)]))
                 for _ in range(draw.randint(2, 25))]
    assert ends(5.0, transfers) == pytest.approx(brute_force(5.0, transfers), rel=1e-9)


@pytest.mark.parametrize("capacity", [INF, 4.0])
def test_latency_precedes_and_follows_the_transfer(capacity):
    clock, times = Clock(), []
    FairShareLink(clock, capacity).carry(8.0, 2.0, 0.5, 0.25, lambda: times.append(clock.now))
    clock.run()
    assert times == [0.5 + 4.0 + 0.25]


def test_a_cancelled_transfer_never_ends_and_frees_its_share():
    clock, over = Clock(), []
    interface = FairShareLink(clock, 2.0)
    first = interface.carry(4.0, INF, 0.0, 0.0, over.append, "first")
    interface.carry(4.0, INF, 0.0, 0.0, lambda: over.append(clock.now))
    early = interface.carry(4.0, INF, 1.5, 0.0, over.append, "early")
    clock.at(1.0, first.cancel)
    clock.at(1.0, early.cancel)
    clock.run()
    assert over == [2.5]  # 1 byte by 1 s, then 3 bytes at 2 B/s
