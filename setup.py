"""What pyproject.toml cannot say of the package: the readme's links, the experiment's networks and
data sets below wbsp/, and an installation that a folder called wbsp/ does not hide."""

import os
import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
EXPERIMENT = "wbsp._experiment"  # what `wbsp simulate` trains, for who has no checkout
EDITABLE = HERE / ".editable"  # all that an editable installation puts on Python's path


def readme() -> str:
    """README.md as a page of its own: relative links lead to the pages of the repository that the
    environment variable WBSP_REPOSITORY names (https://host/owner/wbsp); without it they are plain
    text, and pictures are left out."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    picture, link = r"!\[([^]]*)\]\((?!https?:)([^)]*)\)", r"\[([^]]*)\]\((?!https?:|#)([^)]*)\)"
    if repository := os.environ.get("WBSP_REPOSITORY"):
        text = re.sub(picture, rf"![\1]({repository}/raw/main/\2)", text)
        return re.sub(link, rf"[\1]({repository}/blob/main/\2)", text)
    return re.sub(link, r"\1", re.sub(picture, "", text))


def folders() -> dict[str, str]:
    """Where packages lie. An editable installation has one folder for all: without it, setuptools
    makes a finder for them that comes behind every folder called wbsp/ on the path, so that a clone
    of this repository beside a script hides it."""
    if "editable_wheel" not in sys.argv:
        return {f"{EXPERIMENT}.{name}": name for name in ("data", "models")}
    EDITABLE.mkdir(exist_ok=True)
    if not (EDITABLE / "wbsp").exists():
        os.symlink(Path("..", "wbsp"), EDITABLE / "wbsp")
    return {"": EDITABLE.name}


where = folders()
setup(long_description=readme(), long_description_content_type="text/markdown",
      package_dir=where,
      packages=[*find_packages(include=["wbsp", "wbsp.*"]), *(name for name in where if name)])
