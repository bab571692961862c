"""Lines survive a kill; a resumed file holds whole lines only."""

import pytest

from wbsp.runlog.files import LineFile, columns


def test_lines_reach_the_disk_within_a_second_of_the_runs_time(tmp_path):
    file = LineFile(tmp_path / "a.txt")
    for t in (0.0, 0.4, 0.8, 1.1, 1.5):
        file.write(t, f"{t}\n".encode())
    assert (tmp_path / "a.txt").read_text().split() == ["0.0", "0.4", "0.8", "1.1"]
    file.close()
    assert (tmp_path / "a.txt").read_text().split()[-1] == "1.5"


def test_an_earlier_runs_file_is_never_overwritten(tmp_path):
    (tmp_path / "a.txt").write_text("precious\n")
    with pytest.raises(FileExistsError, match="holds an earlier run"):
        LineFile(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "precious\n"


@pytest.mark.parametrize("left, kept", [("", ""), ("1 2\n3 4\n", "1 2\n3 4\n"), ("1 2\n3", "1 2\n"),
                                        ("3", ""), ("x\n" + "y" * 200_000, "x\n")])
def test_append_goes_on_after_the_last_whole_line(tmp_path, left, kept):
    (tmp_path / "a.txt").write_text(left)
    file = LineFile(tmp_path / "a.txt", append=True)
    file.write(0.0, b"5 6\n")
    file.close()
    assert (tmp_path / "a.txt").read_text() == kept + "5 6\n"


def test_append_begins_a_file_that_is_not_there(tmp_path):
    LineFile(tmp_path / "new" / "a.txt", append=True).close()
    assert (tmp_path / "new" / "a.txt").read_bytes() == b""


def test_columns_keep_whole_numbers_whole():
    assert columns(12345678901, 0.1 + 0.2, float("nan"), 1e-12) == b"12345678901, 0.3, nan, 1e-12\n"
