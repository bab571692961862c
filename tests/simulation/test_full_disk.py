"""A disk that is full as a run ends: the final version is saved if there is space within a minute.
"""

import pytest
from simulated.cluster import Cluster
from simulated.command import scratch
from simulated.plan import Plan


@pytest.mark.parametrize("seconds, code", [(26.0, 0), (1e9, 1)],
                         ids=["space is made", "it stays full"])
def test_a_server_with_a_full_disk_tries_for_a_minute_to_save_the_final_version(seconds, code):
    with scratch() as folder:
        cluster = Cluster(Plan("pcc", workers=2, steps=4, full=1e-12), 1, folder)
        phase, machine, ends = cluster.phase, cluster.machine("server"), []

        def is_full_from_the_farewell_on(name, process):
            phase(name, process)
            if name == "farewell":
                machine.full = 1.0
                ends.append(cluster.world.now)
                cluster.world.after(seconds, lambda: setattr(machine, "full", 0.0))

        cluster.phase = is_full_from_the_farewell_on
        cluster.run()
    said = [line for line in cluster.said if "server: " in line]
    assert said[-1].endswith(f"ended with exit code {code}")
    # Who has the final version is noted first, and then the version is saved.
    tries = [line for line in said if "run.json" in line and "trying again" in line
             or "trying to save the final version for" in line]
    # A network may be slow to say that all workers have left: the minute begins at the first try.
    begins = ends[0] if code == 0 else float(tries[0].split()[0])
    lasted = float(said[-1].split()[0]) - begins
    assert len(tries) == (2 if code == 0 else 4)
    assert 26 < lasted < 28 if code == 0 else 60 <= lasted < 62
