"""docs/how-to/new-model.md, followed word for word in a folder that is no checkout."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import ROOT, Jobs, ServerJob, free_port

from wbsp.runlog.reader import read_run
from wbsp.sync import create, find

PAGE = (ROOT / "docs/how-to/new-model.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {text.split("\n", 1)[0].removeprefix("# "): text for kind, text in BLOCKS
         if kind == "python"}
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def command(start):
    """The arguments behind `python` of the page's only command that starts so."""
    (line,) = [line for line in COMMANDS if line.startswith(f"python {start}")]
    return line.split()[1:]


def run(folder, *arguments):
    return subprocess.run([sys.executable, *arguments], cwd=folder, text=True, timeout=240,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_the_page_has_a_model_and_its_tests():
    assert set(FILES) == {"kasync.py", "test_kasync.py"}


def test_the_tests_of_the_page_pass(folder):
    done = run(folder, *command("-m pytest"), "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_laws_find_a_model_that_forgets_a_waiting_worker(folder):
    forgetful = FILES["kasync.py"].replace("sorted(self.waiting)]", "sorted(self.waiting)[:1]]")
    assert forgetful != FILES["kasync.py"]
    (folder / "kasync.py").write_text(forgetful)
    done = run(folder, *command("-m pytest"), "-p", "no:cacheprovider")
    assert done.returncode == 1 and "FAILED test_kasync.py::test_laws" in done.stdout


def test_the_pages_model_runs_in_virtual_time_with_the_packages_models(folder):
    done = run(folder, *command("-m wbsp.simulate"), "--nofigures", "--out=o")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (\w+)(?: k=4)? \|", done.stdout, re.MULTILINE)
    assert rows == ["model", "bsp", "ksync", "kasync"]
    runs = {sync: read_run(folder / f"o/{sync}/run-001") for sync in rows[1:]}
    settings = runs["kasync"].settings
    assert (settings["sync"], settings["options"]) == ("kasync", {"k": "4"})
    assert (folder / "o/kasync/run-001/wk_loss_0_kasync.txt").exists()
    assert not runs["kasync"].summary["total"].get("rejected")
    assert runs["kasync"].summary["t"] < runs["bsp"].summary["t"]


def test_the_pages_model_runs_on_a_real_server_whose_workers_lack_it(folder):
    with Jobs(folder) as jobs:
        port = free_port()
        server = jobs.start("server", *command("-m wbsp.ps"), f"--port_base={port}",
                            kind=ServerJob)
        server.address, server.cwd = f"localhost:{port}", folder
        server.listens()
        (folder / "elsewhere").mkdir()
        with Jobs(folder / "elsewhere") as machine:
            workers = [machine.integer_worker(server.address, worker, steps=5)
                       for worker in range(3)]
            for job in (*workers, server):
                job.ends_well()
        accepts = server.events("accept")
        assert len(accepts) == 15
        assert {event["weight"] for event in accepts} <= {1.0, 0.5}
        assert (server.folder / "summary.json").exists()
        assert server.folder == folder / "runs/kasync/run-001"


@pytest.mark.parametrize("sync", ["kasync:KAsync", "kasync"])
def test_the_launchers_server_and_workers_agree_on_its_name(folder, sync):
    tell = ("import json, sys; from launcher import flags as launcher; launcher.FLAGS(sys.argv); "
            "print(json.dumps(launcher.run_wide_settings()))")
    server = command("runcifar10gpu.py")
    assert "--sync=kasync:KAsync" in server
    worker = ["--job_name=worker", f"--sync={sync}", "--sync_option=k=1"]
    told = [json.loads(run(folder, "-c", tell, *flags).stdout) for flags in (server[1:], worker)]
    assert told[0] == told[1] and told[0]["sync"] == "kasync"


# Values that --sync refuses.

OWN = """
from wbsp.sync import BSP, SyncModel
import {imports}

class Nameless(BSP):
    pass

class Unfit(SyncModel):
    name = "a/b"

class Taken(SyncModel):
    name = "bsp"

def function():
    pass
"""


@pytest.mark.parametrize("path, says", [
    ("absent:Mine", "synchronization model 'absent:Mine': no module 'absent' in "),
    ("own:Absent", "own.py has no class 'Absent'"),
    ("own:function", "function is not a subclass of wbsp.sync.SyncModel"),
    ("own:Nameless", "the class needs a `name` of its own, of letters, digits, '_' and '-', not "
                     "None"),
    ("own:Unfit", "not 'a/b'"),
    ("own:Taken", "the name 'bsp' belongs to a model of wbsp; give the class another one"),
    ("own", "unknown synchronization model 'own'; known: bsp, .*, or module:Class of your own"),
    ("pcc:late", "'pcc:late': option 'late' of pcc is not of the form key=value"),
    (":", "synchronization model ':' is not of the form module:Class"),
    (".own:Taken", "'.own:Taken' is not of the form module:Class"),
])
def test_a_model_that_cannot_be_taken_is_one_line(tmp_path, monkeypatch, path, says):
    (tmp_path / "own.py").write_text(OWN.format(imports="wbsp"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own", raising=False)
    with pytest.raises(ValueError, match=says) as error:
        find(path)
    assert "\n" not in str(error.value)
    sys.modules.pop("own", None)


def test_an_error_inside_the_module_is_raised(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(OWN.format(imports="no_such_module"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        find("broken:Taken")


def test_a_model_of_the_package_may_be_named_by_its_class():
    assert find("wbsp.sync.bsp:BSP") is find("bsp")


@pytest.mark.parametrize("arguments, says", [
    (["-m", "wbsp.ps", "--worker_num=1"], "wbsp.ps: "),
    (["-m", "wbsp.simulate", "--model=timing", "--until=1s"], "simulate: "),
    ([ROOT / "runcifar10gpu.py", "--job_name=ps"], "runcifar10gpu: "),
])
def test_every_entry_point_reports_it_in_one_line(tmp_path, arguments, says):
    done = run(tmp_path, *arguments, "--sync=absent:Mine")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{says}synchronization model 'absent:Mine': no module 'absent' in ")


def test_adsp_names_the_missing_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="adsp .* not installed: pip install scipy"):
        create("adsp")
    assert create("bsp").name == "bsp"


def test_the_page_is_on_the_list():
    assert "(how-to/new-model.md)" in Path(ROOT, "docs/README.md").read_text()
