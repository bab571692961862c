"""The documentation: its links lead somewhere, and what it says of the code is so."""

import ast
import importlib
import re
import runpy

import pytest
from jobs import ROOT

PAGE = ROOT / "docs/explanation/architecture.md"
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
    _, _, rest = PAGE.read_text().partition(states["BEGIN"])
    assert rest.partition(states["END"])[0].strip() == states["text"]().strip(), (
        "the page of the architecture is out of date: run scripts/agent_states.py")


def test_the_diagrams_hold_every_arrow():
    states = runpy.run_path(str(ROOT / "scripts/agent_states.py"))
    assert states["text"](states["DEPTH"] + 1).strip() in PAGE.read_text()


def test_every_file_and_package_that_the_page_names_exists():
    page = PAGE.read_text()
    named = re.findall(r"`((?:core|process|wire|ps|worker|tests|scripts)/[\w/]+\.py)`", page)
    packages = re.findall(r"^\| (`.*?`) \|", page.partition("## The journey")[0], re.MULTILINE)
    packages = [name for cell in packages for name in re.findall(r"`(\w+)`", cell)]
    assert named and packages
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "wbsp" / path).exists(), path
    for name in packages:
        assert (ROOT / "wbsp" / name).is_dir() or (ROOT / f"wbsp/{name}.py").exists(), name


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/explanation/fault-tolerance.md"])
def test_every_test_that_keeps_a_promise_exists(name):
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", (ROOT / name).read_text())
    assert named or name != "SECURITY.md"
    for path, test in named:
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), (path, test)
