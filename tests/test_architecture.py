"""The page about the architecture says what the code does."""

import re
import runpy

from jobs import ROOT

PAGE = ROOT / "docs/architecture.md"


def test_the_states_of_a_worker_are_those_of_the_agent():
    states = runpy.run_path(str(ROOT / "scripts/agent_states.py"))
    _, _, rest = PAGE.read_text().partition(states["BEGIN"])
    assert rest.partition(states["END"])[0].strip() == states["text"]().strip(), (
        "docs/architecture.md is out of date: run scripts/agent_states.py")


def test_the_diagrams_hold_every_arrow():
    states = runpy.run_path(str(ROOT / "scripts/agent_states.py"))
    assert states["text"](states["DEPTH"] + 1).strip() in PAGE.read_text()


def test_every_file_and_package_that_the_page_names_exists():
    page = PAGE.read_text()
    named = re.findall(r"`((?:ps|worker|tests|scripts)/[\w/]+\.py)`", page)
    packages = re.findall(r"^\| (`.*?`) \|", page.partition("## The journey")[0], re.MULTILINE)
    packages = [name for cell in packages for name in re.findall(r"`(\w+)`", cell)]
    assert named and packages
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "wbsp" / path).exists(), path
    for name in packages:
        assert (ROOT / "wbsp" / name).is_dir() or (ROOT / f"wbsp/{name}.py").exists(), name
