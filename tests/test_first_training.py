"""The notebook of the tutorial's first page; `test_pages.py` runs the page."""

import importlib.util
import json
import os
import re

import pytest
from docs_code import python_of
from jobs import ROOT

PAGE = "tutorial/first-training.md"
NOTEBOOK = ROOT / "examples/first_training.ipynb"
TRAINS = pytest.mark.skipif(not os.environ.get("WBSP_DOCS"),
                            reason="starts TensorFlow several times: set WBSP_DOCS=1")


def test_the_notebook_trains_what_the_page_trains():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    script = next("".join(cell["source"]) for cell in cells if "train.py" in "".join(cell["source"])
                  and cell["cell_type"] == "code")
    assert not any(cell.get("outputs") for cell in cells)
    shared = python_of(PAGE).partition("hook = ")[2].splitlines()[2:12]
    assert len(shared) == 10 and all(line.rstrip(",") in script for line in shared)


@TRAINS
def test_the_notebook_runs(monkeypatch, tmp_path):
    if missing := [name for name in ("nbclient", "ipykernel", "matplotlib")
                   if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install -e '.[docs]'")
    import nbclient
    import nbformat

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    said = "".join(output.get("text", "") for cell in notebook.cells if cell.cell_type == "code"
                   for output in cell.outputs)
    assert "exit codes of server and workers: [0, 0, 0]" in said
    steps = re.findall(r"^worker (\d): (\d+) steps", said, re.MULTILINE)
    assert sum(int(count) for _, count in steps) == 1000
