"""Hosts that are cut off from the others: the run has one history, and nothing is lost.

The hosts are network namespaces. Silence proves nothing, so this takes as long as TCP waits for
an acknowledgement: half a minute. `WBSP_CUTS=1` asks for them, half an hour.
"""

import itertools
import os
import shutil
import time

import hosts
import pytest
from jobs import until
from server_and_standby import TOKEN, ServerAndStandby

pytestmark = [pytest.mark.skipif("WBSP_CUTS" not in os.environ,
                                 reason="takes half an hour: WBSP_CUTS=1"),
              pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))]


@pytest.fixture
def network():
    with hosts.Hosts("server", "standby", "w0", "w1") as network:
        yield network


def test_a_server_that_was_cut_off_yields_to_the_elected_standby(jobs, network):
    """Both workers can reach the standby, which takes over. The first server learns that only when
    it is reconnected, and then ends without an entry in the run's history."""
    pair = ServerAndStandby(jobs, hosts=network)
    workers = [pair.worker(60, seconds=0.01, hold_at=30), pair.worker(60, seconds=0.01)]
    pair.standby.until("holding version")
    workers[0].until("step 30 done")
    network.cut("server")
    pair.standby.until("taking over from the server at .*: 2 of 2 workers voted for this standby")
    pair.server.until("0 of 2 workers voted for this server, half of them are needed")
    network.mend("server")
    pair.server.until("the server at .* has taken over .epoch 2, here 1.")
    assert pair.server.ends() == 1
    pair.server.was_clean()
    pair.go()
    pair.ends(pair.standby)


def test_a_standby_that_was_cut_off_is_not_needed(jobs, network):
    """The workers stay with the server, which continues alone once half of them have voted for it;
    the standby reconnects, and follows again."""
    pair = ServerAndStandby(jobs, hosts=network)
    for _ in range(2):
        pair.worker(1_000_000, seconds=0.02, stop_when_told=True)
    pair.standby.until("holding version")
    network.cut("standby")
    pair.server.until("[12] of 2 workers voted for this server; continuing without a standby")
    pair.standby.until("0 of 2 workers voted for this process, more than half of them are needed")
    network.mend("standby")
    until(lambda: len(pair.server.find("the standby at .* holds version")) == 2, "it to follow")
    pair.go()
    pair.ends(pair.server, pair.standby)


CUTS = list(itertools.product(("server", "standby", "w0"), (3, 12, 60), ("both", "in", "out")))


@pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("host", "seconds", "way"), CUTS)
def test_a_network_cut_and_its_end_lose_nothing(jobs, network, host, seconds, way):
    """Whichever server serves after it, both workers continue, and end with the same model."""
    pair = ServerAndStandby(jobs, hosts=network)
    for pace in (0.01, 0.02):
        pair.worker(1_000_000, seconds=pace, stop_when_told=True, patience=300.0)
    pair.standby.until("holding version")
    for worker in pair.workers:
        worker.until("step 5 done")
    network.cut(host, way)
    time.sleep(seconds)
    network.mend(host, way)
    known = pair.newest()
    until(lambda: min(pair.versions()) > known + 5, "both workers to continue")
    took_over = bool(pair.standby.find("taking over"))
    print(f"{host} cut off for {seconds} s, {way}: the {'standby' if took_over else 'server'} "
          "serves")
    if took_over:
        assert pair.server.ends() == 1 and pair.server.find("has taken over")
    pair.go()
    pair.ends(*([pair.standby] if took_over else [pair.server]))


@pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize(("seconds", "way"), list(itertools.product((3, 12, 60),
                                                                   ("both", "in", "out"))))
def test_a_shard_that_is_cut_off_reconnects(jobs, seconds, way, standby):
    """The shards have hosts of their own; without one of the two training stops."""
    names = "s0", "s1"
    with hosts.Hosts("server", "standby", "w0", "w1", *names) as network:
        token = jobs.folder / "token"
        token.write_text(TOKEN)
        for name in names:
            jobs.shard(2706, "--host=0.0.0.0", f"--token_file={token}", space=network.space(name))
        at = ",".join(f"{network.address[name]}:2706" for name in names)
        pair = ServerAndStandby(jobs, hosts=network, shards=at, standby=standby,
                                flags=["--check_period=1"])
        for pace in (0.01, 0.02):
            pair.worker(1_000_000, seconds=pace, stop_when_told=True, patience=300.0)
        for worker in pair.workers:
            worker.until("step 5 done")
        if standby:
            until(lambda: pair.held({}), "the server to know what the standby holds")
        network.cut("s1", way)
        time.sleep(seconds)
        network.mend("s1", way)
        known = pair.newest()
        until(lambda: min(pair.versions()) > known + 5, "both workers to continue")
        print(f"a shard cut off for {seconds} s, {way}, {'a' if standby else 'no'} standby: lost "
              f"{len(pair.server.find('resuming from the newest checkpoint'))} times")
        pair.go()
        for worker in pair.workers:
            worker.ends_well()
        pair.ends(pair.serving)
