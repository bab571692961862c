"""Lines survive a kill; a file holds whole lines only, even after a full disk."""

import pathlib

import pytest
from full_disk import full_at

from wbsp.process.disk import Disk
from wbsp.runlog import files
from wbsp.runlog.files import LineFile, columns, write_whole
from wbsp.runlog.folder import finished_folder, unfinished_folder


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
def test_append_continues_after_the_last_whole_line(tmp_path, left, kept):
    (tmp_path / "a.txt").write_text(left)
    file = LineFile(tmp_path / "a.txt", append=True)
    file.write(0.0, b"5 6\n")
    file.close()
    assert (tmp_path / "a.txt").read_text() == kept + "5 6\n"


def test_append_makes_a_missing_file(tmp_path):
    LineFile(tmp_path / "new" / "a.txt", append=True).close()
    assert (tmp_path / "new" / "a.txt").read_bytes() == b""


def test_columns_keep_whole_numbers_whole():
    assert columns(12345678901, 0.1 + 0.2, float("nan"), 1e-12) == b"12345678901, 0.3, nan, 1e-12\n"


def line(number):
    return f"{number:099}\n".encode()


def test_a_full_disk_costs_lines_and_never_tears_one(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 1000)
    path, said = tmp_path / "a.txt", []
    file = LineFile(path, say=said.append)
    with full_at(2050):
        for second in range(50):
            file.write(second, line(second))
            assert path.stat().st_size % 100 == 0
    assert path.read_bytes() == b"".join(map(line, range(20)))
    assert said == [f"cannot write {path}: File too large; continuing without it"]
    for second in range(50, 60):
        file.write(second, line(second))
    assert said[1:] == [f"{path} can be written again; 21 lines were lost"]
    file.close()
    assert path.read_bytes() == b"".join(map(line, [*range(30), *range(51, 60)]))
    assert len(said) == 2


def test_a_disk_that_stays_full_is_accounted_for_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 1000)
    path, said = tmp_path / "a.txt", []
    with full_at(2050):
        file = LineFile(path, say=said.append)
        for second in range(50):
            file.write(second, line(second))
        file.flush()
        file.close()
        file.close()
    assert said[1:] == [f"{path} lacks 30 lines"]


def test_lines_from_the_first_invalid_one_on_are_cut_off(tmp_path):
    file = LineFile(tmp_path / "a.txt")
    for number in range(5):
        file.write(number, line(number))
    file.flush()
    file.cut(lambda one: int(one) < 3)
    file.write(9.0, line(9))
    file.close()
    assert (tmp_path / "a.txt").read_bytes() == b"".join(map(line, [0, 1, 2, 9]))


def test_a_document_that_cannot_be_written_keeps_the_previous_one(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, b"before")
    with full_at(100), pytest.raises(OSError, match="File too large"):
        write_whole(path, b"x" * 50, b"y" * 100)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"before")]


def test_a_partial_file_left_by_a_kill_is_overwritten(tmp_path):
    files.beside_of(tmp_path / "a.json").write_bytes(b"half")
    write_whole(tmp_path / "a.json", b"who", b"le")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"whole")]


class Noting(Disk):
    """Notes what there is in a folder, by name and content, at each step that makes it durable."""

    def __init__(self, folder):
        self.notes = []
        self._folder = folder
        self._path = type("NotedPath", (type(folder),), {"disk": self})

    def path(self, text):
        return self._path(text)

    @property
    def there(self):
        return {str(path.relative_to(self._folder)): path.read_bytes() if path.is_file() else None
                for path in self._folder.rglob("*")}

    def sync(self, file):
        super().sync(file)
        self.notes.append(("data", self.there))

    def sync_names(self, folder):
        super().sync_names(folder)
        self.notes.append((str(pathlib.Path(folder)), self.there))


def test_a_file_s_data_is_durable_before_its_name_and_the_name_before_the_call_returns(tmp_path):
    disk = Noting(tmp_path)
    path = disk.path(tmp_path / "a.json")
    path.write_bytes(b"before")
    write_whole(path, b"who", b"le")
    assert disk.notes == [("data", {"a.json": b"before", ".a.json.tmp": b"whole"}),
                          (str(tmp_path), {"a.json": b"whole"})]


def test_the_name_of_a_run_that_is_taken_over_is_durable_before_the_call_returns(tmp_path):
    disk = Noting(tmp_path)
    folder = unfinished_folder("pcc", disk.path(tmp_path))
    (folder / "run.json").write_text("{}")
    disk.notes.clear()
    place = finished_folder(folder)
    assert disk.notes == [(str(tmp_path / "pcc"), {
        "pcc": None, "pcc/run-001": None, "pcc/run-001/run.json": b"{}"})]
    assert place == tmp_path / "pcc" / "run-001"
