"""Sites: servers that are workers of another server, and every example counts once at both levels.
"""

import contextlib
import os
import random
import signal
import time

import pytest
from integer_replica import IntegerReplica, read_result
from jobs import Jobs, interrupted, until
from proxy import Proxy
from site_server import noted
from sites import Sites, cuts

from wbsp.access import Access
from wbsp.figures.load import gather
from wbsp.runlog.reader import read_run
from wbsp.wire.errors import TransportError
from wbsp.worker.comm.transport import Transport
from wbsp.worker.share import Share

KILLS = int(os.environ.get("WBSP_KILLS", "2"))
EACH = ("asp", "asp"), ("bsp", "bsp"), ("pcc", "pcc")  # rule above, and inside
ONE_OF_EACH = EACH if KILLS > 2 else EACH[1:2]
ONE_OF_TWO = [("bsp", "pcc"), *[("asp", "asp")] * (KILLS > 2)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("above, inside", [("asp", "asp"), ("bsp", "bsp")])
def test_each_sites_progress_is_in_the_model_once(tmp_path, above, inside):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(steps=12, seconds=0.01)
        sites.end_well()
        sites.conserved()
        runs = [read_run(job.folder) for job in (sites.top, *sites.sites)]
        for stats in gather(runs):  # versions from above are versions of a site, too
            assert len(stats.versions) == stats.run.summary["version"]
        assert all(sites.events(site, "adopt") for site in range(2))


@contextlib.contextmanager
def line_to_the_top(jobs, above, inside):
    """Start two sites, of which the first has a line that can be cut; yield both."""
    sites = Sites(jobs, above, inside)
    with Proxy(sites.ports[-1]) as proxy:
        sites.start_site(0, "--transport=tcp", address=proxy.address)
        sites.start_workers(0, stop_when_told=True, seconds=0.03)
        sites.start_site(1)
        sites.start_workers(1, stop_when_told=True, seconds=0.03)
        yield sites, proxy


def cut_off(sites, proxy):
    """Cut the first site off after some cuts, until `proxy.closed` is cleared."""
    after_cuts(sites, 0, 3)
    proxy.closed.set()
    proxy.cut()
    sites.top.until("worker 0 was lost")


def after_cuts(sites, site, number):
    """Wait until a site has taken this number of further cuts."""
    path = sites.record(site) / "cuts.jsonl"
    due = (len(cuts(path)) if path.exists() else 0) + number
    until(lambda: path.exists() and len(cuts(path)) >= due, f"{due} cuts of site {site}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", ONE_OF_EACH)
def test_a_site_server_that_is_killed_and_resumed_pushes_nothing_twice(tmp_path, above, inside):
    draw = random.Random(f"{above} {inside}")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(stop_when_told=True, seconds=0.01)
        for _ in range(KILLS):
            after_cuts(sites, 0, draw.randint(1, 6))
            time.sleep(draw.uniform(0, 0.3))  # anywhere between two cuts
            sites.sites[0].kill()
            sites.start_site(0, "--resume").until("resuming from version")
            sites.sites[0].until("is a worker of the server")
        after_cuts(sites, 0, 1)
        sites.stop_workers()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", ONE_OF_TWO)
def test_the_server_above_can_be_killed_and_resumed(tmp_path, above, inside):
    draw = random.Random(f"top {above} {inside}")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside).start(stop_when_told=True, seconds=0.01)
        for _ in range(KILLS):
            after_cuts(sites, 0, draw.randint(1, 6))
            time.sleep(draw.uniform(0, 0.3))
            sites.top.kill()
            sites.start_top("--resume").until("resuming from version")
            after_cuts(sites, 1, 2)
        sites.stop_workers()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", ONE_OF_TWO)
def test_a_standby_of_the_server_above_takes_over(tmp_path, above, inside):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside)
        standby = sites.start_top_standby()
        for site in range(2):
            sites.start_site(site, address=f"{sites.top.address},{standby.address}")
            sites.start_workers(site, stop_when_told=True, seconds=0.01)
        standby.until("holding version|following the server")
        sites.top.until("the standby at .* holds version")
        after_cuts(sites, 0, 3)
        sites.top.kill()
        sites.top = standby
        sites.top.until("taking over from the server at", 60)
        for site in range(2):
            after_cuts(sites, site, 3)
        sites.stop_workers()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(300)
def test_a_worker_of_a_site_can_be_killed_and_restarted(tmp_path):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs).start(stop_when_told=True, seconds=0.01)
        sites.workers[0][1].until("step 9 done")
        sites.workers[0][1].kill()
        sites.sites[0].until("worker 1 was lost")
        until(lambda: behind(sites, 0)[-1:] == [1], "the server above to know")
        sites.start_worker(0, 1, stop_when_told=True, seconds=0.01).until("step 5 done")
        until(lambda: behind(sites, 0)[-1:] == [2], "the server above to know")
        sites.stop_workers()
        sites.end_well()
        sites.conserved()


def behind(sites, site):
    """The numbers of workers of that site over time, by the log of the server above."""
    return [event["workers"] for event in sites.top.events("site") if event["worker"] == site]


@pytest.mark.timeout(300)
def test_a_site_that_is_cut_off_continues_and_reconnects(tmp_path):
    """Under a rule that never waits, the site continues alone, and pushes its progress later."""
    with Jobs(tmp_path) as jobs, line_to_the_top(jobs, "pcc", "bsp") as (sites, proxy):
        cut_off(sites, proxy)
        before = len(sites.events(0, "commit"))
        until(lambda: len(sites.events(0, "commit")) > before + 20, "versions of its own")
        proxy.closed.clear()
        sites.top.until("worker 0 reconnected")
        after_cuts(sites, 0, 2)
        sites.stop_workers()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(300)
def test_a_site_that_is_cut_off_waits_if_the_rule_above_makes_it_wait(tmp_path):
    with Jobs(tmp_path) as jobs, line_to_the_top(jobs, "bsp", "asp") as (sites, proxy):
        cut_off(sites, proxy)
        stood = len(sites.events(0, "commit"))
        after_cuts(sites, 1, 10)  # alone, at the top
        assert len(sites.events(0, "commit")) == stood
        proxy.closed.clear()
        after_cuts(sites, 0, 2)
        sites.stop_workers()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("inside", ["bsp", "pcc"])
def test_the_server_above_ends_a_sites_run(tmp_path, inside):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, "bsp", inside, options=("--max_steps=12",)).start(seconds=0.01)
        sites.end_well()
        for site in sites.sites:
            assert site.find("stopped: the server above: 12 steps were trained")
        sites.conserved()


@pytest.mark.timeout(200)
def test_an_interrupted_site_pushes_its_rest_and_leaves(tmp_path):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, "pcc", "bsp").start(stop_when_told=True, seconds=0.01)
        after_cuts(sites, 0, 2)
        sites.sites[0].process.send_signal(signal.SIGTERM)
        interrupted(sites.sites[0], signal.SIGTERM)
        for worker in sites.workers[0]:
            worker.ends_well()
        assert sites.top.until("worker 0 left: interrupted by SIGTERM")
        sites.stop_workers()
        for job in (*sites.workers[1], sites.sites[1], sites.top):
            job.ends_well()
        taken = noted(sites.record(0) / "cuts.jsonl")
        assert sum(taken.values()) == sites.accepted(0)
        assert set(taken) == set(noted(sites.record(0) / "answers.jsonl"))


@pytest.mark.timeout(200)
def test_a_site_has_one_token_for_its_workers_and_one_for_the_server_above(tmp_path):
    inside, between = tmp_path / "inside", tmp_path / "between"
    inside.write_text("a secret of the site's own")
    between.write_text("another one, between the two")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, options=(f"--token_file={between}",))
        for site in range(2):
            sites.start_site(site, f"--token_file={inside}", f"--upstream_token_file={between}")
            sites.start_workers(site, steps=5, token_file=str(inside))
        sites.end_well()
        sites.conserved()


@pytest.mark.timeout(200)
def test_a_site_without_the_token_for_the_server_above_ends_with_one_line(tmp_path):
    between = tmp_path / "between"
    between.write_text("a secret that the site lacks")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, options=(f"--token_file={between}",))
        site = sites.start_site(0, "--connect_timeout=10")
        sites.start_workers(0, steps=5)
        assert site.ends() == 1
        assert site.find("stopping: the server above: .* refused the connection: either it has "
                         "another token")
        site.was_clean()


@pytest.mark.parametrize("flags, line", [
    (["--upstream=localhost:2606"], "--upstream needs the index of this site there"),
    (["--site=1"], "--site and --upstream_token_file need the server above: give"),
    (["--upstream=nowhere", "--site=0"], "--upstream: address 'nowhere' is not host:port"),
    (["--upstream=h:1", "--site=0", "--epochs=2"], "--epochs and --upstream do not go together"),
    (["--upstream=h:1", "--site=0", "--shard"], "--shard and --upstream do not go together"),
    (["--upstream=h:1", "--site=0", "--shards=2", "--worker_num=1"],
     "--shards and --upstream do not go together: a site's server holds its model itself")])
def test_flags_that_a_site_lacks_are_refused_in_one_line(tmp_path, flags, line):
    with Jobs(tmp_path) as jobs:
        site = jobs.server(*flags)
        assert site.ends() == 1
        assert len(site.lines) == 1 and site.lines[0].startswith(f"wbsp.ps: {line}"), site.text


@pytest.mark.timeout(200)
def test_mixing_shared_and_own_data_is_refused_in_one_line(tmp_path):
    with Jobs(tmp_path) as jobs:
        top = jobs.server(workers=1).listens()
        site = jobs.server(f"--upstream={top.address}", "--site=0", workers=2).listens()
        worker, replica = Transport(Access(site.address), 0), IntegerReplica(0)
        jobs.integer_worker(site.address, 1, steps=3)
        site.until("worker 1 joined")
        worker.hello({}, 60)
        with pytest.raises(TransportError, match="worker 0 brings data that all workers share, and "
                                                 "the first worker of this site has data of its"):
            worker.join(replica.layout, replica.read, 60, share=Share(12, 4))
        worker.close()


@pytest.mark.timeout(200)
def test_a_rule_that_loses_steps_is_refused(tmp_path):
    with Jobs(tmp_path) as jobs:
        top = jobs.server("--sync_option=adopt=replace", workers=1).listens()
        site = jobs.server(f"--upstream={top.address}", "--site=0", workers=1).listens()
        jobs.integer_worker(site.address, 0, steps=3)
        assert site.ends() == 1
        assert site.find("stopping: the server above runs pcc with adopt=replace, which loses")


@pytest.mark.timeout(200)
def test_a_run_is_not_resumed_as_a_sites(tmp_path):
    with Jobs(tmp_path) as jobs:
        server = jobs.server("--base_dir=run", "--check_period=0.1", sync="asp").listens()
        workers = [jobs.integer_worker(server.address, worker, seconds=0.01) for worker in (0, 1)]
        workers[0].until("step 9 done")
        server.kill()
        port = int(server.address.partition(":")[2])
        site = jobs.server("--base_dir=run", "--resume", "--upstream=localhost:1", "--site=0",
                           sync="asp", port=port)
        assert site.ends() == 1
        assert site.find("this run was started without --upstream, and is not a site's")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("flags", [["--wire=int8"], ["--shards=2"]] + [
    ["--shards=2", "--wire=int8"]] * (KILLS > 2))
def test_the_link_to_the_server_above_has_its_own_format_and_shards(tmp_path, flags):
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, "pcc", "bsp", options=tuple(flags)).start(
            stop_when_told=True, seconds=0.01)
        after_cuts(sites, 0, 4)
        sites.sites[0].kill()
        sites.start_site(0, "--resume").until("is a worker of the server")
        after_cuts(sites, 0, 4)
        sites.stop_workers()
        sites.end_well()
        if "--wire=int8" not in flags:
            sites.conserved(told=True)
        finals = {str(read_result(sites.record(site), worker)["final"])
                  for site in range(2) for worker in range(2)}
        assert len(finals) == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", ONE_OF_EACH)
def test_a_standby_of_a_site_takes_over_and_pushes_nothing_twice(tmp_path, above, inside):
    """Whichever of the two serves is killed, and restarted as the standby of the other."""
    draw = random.Random(f"standby {above} {inside}")
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside)
        for site in range(2):
            sites.start_site(site)
        sites.start_standby(0)
        for site in range(2):
            sites.start_workers(site, stop_when_told=True, seconds=0.01)
        serves, waits = sites.sites[0], sites.standbys[0]
        for _ in range(KILLS):
            waits.until("holding version|following the server")
            serves.until("the standby at .* holds version")
            after_cuts(sites, 0, draw.randint(1, 6))
            time.sleep(draw.uniform(0, 0.3))
            serves.kill()
            waits.until("taking over from the server")
            waits.until("is a worker of the server")
            before, serves = serves, waits
            if before is sites.sites[0]:
                waits = sites.start_site(0, "--resume")
            else:
                waits = sites.start_standby(0, "--resume")
        serves.until("the standby at .* holds version")
        after_cuts(sites, 0, 2)
        sites.stop_workers()
        waits.ends_well()
        sites.sites[0] = serves
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.skipif(KILLS <= 2, reason="takes a minute: WBSP_KILLS=8")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("above, inside", [("bsp", "pcc"), ("asp", "asp")])
def test_a_replaced_site_server_frees_its_place_above(tmp_path, above, inside):
    """The server was stopped, not killed: the standby waits until its connection there ends."""
    with Jobs(tmp_path) as jobs:
        sites = Sites(jobs, above, inside)
        for site in range(2):
            sites.start_site(site)
        stopped, standby = sites.sites[0], sites.start_standby(0)
        for site in range(2):
            sites.start_workers(site, stop_when_told=True, seconds=0.01)
        stopped.until("the standby at .* holds version")
        after_cuts(sites, 0, 3)
        stopped.signal(signal.SIGSTOP)
        standby.until("taking over from the server at .*: 2 of 2 workers voted for this standby")
        standby.until("worker 0 has another connection, whose process may have ended"
                      "|is a worker of the server")  # the latter once that connection is cut
        stopped.signal(signal.SIGCONT)
        assert stopped.ends() == 1 and stopped.find("has taken over")
        stopped.was_clean()
        standby.until("is a worker of the server")
        sites.sites[0] = standby
        after_cuts(sites, 0, 2)
        sites.stop_workers()
        sites.end_well()
        sites.conserved(told=True)


@pytest.mark.timeout(200)
def test_a_standby_that_is_no_site_is_refused_in_one_line(tmp_path):
    with Jobs(tmp_path) as jobs:
        top = jobs.server(workers=1).listens()
        site = jobs.server(f"--upstream={top.address}", "--site=0", workers=1,
                           sync="asp").listens()
        standby = jobs.server(f"--standby_of={site.address}", workers=1, sync="asp")
        assert standby.ends() == 1
        assert standby.find("the server has upstream=.*, and the standby has none"), standby.text
        standby.was_clean()
