import hashlib
import platform

import numpy as np
import pytest

import data
from data import stdlib


@pytest.fixture
def library(tmp_path):
    """A small library, of which one file validates."""
    trained = [name for name in (f"m{n}.py" for n in range(99)) if not stdlib.validated(name)]
    tested = next(name for name in (f"v{n}.py" for n in range(999)) if stdlib.validated(name))
    for name in (trained[1], "pack/" + trained[0], tested, "test/test_m.py", "pack/tests/t.py",
                 "site-packages/other.py", "_sysconfigdata__linux.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"# {name}\n")
    return tmp_path, [f"# {trained[1]}\n", f"# pack/{trained[0]}\n"], f"# {tested}\n"


def test_the_text_is_that_of_the_modules_without_tests(library):
    folder, trained, tested = library
    text = stdlib.read(folder, "3.99")
    assert text.train.tobytes().decode() == "".join(trained)
    assert text.test.tobytes().decode() == tested
    assert text.name == f"Python 3.99, SHA-256 {text.sha256}" and len(text.sha256) == 64


def test_the_sum_depends_on_each_byte_and_on_each_path(library):
    folder, *_ = library
    before = stdlib.read(folder, "3.99").sha256
    assert stdlib.read(folder, "3.98").sha256 == before
    [changed] = list(folder.glob("m*.py"))
    changed.write_text(changed.read_text() + " ")
    after = stdlib.read(folder, "3.99").sha256
    changed.rename(folder / f"n{changed.name}")
    assert len({before, after, stdlib.read(folder, "3.99").sha256}) == 3


def test_a_library_without_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="has 0 modules as text, too few to train on"):
        stdlib.read(tmp_path, "3.99")


def test_a_file_keeps_its_split_in_every_version():
    names = "abc.py", "asyncio/base_events.py", "pydoc_data/topics.py", "shutil.py"
    assert [stdlib.validated(name) for name in names] == [False, True, False, True]
    part = np.mean([stdlib.validated(f"{n}.py") for n in range(4000)])
    assert part == pytest.approx(stdlib.VALIDATED, abs=0.015)




def test_windows_follow_each_other_and_their_targets_are_the_next_bytes():
    text = stdlib.text()
    assert text.python == platform.python_version()
    assert len(text.train) > 9 * len(text.test) > 1_000_000
    for split, part in (("train", text.train), ("test", text.test)):
        look = stdlib.Look(48)
        seen, wanted = data.load("stdlib", split=split, look=look)
        assert seen.shape == wanted.shape == (data.size("stdlib", split=split, look=look), 48)
        assert seen.dtype == wanted.dtype == np.uint8
        assert seen.tobytes() == part[:seen.size].tobytes()
        assert wanted.tobytes() == part[1:seen.size + 1].tobytes()
    assert data.size("stdlib") == (len(text.train) - 1) // 64


def test_batches_are_windows_in_a_shuffled_order():
    seen, wanted = data.load("stdlib")
    pairs = {hashlib.md5(x.tobytes() + y.tobytes()).digest()
             for x, y in zip(seen, wanted, strict=True)}
    x, y = next(iter(data.train_dataset("stdlib", 6, seed=1, worker_index=0)))
    u, v = data.shared_batch("stdlib", 1)(10, 20)
    p, q = next(iter(data.test_dataset("stdlib", count=5)))
    for one, other, count in ((x, y, 6), (u, v, 20), (p, q, 5)):
        assert one.shape == other.shape == (count, 64) and one.dtype == other.dtype == "int32"
        assert (one.numpy()[:, 1:] == other.numpy()[:, :-1]).all()
    for one, other in zip([*x.numpy(), *u.numpy()], [*y.numpy(), *v.numpy()], strict=True):
        assert hashlib.md5(one.astype(np.uint8).tobytes() + other.astype(np.uint8).tobytes()
                           ).digest() in pairs
    again, _ = next(iter(data.train_dataset("stdlib", 6, seed=1, worker_index=0)))
    assert (again == x).numpy().all()


def test_another_text_is_refused_in_one_line():
    stdlib.check(stdlib.text().name)
    with pytest.raises(ValueError, match=r"the text here is that of Python 3\..*, and the run's of "
                                         "Python 3.1.4, SHA-256 ab: start this process with the"):
        stdlib.check("Python 3.1.4, SHA-256 ab")
