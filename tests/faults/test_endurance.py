"""Eight workers through faults of all kinds, for `WBSP_MINUTES`.

A server of two shards and its standby. Random draws decide which process dies, is cut off or is
flooded. After each fault there must be newer versions. The final model must be W_0 plus each cut,
once, to the last bit. A process that lives all the time must not grow.
"""

import contextlib
import os
import random
import re
import signal
import statistics
import time

import psutil
import pytest
from hostile_peer import Peer, RawPeer
from integer_replica import IntegerReplica
from jobs import until
from proxy import Proxy
from server_and_standby import ServerAndStandby

from wbsp.wire.messages import codec as m

MINUTES = float(os.environ.get("WBSP_MINUTES", "0"))
SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))
WORKERS = 8
GROWTH = 4e6  # bytes that a worker's memory may grow by between the second and the last quarter

pytestmark = pytest.mark.skipif(not MINUTES, reason="takes long: WBSP_MINUTES=60")


def version_of(worker):
    """The version of a worker, by its last line."""
    found = re.findall(r"done, version (\d+)", "\n".join(worker.newest_lines))
    return int(found[-1]) if found else 0


def flood(port, draw):
    """Send frames of all kinds that no correct peer sends, for a second."""
    end = time.monotonic() + 1
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            with RawPeer(port) as peer, contextlib.suppress(OSError):  # it is cut off
                while time.monotonic() < end:
                    body = draw.choice([draw.randbytes(draw.randint(0, 250)),
                                        m.encode(m.Fetch(draw.randint(0, 9))),
                                        m.encode(m.Heartbeat(None))[:-1]])
                    peer.socket.sendall(20 * (b"\0" + bytes([len(body)]) + body))


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 900)
def test_faults_of_all_kinds(jobs):
    draw = random.Random(SEED)
    pair = ServerAndStandby(jobs, workers=WORKERS, shards=2, flags=["--check_period=1"])
    known, proxies = pair.addresses, [Proxy(port) for port in pair.ports]
    with contextlib.ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(proxy)
        for index in range(WORKERS):  # half of them can be cut off
            pair.addresses = [proxy.address for proxy in proxies] if index % 2 else known
            pair.worker(10**9, seconds=draw.choice([0.02, 0.05, 0.2]), stop_when_told=True,
                        patience=300.0)
        pair.addresses = known
        pair.workers[0].until("step 5 done")
        faults, waits, memory = dict.fromkeys(
            ("serves", "waits", "shard", "frozen", "cut", "flood"), 0), [], []
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            until(lambda: pair.held({}) and pair.shards(), "a standby that holds something")
            fault = draw.choice(list(faults))
            faults[fault] += 1
            newest = max(map(version_of, pair.workers))
            match fault:
                case "serves" | "waits":
                    server = "server" if pair.serving is pair.server else "standby"
                    other = {"server": "standby", "standby": "server"}[server]
                    pair.kill(server if fault == "serves" else other)
                case "shard":
                    draw.choice(pair.shards()).kill()
                case "frozen":
                    worker = draw.choice(pair.workers)
                    worker.signal(signal.SIGSTOP)
                    time.sleep(draw.choice([1, 10]))
                    worker.signal(signal.SIGCONT)
                case "cut":
                    for proxy in proxies:
                        proxy.cut()
                case "flood":
                    flood(draw.choice(pair.ports), draw)
            since = time.monotonic()
            until(lambda least=newest + 2: min(map(version_of, pair.workers)) >= least,
                  f"newer versions after the fault {fault!r}")
            waits.append(time.monotonic() - since)
            memory.append([psutil.Process(worker.process.pid).memory_info().rss
                           for worker in pair.workers])
            time.sleep(draw.uniform(0, 4))
        pair.go()
        for worker in pair.workers:
            worker.ends_well()
        pair.ends(pair.serving)
    quarter = len(memory) // 4
    grown = [statistics.median(one[-quarter:]) - statistics.median(one[quarter:2 * quarter])
             for one in zip(*memory, strict=True)]
    print(f"{faults}; seconds until all have newer versions: median {statistics.median(waits):.1f},"
          f" most {max(waits):.1f}; the workers' memory grew by {max(grown) / 1e6:.1f} MB at most")
    assert min(faults.values()) > 0 or MINUTES < 5
    assert max(grown) < GROWTH


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_million_malformed_messages(jobs):
    """No message counts, and the server does not grow."""
    draw = random.Random(SEED)
    pair = ServerAndStandby(jobs, standby=False, flags=["--check_period=1"])
    for seconds in (0.02, 0.05):
        pair.worker(10**9, seconds=seconds, stop_when_told=True)
    pair.workers[0].until("step 50 done")
    layout = IntegerReplica(0).layout
    right = [m.encode(message) for message in (
        m.Hello(m.PROTOCOL, 0, {}), m.Join(layout), m.Fetch(3), m.Heartbeat(None),
        m.Reattach(m.PROTOCOL, 0, "ab12", 1, layout, 0, 9, 9, 3, False, False, 1.0),
        m.Leaving("finished", True, None), m.Goodbye(), m.Elected(2), m.Held(1, 1))]
    process = psutil.Process(pair.server.process.pid)
    before, sent = 0, 0
    while sent < 1_000_000:
        with Peer(pair.server.address) as peer:
            for _ in range(2_000):  # the server may cut the connection, if it lags behind
                frame = bytearray(draw.choice(right))
                for _ in range(draw.randint(1, 4)):
                    frame[draw.randrange(len(frame))] = draw.randrange(256)
                peer.send(bytes(frame[:draw.randint(0, 2 * len(frame))]),
                          *([b"more"] if draw.random() < 0.1 else []))
                sent += 1
            until(lambda: peer.is_answered(m.Ask("no run"), m.NotServing),
                  "all before to be handled")
        before = before or process.memory_info().rss  # memory that is allocated once is there
    grown = process.memory_info().rss - before
    assert grown < 10e6
    pair.go()
    pair.ends(pair.server)
    counted = pair.server.events("malformed")[-1]["total"]
    print(f"{sent:,} messages, {counted:,} of them malformed; the server grew by "
          f"{grown / 1e6:.1f} MB")
    assert counted > 0.8 * sent
