"""figures.md holds the numbers of the figures."""

from wbsp.core.goal import Goal
from wbsp.figures.load import gather
from wbsp.figures.table import write_table


def read(path):
    """Heading -> rows of its table, each a dict column -> cell."""
    tables = {}
    for part in path.read_text().split("\n## ")[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.replace(r"\|", "/").split("|")[1:-1]]
                for line in lines]
        assert len({len(row) for row in rows}) == 1
        tables[part.splitlines()[0]] = [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
    return tables


def test_table_has_the_numbers_of_the_runs(make_run, tmp_path):
    statistics = gather([make_run("bsp", "bsp", 7, accuracy=lambda t: min(0.9, 0.05 * t)),
                    make_run("wbsp", "wbsp", 7, stale=(0, 1))])
    tables = read(write_table(statistics, tmp_path / "figures.md", target=Goal.of(0.5)))
    bsp, wbsp = tables["Runs"]
    assert (bsp[""], bsp["sync"], bsp["seed"], bsp["workers"]) == ("1", "bsp", "7", "2")
    assert (bsp["time to 50 %"], wbsp["time to 50 %"]) == ("10.90", "5.90")
    assert (wbsp["final accuracy"], wbsp["versions"], wbsp["duration"]) == ("0.9000", "20", "20.00")
    assert wbsp["steps per worker"] == "0: 60, 1: 20"
    assert [bsp[f"{kind} %"] for kind in ("compute", "push", "pull", "wait", "data")] == [
        "45.0", "10.0", "10.0", "30.0", "5.0"]
    assert (bsp["staleness mean"], wbsp["max"]) == ("0.00", "1")
    assert wbsp["command"] == "`toy --sync=wbsp / cat`"
    best, other = tables["Time to 50 % accuracy"]
    assert (best["group"], best["fastest rival"], best["time / the rival's"]) == (
        "wbsp", "bsp", "0.541")  # 5.9 / 10.9
    assert other["runs that reached it"] == "1 of 1"
    assert [row["compute %"] for row in tables["Workers"]] == ["20.0", "70.0", "60.0", "70.0"]


def test_the_versions_of_a_site_are_all_counted(site_run, tmp_path):
    [row] = read(write_table(gather([site_run]), tmp_path / "figures.md"))["Runs"]
    assert (row["versions"], row["steps per worker"]) == ("3", "0: 2")


def test_a_missing_measurement_is_a_dash(make_run, tmp_path):
    statistics = gather([make_run("run", "wbsp", rounds=0, ended=False)])
    tables = read(write_table(statistics, tmp_path / "figures.md", target=Goal.of(0.5)))
    [row] = tables["Runs"]
    assert {row[name] for name in ("time to 50 %", "final accuracy", "compute %", "max")} == {"-"}
    assert tables["Time to 50 % accuracy"][0]["mean"] == "-"
