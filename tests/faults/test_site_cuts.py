"""Sites on hosts of their own, whose lines to the server above are slow and are cut: every example
counts once at both levels, whichever processes die meanwhile.

The hosts are network namespaces, and the workers are fits of Keras. Each line carries 20 Mbit/s and
takes 30 ms each way; an update takes 0.16 s. `WBSP_CUTS=1` runs these tests, for half an hour.
"""

import itertools
import os
import random
import shutil
import time

import hosts
import pytest
from conservation import steps_of
from jobs import until
from sites import Sites

pytestmark = [
    pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not())),
    pytest.mark.skipif("WBSP_CUTS" not in os.environ, reason="takes half an hour: WBSP_CUTS=1"),
    pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")]

SEED = int(os.environ.get("WBSP_KILLS_SEED", "0"))
LINE = hosts.Line(mbit=20, ms=30)
SIZE = 100_000  # floats
CUTS = list(itertools.product((3, 12, 60), ("both", "in", "out")))


class CutSites(Sites):
    """Two sites and the server above, each on a host of its own."""

    def start_all(self):
        for site in range(self.number):
            self.start_site(site)
            for worker in range(self.each):
                self.fit(site, worker)

    def fit(self, site, worker):
        return self.start_fit(site, worker, size=SIZE, seconds=0.02 * (1 + worker))

    def continue_all(self):
        """Wait until the server above has answered two more updates of each site, and each worker
        has made two more steps."""
        def counted():
            return [*map(self.answered, range(self.number)),
                    *(len(job.find("^step .* done")) for job in itertools.chain(*self.workers))]
        before = counted()
        until(lambda: all(now >= then + 2 for now, then in zip(counted(), before, strict=True)),
              "all sites and workers to continue")

    def kill(self, draw, victim):
        """kill -9 the process, anywhere between two cuts, and restart it; return which it was."""
        site, worker = draw.randrange(self.number), draw.randrange(self.each)
        match victim:
            case "worker":
                self.workers[site][worker].kill()
                self.fit(site, worker)
                return f"worker {worker} of site {site}"
            case "site":
                self.sites[site].kill()
                self.start_site(site, "--resume").until("resuming from version")
                return f"the server of site {site}"
            case "top":
                self.top.kill()
                self.start_top("--resume").until("resuming from version")
                return "the server above"
        raise ValueError(victim)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seconds", "way"), CUTS)
def test_processes_die_while_lines_are_cut(jobs, seconds, way):
    """A worker, a site's server and the server above are killed, each in another network cut."""
    draw = random.Random(f"{SEED} {seconds} {way}")
    above, inside = draw.choice(["asp", "bsp", "pcc"]), draw.choice(["asp", "bsp", "pcc"])
    with hosts.Hosts("top", "site0", "site1", lines={"site0": LINE, "site1": LINE}) as network:
        sites = CutSites(jobs, above, inside, hosts=network)
        sites.start_all()
        sites.continue_all()
        for victim in draw.sample(["worker", "site", "top"], 3):
            cut_off = draw.choice(["top", "site0", "site1"])
            network.cut(cut_off, way)
            end, before = time.monotonic() + seconds, draw.uniform(0, seconds)
            time.sleep(before)
            name = sites.kill(draw, victim)
            time.sleep(max(0.0, end - time.monotonic()))
            network.mend(cut_off, way)
            mended = time.monotonic()
            sites.continue_all()
            print(f"{above} above {inside}: {cut_off} cut off for {seconds} s, {way}; after "
                  f"{before:.1f} s {name} was killed; {time.monotonic() - mended:.1f} s later all "
                  "continue")
        sites.stop_workers()
        sites.end_well()
        saved = sites.conserved(told=True)
        print(f"version {saved.state.version}, steps of the sites {steps_of(saved.state)}")
