"""The documentation: its links lead somewhere, and its statements on the code are true."""

import ast
import importlib
import re
import runpy

import pytest
from jobs import ROOT

PAGE = ROOT / "docs/explanation/architecture.md"
STATES = ROOT / "docs/reference/states.md"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lab/reports/*.md"),
         *ROOT.glob("lab/*.md"), ROOT / "tests/README.md"]
LAB = ROOT / "lab"  # a checkout need not have it
PUBLISHED = [
    "CUDA_VISIBLE_DEVICES= nohup python -u runcifar10gpu.py --job_name=ps --worker_num=2 "
    "--base_dir=wbsp/ --port_base=2606 >ps.log 2>&1 &",
    "CUDA_VISIBLE_DEVICES=0 nohup python -u runcifar10gpu.py --job_name=worker --worker_index=0 "
    "--base_dir=wbsp/ --port_base=2606 >wk0.log 2>&1 &",
    "CUDA_VISIBLE_DEVICES=1 nohup python -u runcifar10gpu.py --job_name=worker --worker_index=1 "
    "--base_dir=wbsp/ --port_base=2606 >wk1.log 2>&1 &",
]


def anchors(page):
    """The names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.is_relative_to(LAB) and not LAB.exists():
            continue
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("folder", ["docs", *(["lab/reports"] if LAB.exists() else [])])
def test_every_page_is_listed(folder):
    index = ROOT / folder / "README.md"
    listed = re.findall(r"\]\(([^)#\s]+)", index.read_text())
    assert {page.relative_to(index.parent).as_posix() for page in index.parent.glob("**/*.md")
            if page != index} <= set(listed)


def test_the_published_commands_are_word_for_word():
    assert [line.strip() for line in (ROOT / "README.md").read_text().splitlines()
            if "nohup" in line] == PUBLISHED


def test_the_parts_of_the_night_are_on_its_page_and_in_its_workflow():
    parts = re.search(r'^PARTS="(.*)"$', (ROOT / "scripts/nightly.sh").read_text(), re.M)[1].split()
    page = (ROOT / "docs/contributing/nightly.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == parts
    workflow = (ROOT / ".github/workflows/nightly.yml").read_text()
    matrix = re.search(r"part: \[(.*?)\]", workflow, re.S)[1].replace(",", " ").split()
    assert matrix == [part for part in parts if part != "gpu"]


def imports():
    """Import statements of wbsp in the pages."""
    for page in PAGES:
        for line in re.findall(r"^ *((?:from|import) wbsp\b.*)$", page.read_text(), re.MULTILINE):
            yield pytest.param(line.strip(), id=f"{page.name}: {line.strip()}")


@pytest.mark.parametrize("line", list(imports()))
def test_pages_import_public_names_only(line):
    [statement] = ast.parse(line).body
    if isinstance(statement, ast.ImportFrom):
        module = importlib.import_module(statement.module)
        assert {alias.name for alias in statement.names} <= set(module.__all__)
    else:
        assert importlib.import_module(statement.names[0].name).__all__


@pytest.mark.parametrize("name", ["wbsp", "wbsp.sync", "wbsp.testing", "wbsp.simulate", "wbsp.ray",
                                  "wbsp.cluster", "wbsp.runlog.reader"])
def test_declared_public_names_exist(name):
    if name == "wbsp.ray":
        pytest.importorskip("ray")
    module = importlib.import_module(name)
    assert [one for one in module.__all__ if not getattr(module, one, None)] == []


def test_the_states_of_a_worker_are_those_of_the_agent():
    states = runpy.run_path(str(ROOT / "scripts/agent_states.py"))
    _, _, rest = STATES.read_text().partition(states["BEGIN"])
    assert rest.partition(states["END"])[0].strip() == states["text"]().strip(), (
        "the page of the states is out of date: run scripts/agent_states.py")


def test_the_diagrams_hold_every_arrow():
    states = runpy.run_path(str(ROOT / "scripts/agent_states.py"))
    assert states["text"](states["DEPTH"] + 1).strip() in STATES.read_text()


def test_every_file_and_room_that_the_page_names_exists():
    page = PAGE.read_text()
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page)
    rooms = re.findall(r"\b(\w+)\[\"\1: ", page)
    assert len(named) > 20 and len(rooms) > 8
    for path in [*named, *rooms]:
        assert (ROOT / path).exists() or (ROOT / "wbsp" / path).exists(), path


def test_the_pages_picture_shows_the_allowed_imports():
    walls = runpy.run_path(str(ROOT / "tests/test_project.py"))["WALLS"]
    picture = PAGE.read_text().partition("```mermaid")[2].partition("```")[0]
    arrows = [(source, target)
              for source, targets in re.findall(r"^ +(\w+)(?:\[.*?\])? --> (.*)$", picture, re.M)
              for target in re.findall(r"(\w+)(?:\[|$| &)", targets)]
    assert len(arrows) > 10
    for source, target in arrows:
        allowed = {name.partition(".")[0] for name in walls[target].split()}
        assert source in allowed, f"{target} does not import {source}"
        assert target not in {name.partition(".")[0] for name in walls.get(source, "").split()}


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/reference/faults.md"])
def test_every_test_that_keeps_a_promise_exists(name):
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", (ROOT / name).read_text())
    assert named or name != "SECURITY.md"
    for path, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), (path, test)
