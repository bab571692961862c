"""An environment of pip for each tool, in build/beside: created when it is first needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/beside"
TORCH = "torch==2.13.0"
PACKAGES = {"torch": [TORCH, "numpy"], "hivemind": [TORCH, "numpy", "hivemind==1.1.12"],
            "torchft": [TORCH, "numpy", "torchft==0.2.0"],
            "wbsp": [TORCH]}  # and what this checkout's environment has
OF_ENTRY = {"lone": "torch", "ddp": "torch", "postlocalsgd": "torch", "hivemind": "hivemind",
            "torchft": "torchft", "wbsp": "wbsp"}


def python(name: str) -> Path:
    """Return the Python of an environment."""
    return FOLDER / name / "bin/python"


def versions(name: str) -> str | None:
    """Return the versions of all packages of an environment; None: it is not there."""
    path = FOLDER / name / "versions.txt"
    return path.read_text() if path.exists() else None


def create(name: str) -> None:
    """Create an environment unless it is there.

    Raises:
        OSError: pip failed; its last line.
    """
    if versions(name) is not None:
        return
    print(f"creating {FOLDER / name}", file=sys.stderr, flush=True)
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    _carry_out(name, [sys.executable, "-m", "venv", str(FOLDER / name)])
    _carry_out(name, [str(python(name)), "-m", "pip", "install", *PACKAGES[name]])
    if name == "wbsp":
        own, here = (next((root / "lib").glob("python*/site-packages"))
                     for root in (FOLDER / name, Path(sys.prefix)))
        (own / "checkout.pth").write_text(f"import site; site.addsitedir({str(here)!r})\n")
    found = _carry_out(name, [str(python(name)), "-m", "pip", "freeze", "--all"])
    (FOLDER / name / "versions.txt").write_text(f"Python {sysconfig.get_python_version()}\n{found}")


def _carry_out(name: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    with (FOLDER / f"{name}.log").open("a") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OSError(f"environment {name}: {last} (see {FOLDER / name}.log)")
    return done.stdout
