"""Build the documentation as a site, in build/site: every link is checked, and nothing is fetched.

    pip install -e '.[docs]'
    python scripts/build_site.py            # then: python -m http.server --directory build/site
    python scripts/build_site.py --offline  # also takes the diagrams' script along, by npm

The pages are those of the repository, in the same folders, so that a link leads to the same page
here and there. What they link to beside pages, such as an example, is copied as it is. A page of
every message is added. The builder is whatever reads mkdocs.yml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md",
         "docs/**/*.png", "docs/site.css", "lab/README.md", "lab/reports/*.md", "lab/reports/*.csv",
         "lab/reports/figures/*.png", "tests/README.md"]
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def collect(into: Path) -> None:
    """Copy the pages into this folder, and the files that they link to."""
    shutil.rmtree(into, ignore_errors=True)
    for page in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        to = into / page.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            to.write_text(_linked(page, into), encoding="utf-8")
        else:
            shutil.copy(page, to)
    (into / "docs/reference/messages.md").write_text(f"{reference.messages()}\n", encoding="utf-8")


def _linked(page: Path, into: Path) -> str:
    """Return the text of a page, with links to folders as plain text; linked files are copied."""
    def link(match: re.Match) -> str:
        target = Path(os.path.normpath(page.parent / match[2]))
        if target.is_dir() or not target.is_relative_to(ROOT):
            return match[1]
        if target.suffix != ".md" and target.exists():
            to = into / target.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, to)
        return match[0]
    return LINK.sub(link, page.read_text(encoding="utf-8"))


def fetch_diagrams() -> Path:
    """mermaid's script, which draws the diagrams; without it a browser takes it from the net."""
    script = BUILD / "package/dist/mermaid.min.js"
    if not script.exists():
        BUILD.mkdir(exist_ok=True)
        packed = subprocess.run(["npm", "pack", "--silent", "mermaid@11"], cwd=BUILD, check=True,
                                text=True, stdout=subprocess.PIPE).stdout.split()[-1]
        subprocess.run(["tar", "-xzf", packed, "package/dist/mermaid.min.js"], cwd=BUILD,
                       check=True)
    return script


def main(offline: bool) -> int:
    collect(BUILD / "pages")
    if offline:
        shutil.copy(fetch_diagrams(), BUILD / "pages/mermaid.min.js")
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"],
                          cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main("--offline" in sys.argv[1:]))
