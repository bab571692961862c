"""The published heterogeneity: every odd worker sleeps before each of its steps.

Settings H1, H2 and H3 of the WBSP paper's CIFAR-10 experiments, and that of its ImageNet runners
(github.com/Dora233/WBSP, `wk_wbsp.py` and `wk_pcc_v2.py` of each folder). The launchers and the
simulator share them.
"""

from __future__ import annotations

SLEEPS = {"none": 0.0, "H1": 0.5, "H2": 1.0, "H3": 1.5, "imagenet": 200.0}  # setting -> seconds
FLAG_HELP = "published sleeps of odd workers before each step: " + ", ".join(
    f"{name} {seconds:g} s" for name, seconds in SLEEPS.items())


def sleep_seconds(setting: str, worker: int) -> float:
    """Return the seconds that a worker sleeps before each step, by a key of `SLEEPS`."""
    return SLEEPS[setting] if worker % 2 else 0.0
