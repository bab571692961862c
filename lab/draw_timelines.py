#!/usr/bin/env python
"""Draw docs/figures/timelines.png: the timelines of three workers under bsp, wbsp and pcc.

    lab/draw_timelines.py

The runs are simulated, in some seconds; their files stay in a temporary folder.
"""

import pathlib
import subprocess
import sys
import tempfile

from absl import flags
from reproduction.command import run_command

from wbsp import command
from wbsp.figures import find_runs
from wbsp.figures.load import gather
from wbsp.figures.timeline import draw_timelines

ROOT = pathlib.Path(__file__).parents[1]
TITLES = {
    "bsp": "bsp, bulk synchronous parallel: a worker waits for the next version",
    "wbsp": "wbsp, worker-busy synchronous parallel: a worker waits for the answer to its push",
    "pcc": "pcc, parallel computing and communication: a worker waits for nothing",
}
WINDOW = 2.0, 5.0  # seconds

flags.DEFINE_string("out", str(ROOT / "docs/figures/timelines.png"), "file to write")


def main(argv):
    return run_command("draw_timelines", run, argv)


def run() -> int:
    out = pathlib.Path(flags.FLAGS.out)
    out.parent.mkdir(parents=True, exist_ok=True)  # before anything runs
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([
            sys.executable, "-m", "wbsp.simulate", "--model=timing", "--nofigures",
            f"--cluster={ROOT / 'scripts/clusters/three.toml'}", "--until=10s",
            f"--sync={','.join(TITLES)}", f"--out={folder}"], cwd=ROOT, stdout=subprocess.DEVNULL)
        if made.returncode:
            return made.returncode  # it has said why
        found = {stats.sync: stats for stats in gather(find_runs([folder]))}
        statistics = [found[sync] for sync in TITLES]
        titles = [f"{TITLES[stats.sync]} "
                  f"({stats.total_shares['compute']:.0%} of the time computing)"
                  for stats in statistics]
        print(draw_timelines(statistics, titles, out, WINDOW))
    return 0


if __name__ == "__main__":
    command.run(main, "draw_timelines", __doc__)
