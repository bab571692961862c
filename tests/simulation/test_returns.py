"""Who returns on its own port is itself: a machine with a standby, a site's server or a shard, and
with workers, starts again, while the server that they follow lives and has lost nothing.

Only one process can listen at an address, so the new one there proves the end of the old one: no
server waits for votes of processes that have ended.
"""

import re
from dataclasses import replace

import pytest
from simulated.cluster import Cluster
from simulated.plan import Plan
from simulated.series_world import Series, SeriesPlan
from simulated.site_world import Sites, SitesPlan

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))]
MOMENTS = ["standby at standby0?:", "holds version"]  # it has nothing yet; it has a version


def soon(run, line, act):
    """Act as soon as a line of any process is there."""
    if any(re.search(line, one) for one in run.said):
        act()
    else:
        run.world.after(0.003, lambda: soon(run, line, act))


def restart(run, name, start, members):
    """A machine starts again: its process `name` first, then these workers."""
    run.say(f"--- the machine of {name} and its workers starts again")
    run.processes[name].kill()
    run.world.after(run.rng.uniform(0.05, 0.5), start)
    run.notes["restarts"] += 1

    def workers():
        for member in members:
            if member.process is not None and member.process.alive and not member.ended:
                member.process.kill()
                member.comes_again()
    run.world.after(run.rng.uniform(0.05, 0.8), workers)


def served_on(run, *servers):
    """These servers have continued alone, or with the new process, and requested no votes."""
    assert run.notes["restarts"] == 1
    for name in servers:
        assert run.codes[name] == [0], run.said[-5:]
        assert not any(f" {name}: " in line and "voted" in line for line in run.said)


@pytest.mark.parametrize("line", MOMENTS, ids=["with nothing", "with a version"])
@pytest.mark.parametrize("seed", SEEDS)
def test_restarted_workers_and_standby_of_a_site_do_not_end_it(line, seed, folder):
    run = Sites(SitesPlan("asp", "asp", standby=True), seed, folder)
    run.plan.kill_workers = 1  # below: workers' processes end, and others take their place
    site = run.sites[0]
    soon(run, f"site0: .*{line}", lambda: restart(
        run, "standby0", lambda: run.start_site(site, name="standby0"), site.members))
    served_on(run.run(), "site0", "top")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restarted_standby_above_and_site_do_not_end_the_run(seed, folder):
    """The site is the worker of the server above, and votes for its standby."""
    run = Sites(SitesPlan("asp", "asp", top_standby=True), seed, folder)
    site = run.sites[0]

    def again():
        restart(run, "toptoo", lambda: run.start_top(name="toptoo"), ())
        if run.has_begun("site0"):
            run.processes["site0"].kill()
            run.world.after(run.rng.uniform(0.3, 0.8), lambda: run.start_site(site))
    soon(run, "top: .*holds version", again)
    served_on(run.run(), "top")


@pytest.mark.parametrize("line", MOMENTS, ids=["with nothing", "with a version"])
@pytest.mark.parametrize("seed", SEEDS)
def test_restarted_workers_and_standby_with_shards_do_not_end_the_server(line, seed, folder):
    run = Cluster(Plan("asp", workers=2, standby=True, shards=2, steps=12), seed, folder)
    soon(run, f"server: .*{line}", lambda: restart(
        run, "standby", lambda: run.start_server("standby"), run.members))
    served_on(run.run(), "server")


@pytest.mark.parametrize("standby", [False, True], ids=["alone", "with a standby"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_shard_restarted_at_its_port_is_used_again(standby, seed, folder):
    run = Cluster(Plan("asp", workers=2, standby=standby, shards=2, steps=20,
                       speeds=(0.3,)), seed, folder)
    line = "the standby at standby:.* holds version 0" if standby else "version 0 "
    soon(run, line, lambda: restart(run, "s0", lambda: run.start_shard(0), run.members))
    run.run()
    assert run.notes["restarts"] == 1 and run.over
    assert all(member.final is not None for member in run.members)
    assert 0 in run.codes["server"] + run.codes.get("standby", [])


@pytest.mark.parametrize("world, plan, seeds, says", [
    (Cluster, Plan(steps=60), range(6, 13), "another connection, whose process may have ended"),
    (Series, SeriesPlan(chosen=True), range(7), "free if its process has ended")],
    ids=["its own index", "a chosen index"])
def test_a_worker_restarted_behind_a_network_cut_is_not_refused(world, plan, seeds, says, folder):
    """The server does not notice the old process's end, and had just received its message."""
    plan = replace(plan, cuts=3, kill_workers=3, naps=(1.5, 3.0))
    runs = [world(plan, seed, folder / str(seed)).run() for seed in seeds]
    said = [line for run in runs for line in run.said]
    assert any(says in line for line in said)
    assert not any("already connected" in line or "by connected workers" in line for line in said)


class LosesCopies(Cluster):
    """The connection to the standby breaks with each of four copies; then both servers die."""

    def __init__(self, plan, seed, folder, first):
        self._first, self._copies = first, 0
        super().__init__(plan, seed, folder)
        self.world.on_send = self._sent

    def _sent(self, process, frames):
        if process.name == "server" and bytes(frames[0][1:6]) == b"\xa4Copy":
            self._copies += 1
            if self._first <= self._copies < self._first + 4:
                self.world.after(0.0, self._break)
            if self._copies == self._first + 3:
                self.world.after(0.03, self._both_die)

    def _break(self):
        for one in self.world.connections():
            if one.open and {one.dealer.process.name, one.router.process.name} == {
                    "server", "standby"}:
                one.close()

    def _both_die(self):
        self.laws.two_deaths = True
        for name in () if self.over else ("standby", "server"):
            self.dies(name)


def test_workers_can_send_again_what_a_file_lacks_though_copies_of_it_were_lost(folder):
    """The file had a copy that the standby lacked, and workers had merged pushes of before and
    after it."""
    plan = Plan("asp", workers=2, standby=True, steps=30, slow=0.05, period=0.1,
                speeds=(0.02, 0.03), latency=(0.005, 0.01), hours=0.1)
    runs = [LosesCopies(plan, 3, folder, first).run() for first in (2, 3, 4, 5)]
    assert all(run.notes["kills"] == 2 for run in runs)
