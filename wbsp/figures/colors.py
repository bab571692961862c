"""The colors of all figures and of the watch page, in a module without drawing code.

They are those of Okabe and Ito, which color-blind readers can tell apart.
"""

from __future__ import annotations

from wbsp.core.stats import Phase

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#8A8A8A"

PHASE_COLORS: dict[Phase, str] = {
    "compute": GREEN, "push": ORANGE, "pull": SKY, "wait": VERMILLION, "data": PURPLE,
    "validation": BLUE, "callbacks": YELLOW, "data or compute": GREY,
}

# Related models share a color and differ by the dash; other models are grey.
SYNC_LOOKS = {
    "wbsp": (BLUE, "-"), "pcc": (VERMILLION, "-"), "bsp": (BLACK, "-"), "ssp": (ORANGE, "-"),
    "asp": (GREEN, "-"), "adsp": (PURPLE, "-"), "nbsync": (SKY, "-"), "elasticbsp": (YELLOW, "-"),
    "dssp": (ORANGE, "--"), "esync": (SKY, "--"), "lbbsp": (BLACK, "--"), "saps": (PURPLE, "--"),
    "fedasync": (GREEN, "--"),
}


def sync_look(sync: str) -> tuple[str, str]:
    """Return color and dash ("-" or "--") of a synchronization model, equal in all figures."""
    return SYNC_LOOKS.get(sync, (GREY, "-"))
