"""wbsp beside what people use today, in real processes on two cores of this machine.

    plan.py           what a run is: cell, entry, setting, seed
    cells.toml        the cells, and the entries with the settings that are swept
    training.py       what the process of every entry has in common: network, text, schedule, sleep
    evaluate.py       the loss of the weights that an entry gives at its end
    entries/          a file an entry, written as its own documentation has it
    start.py          the commands that a user of an entry types
    machines.py       cores, network namespaces and the bytes between them
    events.py         what happens to a machine in the middle of a run
    run.py            one run with its raw logs, and the trial that finds its length
    table.py          the table of what is there
    environments.py   an environment of pip for each tool
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# What is not installed: data and models; and the tests' namespaces.
sys.path += [str(_ROOT), str(_ROOT / "tests/helpers")]
