"""What holds for the project as a whole: which room imports which, scripts that run, documented
modules."""

import ast
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wbsp.sync import MODELS
from wbsp.sync.__main__ import page_of

ROOT = Path(__file__).parents[1]
LIBRARY = sorted(ROOT.glob("wbsp/**/*.py"))
SHELL = [ROOT / ".ci/run", ROOT / "deploy/slurm/wbsp.sbatch", *sorted(ROOT.glob("scripts/*.sh")),
         *ROOT.glob("lab/*.sh")]
MODULES = [*LIBRARY, *ROOT.glob("*.py"), *sorted(
    path for folder in ("launcher", "models", "data", "scripts", "lab")
    for path in ROOT.glob(f"{folder}/**/*.py"))]
ACCELERATED = {"tensorflow", "keras", "jax", "torch"}


def name(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def imports(path):
    """Dotted names of all that a module imports: `from a import b` gives a and a.b.

    A name that is given to `import_module` as it is counts, too.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name(path)}: imports are absolute"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
              and node.func.attr == "import_module" and isinstance(node.args[0], ast.Constant)):
            found.append(node.args[0].value)
    return found


def roots(path):
    return {module.partition(".")[0] for module in imports(path)}


def of_wbsp(path):
    """Which parts of the library a module imports: sync, ps, wire, ..."""
    return {module.split(".")[1] for module in imports(path) if module.startswith("wbsp.")}


def in_folder(*folders):
    return [path for path in LIBRARY if name(path).split("/")[1] in folders]


# What each folder of the library may import apart from itself: modules, or folders with all modules
# in them.
WALLS = {
    "command": "",
    "sync": "", "limits": "", "given": "limits",
    "heterogeneity": "", "process": "timeouts", "timeouts": "",
    "environment": "process.token given", "units": "",
    "access": "environment process.token given timeouts wire.addresses",
    "tensors": "limits",
    "core": "sync tensors limits",
    "wire": "core.agent core.messages core.resend_buffer core.rules core.stats sync.base tensors "
            "process limits timeouts",
    "runlog": "core.goal core.stats sync.noise process limits",
    "replica": "tensors given",
    "figures": "core.goal core.stats runlog limits command",
    "ps": "core sync tensors wire runlog replica process environment limits timeouts units command",
    "worker": "core.agent core.messages core.participant core.permutation core.resend_buffer "
              "core.rules core.stats core.work.sequence sync.base sync.batch tensors wire saved "
              "runlog replica process environment access limits timeouts given",
    "site": "core sync.base tensors wire.messages wire.addresses wire.client wire.errors "
            "wire.joining wire.line worker limits "
            "ps.__main__ ps.config ps.flags ps.checkpoint process environment access timeouts "
            "units command",
    "simulate": "core sync tensors runlog replica figures process heterogeneity limits units "
                "command",
    "watch": "core.stats runlog figures limits process.streams command",
    "run": "runlog limits timeouts environment units process ps.__main__ ps.checkpoint "
           "wire.addresses command",
    "ray": "runlog limits timeouts process wire.errors worker.next_run command",
    "testing": "core sync simulate",
    "cluster": "environment",
    "saved": "ps.checkpoint replica tensors limits wire process",
    "export": "saved ps.checkpoint runlog tensors limits command",
    "reading": "saved ps.checkpoint wire runlog process environment access limits timeouts given",
    "__main__": "",
    "__init__": "worker.any_loop worker.keras.callback worker.keras.run_schedule runlog.reader "
                "saved reading worker.errors",
}
BY_NAME = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
           for path in LIBRARY}
FOLDERS = sorted({path.parent for path in LIBRARY})


def used(path):
    """The modules of the library that a module imports, for its types alone as well."""
    found = {one for one in imports(path) if one in BY_NAME}
    return {one for one in found if not any(other.startswith(f"{one}.") for other in found)}


def circle(arrows):
    """The boxes of {box: boxes that it imports} that are in a circle, or between two."""
    left = dict(arrows)
    while free := [box for box in left if not left[box] & left.keys()
                   or not any(box in left[other] for other in left)]:
        for box in free:
            del left[box]
    return left


def wrong(paths, of):
    """The modules of which `of` finds something, and what: one test for all of them takes no longer
    than the reading."""
    return {name(path): found for path in paths if (found := of(path))}


def test_a_module_imports_only_what_its_folder_may():
    def beyond(path):
        room = name(path).split("/")[1].removesuffix(".py")
        may = [f"wbsp.{one}." for one in [room, *WALLS[room].split()]]
        return [one for one in used(path) if not f"{one}.".startswith(tuple(may))]
    assert wrong(LIBRARY, beyond) == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=name)
def test_files_and_folders_of_a_package_import_each_other_in_no_circle(folder):
    def box(path):
        return path.relative_to(folder).parts[0]

    arrows = {}
    for path in LIBRARY:
        if path.is_relative_to(folder):
            inside = {box(BY_NAME[one]) for one in used(path)
                      if BY_NAME[one].is_relative_to(folder)}
            arrows.setdefault(box(path), set()).update(inside - {box(path)})
    assert circle(arrows) == {}


def test_synchronization_models_import_nothing_else_of_wbsp():
    assert wrong(in_folder("sync"), lambda path: roots(path) - {
        "wbsp", "numpy", "scipy"} - sys.stdlib_module_names) == {}


def test_only_real_servers_and_workers_know_zeromq():
    watching = "remote.py", "line.py"  # of a real server
    assert wrong([path for path in in_folder("core", "simulate", "runlog", "figures", "watch")
                  if path.name not in watching],
                 lambda path: of_wbsp(path) & {"wire"} | roots(path) & {"zmq"}) == {}


OUTSIDE = {"time", "threading", "secrets", "random", "socket", "select", "signal", "subprocess",
           "multiprocessing", "fcntl", "uuid", "datetime", "zmq.utils",
           "concurrent.futures.ThreadPoolExecutor", "concurrent.futures.wait"}
CALLS = {"zmq.Context", "zmq.Poller", "queue.SimpleQueue", "queue.Queue", "os.urandom", "os._exit",
         "os.fsync", "os.replace", "open"}
# Of these, what children of a server need and Keras's side of a worker, which have no other host,
# and names of signals and of errors.
MAY = {"wbsp/ps/server.py": {"signal"},
       "wbsp/worker/loop.py": {"threading"},
       "wbsp/worker/keras/fit.py": {"threading"},
       "wbsp/worker/rate.py": {"threading"},  # hooks of PyTorch are called in any thread
       "wbsp/worker/ranks.py": {"datetime"},  # PyTorch takes a timeout so
       "wbsp/worker/signals.py": {"threading", "signal"}}


def test_servers_and_workers_use_the_world_outside_through_their_host():
    def outside(path):
        found = {one for one in OUTSIDE
                 if any(f"{use}.".startswith(f"{one}.") for use in imports(path))}
        found |= CALLS & {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text()))
                          if isinstance(node, ast.Call)}
        return found - MAY.get(name(path), set())
    assert wrong(in_folder("core", "ps", "worker", "site"), outside) == {}


def test_a_back_end_is_imported_where_a_keras_model_is_at_hand():
    allowed = {
        "wbsp/replica/model.py": {"keras"}, "wbsp/replica/layers.py": {"keras"},
        "wbsp/replica/states.py": {"keras"},
        "wbsp/replica/tensorflow.py": {"keras", "tensorflow"},
        "wbsp/replica/jax.py": {"keras", "jax"}, "wbsp/replica/torch.py": {"keras", "torch"},
        "wbsp/saved.py": {"keras"}, "wbsp/reading.py": {"keras"},
        "wbsp/worker/keras/callback.py": {"keras"}, "wbsp/worker/keras/fit.py": {"keras"},
        "wbsp/worker/keras/input.py": {"keras", "jax"},
        "wbsp/worker/keras/tf_input.py": {"tensorflow"},
        "wbsp/worker/keras/examples.py": {"keras"},
        "wbsp/worker/keras/shared_batches.py": {"keras"},
        "wbsp/worker/keras/tf_examples.py": {"keras", "tensorflow"},
        "wbsp/worker/keras/torch_examples.py": {"keras", "torch"},
        "wbsp/worker/ranks.py": {"torch"}, "wbsp/worker/rate.py": {"torch"},
        "wbsp/worker/keras/batch_rate.py": {"keras"},
        "wbsp/worker/keras/shared_fit.py": {"keras"}, "wbsp/worker/keras/run_rate.py": {"keras"},
        "wbsp/worker/keras/run_schedule.py": {"keras", "tensorflow", "jax"},
        "wbsp/worker/keras/train_function.py": {"keras", "tensorflow", "jax", "torch"},
        "wbsp/worker/keras/shown_version.py": {"keras"},
        "wbsp/worker/keras/passed_fit.py": {"keras"},
        "wbsp/simulate/workloads/keras.py": {"keras"},
        "wbsp/simulate/workloads/network.py": {"keras"},
        "wbsp/simulate/workloads/tensorflow.py": {"keras", "tensorflow"},
        "wbsp/simulate/workloads/jax.py": {"keras", "jax"}}
    assert wrong(LIBRARY, lambda path: roots(path) & ACCELERATED - allowed.get(
        name(path), set())) == {}


def test_the_library_knows_nothing_of_the_experiment():
    experiment = {"models", "data", "launcher", "runalexgpu", "runcifar10gpu", "runimagenetgpu"}
    assert wrong(LIBRARY, lambda path: roots(path) & experiment) == {}


@pytest.mark.parametrize("modules, without", [
    ("wbsp.sync", {*ACCELERATED, "zmq", "scipy", "rich", "wbsp.ps", "wbsp.worker"}),
    ("wbsp.simulate.nodes.cluster", {*ACCELERATED, "zmq", "wbsp.wire"}),
    ("wbsp.ps.server, wbsp.ps.launch, wbsp.ps.evaluation, wbsp.ps.__main__", ACCELERATED),
    ("wbsp.worker.any_loop", ACCELERATED),
    ("wbsp.figures", {*ACCELERATED, "zmq", "matplotlib"}),
    ("wbsp.watch.__main__", {*ACCELERATED, "zmq", "matplotlib", "plotly", "wbsp.ps"}),
    ("runcifar10gpu, runalexgpu, runimagenetgpu", ACCELERATED),
])
def test_an_import_loads_no_unneeded_module(modules, without):
    code = f"import {modules}, sys; print({without!r} & set(sys.modules) or '')"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("", "")


def test_every_folder_of_the_library_is_a_package_that_gets_installed():
    assert [name(folder) for folder in FOLDERS if not (folder / "__init__.py").exists()] == []


def test_only_the_laboratory_needs_the_laboratory():
    assert wrong([path for path in [*MODULES, *ROOT.glob("tests/**/*.py")]
                  if not name(path).startswith("lab/")], lambda path: roots(path) & {"lab"}) == {}


def test_every_module_has_a_docstring():
    def silent(path):
        tree = ast.parse(path.read_text())
        return tree.body and not ast.get_docstring(tree)
    assert wrong(MODULES, silent) == {}


@pytest.mark.parametrize("path", SHELL, ids=name)
def test_every_script_is_valid_bash_and_can_be_run(path):
    subprocess.run(["bash", "-n", path], check=True)
    sourced = path.name == "common.sh"
    assert path.read_text().startswith("#!/usr/bin/env bash\n") != sourced
    assert os.access(path, os.X_OK) != sourced


# The scripts' processes, with a launcher that acts for the test instead of training.


@pytest.fixture
def checkout(tmp_path):
    """checkout(ps=..., worker0=..., worker1=...) makes a folder in which `scripts/run_h1.sh` runs
    this Python code as its three processes."""
    def make(**code):
        (tmp_path / "scripts").symlink_to(ROOT / "scripts")  # they stay on this side of the link
        (tmp_path / "pyproject.toml").touch()
        venv = tmp_path / ".venv"
        (venv / "bin").mkdir(parents=True)
        python = venv / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        for extra in ("plain", "cuda"):  # counts as installed
            (venv / f"wbsp-{extra}").touch()
            os.utime(venv / f"wbsp-{extra}", (time.time() + 10,) * 2)
        (tmp_path / "runcifar10gpu.py").write_text(
            "import os, pathlib, sys, time\n"
            "flags = dict(flag.split('=') for flag in sys.argv[1:])\n"
            "job = flags['--job_name'].replace('--', '') + flags.get('--worker_index', '')\n"
            "pathlib.Path(job + '.pid').write_text(str(os.getpid()))\n"
            f"exec({code!r}[job])\n")
        return tmp_path
    return make


def start(folder, *arguments):
    return subprocess.Popen(["bash", "scripts/run_h1.sh", *arguments], cwd=folder, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def alive(folder):
    """Names of the launcher's processes that still run."""
    def runs(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return {path.stem for path in folder.glob("*.pid") if runs(int(path.read_text()))}


def test_a_script_ends_well_when_all_its_processes_do(checkout):
    tell = "print(flags, os.environ['CUDA_VISIBLE_DEVICES'])"
    folder = checkout(ps=tell, worker0=tell, worker1=f"{tell}; time.sleep(1)")
    script = start(folder, "pcc", "--seed=3")
    out, err = script.communicate(timeout=60)
    assert (script.returncode, err) == (0, "")
    assert "'--base_dir': 'h1/pcc'" in out and "'--seed': '3'" in out
    assert "'--heterogeneity': 'H1'" in out
    assert "'--worker_index': '1'" in (folder / "runs/h1/pcc/worker-1.log").read_text()


def test_a_failed_process_ends_the_others_and_the_script(checkout):
    folder = checkout(ps="time.sleep(60)", worker0="time.sleep(60)",
                      worker1="time.sleep(1); sys.exit('no such data')")
    script = start(folder)
    _, err = script.communicate(timeout=50)
    assert script.returncode == 1
    assert "no such data\nrun_h1.sh: worker 1 ended with exit code 1\n" in err
    assert not alive(folder)


@pytest.mark.parametrize("orderly", [False, True], ids=["before they listen", "in good order"])
def test_an_interrupted_script_leaves_no_process_behind(checkout, orderly):
    code = "pathlib.Path(job + '.ready').touch(); time.sleep(60)"
    if orderly:
        code = ("import signal\n"
                "def leave(*_):\n"
                "    time.sleep(1); print('left'); sys.exit(143)\n"
                f"signal.signal(signal.SIGTERM, leave); {code}")
    folder = checkout(ps=code, worker0=code, worker1=code)
    script = start(folder)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.ready"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    script.send_signal(signal.SIGTERM)
    out, _ = script.communicate(timeout=60)
    assert script.returncode == 143
    assert not alive(folder)
    assert out.count("left") == orderly  # asked once, and given the time


@pytest.mark.parametrize("sync", MODELS)
def test_every_model_has_a_page_that_names_its_options(sync):
    page = (ROOT / "docs/reference/models" / page_of(sync)).read_text()
    assert f"--sync={sync}" in page and f"--base_dir={sync}/" in page
    assert all(f"`{option}`" in page for option in MODELS[sync].OPTIONS)
