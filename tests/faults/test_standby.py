"""A server and its standby: one of them is killed in mid-run, and the workers' processes continue.

Each worker writes down what it cut, and the weight of each push that was answered; the final model
must be W_0 and the sum of these, each once, to the last bit.

`WBSP_KILLS=50` kills one of the two so many times under each of four models, for a long night;
`WBSP_KILLS_SEED` chooses which, and when.
"""

import os
import random
import signal
import statistics
import time

import pytest
from jobs import until
from server_and_standby import NEVER, ServerAndStandby

from wbsp.process.host import HOST
from wbsp.runlog.reader import read_run

KILLS = int(os.environ.get("WBSP_KILLS", "2"))
SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))


@pytest.mark.parametrize(("sync", "transport"), [
    ("pcc", "auto"), ("wbsp", "auto"), ("bsp", "auto"), ("asp", "auto"), ("pcc", "tcp")])
def test_a_standby_takes_over_and_nothing_is_lost(jobs, sync, transport):
    pair = ServerAndStandby(jobs, sync, flags=(NEVER, f"--transport={transport}"))
    pair.trains()
    shares = transport == "auto" and HOST.memory.available()
    pair.server.until("standby at .*, over " + ("shared memory" if shares else "TCP"))
    pair.server.kill()
    pair.standby.until("taking over from the server at .*: its process has ended")
    pair.go()
    pair.ends(pair.standby)
    assert [e["epoch"] for e in pair.standby.events("took_over")] == [2]
    assert {e["worker"] for e in pair.standby.events("reattach")} == {0, 1}
    failures = read_run(pair.standby.folder).summary["failures"]
    assert (failures["took_over"], failures["reattach"]) == (1, 2)
    # without the standby, all would be resent from W_0 on
    assert all(e["first"] > 0 for e in pair.standby.events("resent"))


def test_the_standby_may_die(jobs):
    pair = ServerAndStandby(jobs)
    pair.trains()
    pair.standby.kill()
    pair.server.until("the standby at .* has ended; continuing without a standby")
    pair.go()
    pair.ends(pair.server)
    assert [e["epoch"] for e in pair.server.events("alone")] == [3]


def test_a_run_with_a_standby_ends_well_without_a_fault(jobs):
    pair = ServerAndStandby(jobs)
    for _ in range(2):
        pair.worker(60, seconds=0.005)
    pair.ends(pair.server, pair.standby)
    assert pair.standby.find("the run has ended: all workers finished")


@pytest.mark.slow
@pytest.mark.timeout(240 + 60 * KILLS)
@pytest.mark.parametrize("sync", ["bsp", "wbsp", "pcc", "asp"])
def test_server_or_standby_die_repeatedly_without_loss(jobs, sync):
    """Who was killed is started again by the same command, and becomes the other's standby."""
    draw, pair, waits = random.Random(f"{sync} {SEED}"), ServerAndStandby(jobs, sync), []
    for seconds in (0.004, 0.01):
        pair.worker(1_000_000, seconds=seconds, stop_when_told=True)
    pair.workers[0].until("step 5 done")
    serves = "server"
    for _ in range(KILLS):
        other = "standby" if serves == "server" else "server"
        getattr(pair, other).until("holding version")
        version = pair.newest() + draw.randint(0, 20)
        until(lambda least=version: pair.newest() >= least, "more versions")
        victim = draw.choice(["server", "standby"])
        known, since = pair.newest(), time.monotonic()
        pair.kill(victim)
        until(lambda least=known: pair.newest() > least + 1, "a version after the kill")
        waits.append(time.monotonic() - since)
        serves = other if victim == serves else serves
    pair.go()
    pair.ends(getattr(pair, serves))
    print(f"{sync}: {KILLS} kills; seconds to the next version: median "
          f"{statistics.median(waits):.2f}, most {max(waits):.2f}")


def test_the_memory_of_a_frozen_standby_is_not_changed(jobs):
    """Meanwhile versions that it does not know are made, in any free memory."""
    pair = ServerAndStandby(jobs, "asp")
    pair.trains()
    pair.standby.signal(signal.SIGSTOP)
    known = pair.newest()
    until(lambda: pair.newest() > known + 30, "more versions")
    pair.server.kill()
    pair.standby.signal(signal.SIGCONT)
    pair.standby.until("taking over from the server at")
    pair.go()
    pair.ends(pair.standby)


def test_a_server_restarted_at_once_yields_to_its_standby(jobs):
    """Its checkpoint is older than what the standby holds."""
    pair = ServerAndStandby(jobs)
    pair.trains()
    pair.standby.signal(signal.SIGSTOP)
    pair.server.kill()
    pair.server = pair.start_server("--resume")
    pair.server.until("listening on port .*, following the server at")
    pair.standby.signal(signal.SIGCONT)
    pair.standby.until("taking over from the server at")
    pair.go()
    pair.ends(pair.standby, pair.server)


def test_a_process_with_an_older_state_is_not_overtaken(jobs):
    """A server that was replaced is the standby now; it holds more than its own checkpoint."""
    pair = ServerAndStandby(jobs)
    for pace in (0.01, 0.015):  # one that waits may keep a version from being made
        pair.worker(1_000_000, seconds=pace, stop_when_told=True)
    pair.standby.until("holding version")
    pair.workers[0].until("step 30 done")
    pair.kill("server")
    pair.standby.until("taking over from the server at")
    until(lambda: pair.held({}), "the first server to be the standby")
    pair.server.signal(signal.SIGSTOP)
    pair.standby.kill()
    pair.standby = pair.start_standby("--resume")
    pair.standby.until("listening on port .*, following the server at")
    pair.server.signal(signal.SIGCONT)
    pair.server.until("taking over from the server at")
    pair.go()
    pair.ends(pair.server, pair.standby)


def test_a_process_that_cannot_be_the_standby_is_refused_with_the_reason(jobs):
    pair = ServerAndStandby(jobs)
    pair.server.until("standby at")
    other = pair.jobs.server("--base_dir=other", f"--standby_of={pair.addresses[0]}", sync="bsp")
    assert other.ends() == 1
    other.was_clean()
    assert other.find("refused: the standby and the server disagree: sync is 'bsp' on the standby "
                      "and 'pcc' on the server; start both with the same value")
    second = pair.jobs.server("--base_dir=run", f"--standby_of={pair.addresses[0]}").listens()
    time.sleep(1.5)  # it asks again and again
    second.signal(signal.SIGTERM)
    assert second.ends() == 128 + signal.SIGTERM
    second.was_clean()
    assert len(pair.server.find("standby at")) == 1, "there is one at a time"


def test_a_standby_without_a_server_refuses_workers(jobs):
    address = "localhost:1"  # no process listens there
    standby = jobs.server("--base_dir=run", f"--standby_of={address}").listens()
    worker = jobs.integer_worker(standby.address, 0, steps=5)
    worker.until("is a standby of the server at localhost:1")
    standby.signal(signal.SIGINT)
    assert standby.ends() == 128 + signal.SIGINT
    worker.signal(signal.SIGTERM)
    assert worker.ends() != 0
    worker.was_clean()


def test_a_bad_address_of_the_standby_is_refused_in_one_line(jobs):
    standby = jobs.server("--base_dir=run", "--standby_of=somewhere")
    assert standby.ends() == 1
    standby.was_clean()
    assert standby.lines == ["wbsp.ps: address 'somewhere' is not host:port, for example "
                             "localhost:2606"]
