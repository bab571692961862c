"""The documentation's site, and its pages that the code dictates."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from jobs import ROOT


@pytest.fixture(scope="module")
def reference():
    return _script("reference")


def _script(name):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_the_reference_pages_match_the_code(reference):
    pytest.importorskip("ray")  # the flags of `wbsp ray` are its own
    old = [path.relative_to(ROOT).as_posix() for path, text in reference.pages().items()
           if not path.exists() or path.read_text() != text]
    assert old == [], "run `python scripts/reference.py`, and commit what it writes"


def test_every_public_object_has_a_page(reference):
    for module in reference.PUBLIC:
        page = (ROOT / f"docs/reference/api/{module}.md").read_text()
        assert {f"{module}.{name}" for name in reference.public(module)} <= set(
            re.findall(r"^::: (.*)$", page, re.MULTILINE))


def test_every_variable_of_the_environment_is_described(reference):
    assert {name for name in reference.variables() if f"`{name}`" not in reference.environment()
            } == set()


def test_the_page_of_messages_has_every_message(reference):
    page = reference.messages()
    for text, who in [("saving the final version", "server"),
                      ("no worker was connected for … s; ending the run", "server"),
                      ("synchronization option … is not of the form key=value", "synchronization")]:
        assert f"| {text} | {who}" in page, text
    assert page.count("\n") > 300


def test_every_page_is_in_the_navigation():
    named = re.findall(r"- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT).as_posix()
             for pattern in ("docs/**/*.md", "lab/*.md", "lab/reports/*.md")
             for path in ROOT.glob(pattern)}
    assert pages <= set(named)
    absent = "lab/" if not (ROOT / "lab").exists() else ()  # of a checkout without the laboratory
    assert [name for name in named if not (ROOT / name).exists() and not name.startswith(absent)
            ] == [
        "docs/reference/messages.md"]  # which scripts/build_site.py adds


@pytest.mark.skipif(not (ROOT / "lab").exists(), reason="the site has the reports of lab/")
def test_the_site_builds_without_a_broken_link():
    if missing := [name for name in ("mkdocs", "material", "mkdocstrings")
                   if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install -e '.[docs]'")
    done = subprocess.run([sys.executable, "scripts/build_site.py"], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    page = (ROOT / "build/site/docs/reference/api/wbsp.html").read_text()
    assert "in step with a wbsp server" in page  # a docstring
