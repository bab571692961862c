"""How long sites take in virtual time for data that all workers share, beside the ideal.

    python -m lab.benchmarks.site_data [--latency 0 0.05 0.5] [--epochs 5 20] [--sites 2 4]
                                   [--sync pcc pcc/pcc auto/auto asp/bsp bsp/bsp] [--json FILE]

`pcc/auto` is pcc within the sites and auto between them; `pcc` is one server for all workers, each
of which is behind the line. Ideal: the examples at the sum of the workers' speeds. Time runs from
the first request to join to the answer to the last push; equal commands give equal figures.
"""

from __future__ import annotations

import argparse

from scripts.harness import print_table, write_json
from wbsp.core.messages import SharedData
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.nodes.site import Site
from wbsp.simulate.workloads.base import TimingWorkload
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import create

N, BATCH = 12_800, 64
STEPS = {2: [[0.05, 0.1], [0.1, 0.4]],  # seconds of each worker's step, by site
         4: [[0.05, 0.1], [0.1, 0.4], [0.1], [0.05, 0.2, 0.4]]}
WITHIN = 0.0001  # seconds to the site's server, one way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latency", type=float, nargs="+", default=[0.0, 0.05, 0.5],
                        help="of a site's line, one way, in seconds")
    parser.add_argument("--epochs", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 4], choices=[*STEPS])
    parser.add_argument("--sync", nargs="+",
                        default=["pcc", "pcc/pcc", "auto/auto", "asp/bsp", "bsp/bsp"])
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    rows = [{"sites": sites, "sync": sync, "epochs": epochs,
             "ratios": [ratio(sync, STEPS[sites], latency, epochs) for latency in args.latency]}
            for sites in args.sites for sync in args.sync for epochs in args.epochs]
    print_table(["sites", "model", "epochs", *(f"{latency:g} s" for latency in args.latency)],
                [[str(row["sites"]), str(row["sync"]), str(row["epochs"]),
                  *(f"{one:.2f}" for one in row["ratios"])] for row in rows])
    write_json(args.json, {"site_data": rows})


def ratio(sync: str, steps: list[list[float]], latency: float, epochs: int, n: int = N) -> float:
    """Return the time of a run as a multiple of the ideal.

    Args:
        sync: the model, or those within and between the sites.
        steps: seconds of each worker's step, by site.
        latency: of a site's line, one way, in seconds.
        epochs: of the run.
        n: examples of an epoch.
    """
    inside, _, above = sync.rpartition("/")
    own = WITHIN if inside else WITHIN + latency
    machines = [Machine(constant(seconds), own) for site in steps for seconds in site]
    sites, first = [], 0
    for site in steps if inside else []:
        sites.append(Site(range(first, first + len(site)), create(inside),
                          Machine(constant(0.0), latency)))
        first += len(site)
    ended = []

    def log(now: float, kind: str, **_: object) -> None:
        if kind == "stop":
            ended.append(now)
    cluster = Cluster(create(above), machines, TimingWorkload(BATCH), log=log, sites=sites,
                      data=SharedData(n, BATCH, epochs))
    cluster.run()
    speed = sum(BATCH / seconds for site in steps for seconds in site)
    return ended[0] * speed / (n * epochs)


if __name__ == "__main__":
    main()
