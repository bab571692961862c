"""Tables and pictures of pages of docs/ are what the scripts make."""

from jobs import ROOT


def test_the_picture_of_the_readme_can_be_made(jobs):
    jobs.start("maker", ROOT / "lab/draw_timelines.py", "--out=timelines.png").ends_well()
    assert (jobs.folder / "timelines.png").read_bytes().startswith(b"\x89PNG")


def test_the_tables_of_outer_steps_are_those_of_the_page(jobs):
    job = jobs.start("table", ROOT / "lab/outer_step.py", PYTHONPATH=ROOT)
    job.ends_well()
    page = (ROOT / "docs/explanation/outer-step.md").read_text()
    assert all(line in page for line in job.lines) and len(job.lines) == 22
