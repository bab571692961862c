"""Extract the blocks of README and the pages, and run them as a reader who pastes them into a
terminal.

The reader has what a newcomer has: a fresh clone, an installation, an empty home folder, a separate
network (so that port 2606 is free), and no variable WBSP_* in the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jobs import ROOT, Job, Jobs

# The first words of lines that a shell runs; other indented blocks are formulas and outputs.
PROGRAMS = ("bash", "cd", "curl", "export", "for", "git", "kubectl", "nohup", "openssl", "pip",
            "python", "ray", "sbatch", "scp", "source", "ssh", "wbsp")
KEPT = "LANG", "LC_ALL", "TERM", "USER", "LOGNAME"  # variables that a newcomer has, too
_LANGUAGES = {"sh": "shell", "python": "python"}


class Block(NamedTuple):
    """A block of a page that a reader runs.

    Attributes:
        page: path below the root of the checkout.
        number: its place among the page's blocks that are run, from 1 on.
        kind: "shell" or "python".
        text: what the reader copies.
    """

    page: str
    number: int
    kind: str
    text: str


def pages() -> list[str]:
    """Return the paths of README, CONTRIBUTING and all pages of docs/."""
    return ["README.md", "CONTRIBUTING.md",
            *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that a reader runs, in their order."""
    found = [(kind, text) for kind, text in _blocks((ROOT / page).read_text())
             if kind == "python" or (kind == "shell" and text)]
    return [Block(page, number, *one) for number, one in enumerate(found, 1)]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each block: fenced ones by their language, indented ones by their
    words.
    """
    pattern = r"^```(\w*)\n(.*?)^```$|(?:(?<=\n\n)|\A)((?:(?:    [^\n]*)?\n)+)(?=\S|\Z)"
    for fenced in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        language, inside, indented = fenced.groups()
        if indented is None:
            yield _LANGUAGES.get(language, "text"), inside
        elif indented.strip():
            plain = re.sub(r"^    ", "", indented, flags=re.MULTILINE).strip("\n") + "\n"
            yield "shell" if _is_shell(plain) else "text", plain


def _is_shell(text: str) -> bool:
    """Return whether the first line names a program, after the variables that it sets."""
    words = text.split("\n")[0].split()
    while words and re.fullmatch(r"[A-Z_0-9]+=\S*", words[0]):
        words = words[1:]
    return bool(words) and (words[0] in PROGRAMS or words[0].startswith(("lab/", "scripts/")))


class Reader:
    """A newcomer with a folder and a clone of this repository, who runs blocks of a page."""

    def __init__(self, jobs: Jobs):
        self._jobs = jobs
        self.folder = jobs.folder / "reader"
        self.clone = self.folder / "wbsp"
        (self.folder / "home").mkdir(parents=True)

    def clones(self) -> Path:
        """Clone the repository, with uncommitted changes, and install it; see `install`."""
        subprocess.run(["git", "clone", "--quiet", ROOT, self.clone], check=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.clone / name)
        install(self.clone)
        return self.clone

    def runs(self, name: str, script: str, folder: Path | None = None) -> Job:
        """Start a terminal that runs this script of bash and ends at its first failure."""
        file = self.folder / f"{name}.sh"
        file.write_text("set -eo pipefail\n" + script)
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {"HOME": str(self.folder / "home"), "PATH": os.pathsep.join(
            [str((folder or self.clone) / ".venv/bin"), os.environ["PATH"]])}
        command = [*own_network(), "env", "-i", "-C", str(folder or self.clone),
                   *(f"{name}={value}" for name, value in environment.items()),
                   "bash", str(file)]
        return self._jobs.run(name, *command)


def install(clone: Path) -> None:
    """Give a clone the environment that its scripts make, with the packages of this Python.

    The real installation takes minutes; a test of the night runs it.
    """
    venv = clone / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    (clone / ".editable").mkdir(exist_ok=True)
    (clone / ".editable/wbsp").symlink_to(Path("..", "wbsp"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "checkout.pth").write_text("\n".join([str(clone / ".editable"), *ours]) + "\n")
    python = venv / "bin/python"
    command = Path(sysconfig.get_path("scripts"), "wbsp").read_text()
    (venv / "bin/wbsp").write_text(re.sub(r"\A#!.*", f"#!{python}", command))
    (venv / "bin/wbsp").chmod(0o755)
    for extra in ("plain", "test", "cuda"):
        (venv / f"wbsp-{extra}").touch()
    os.utime(clone / "pyproject.toml", (0, 0))  # older than the installation


def own_network() -> list[str]:
    """Return the words before a command that give it a separate network with a loopback interface.

    All processes that the command leaves end with it.
    """
    return ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
            "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]


def why_no_network() -> str | None:
    """Return why a process cannot have a separate network here; None: it can."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "unshare and ip are not installed"
    done = subprocess.run([*own_network(), "true"], capture_output=True, text=True)
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None
