"""What a person sees of the output of a process: whole lines, and a progress bar now and then."""

import pytest

from wbsp.run.lines import DRAWN_SECONDS, Lines

SOON, LATER = 0.1, DRAWN_SECONDS


def shown(*pieces, gap=SOON):
    lines, found = Lines(), []
    for number, piece in enumerate(pieces):
        found += lines.feed(piece, number * gap)
    return found + lines.rest()


@pytest.mark.parametrize("pieces, expected", [
    ([b"one\ntwo\n"], [b"one", b"two"]),
    ([b"on", b"e\nt", b"wo"], [b"one", b"two"]),
    ([b"one\r\ntwo\r\n"], [b"one", b"two"]),
    ([b"one\r", b"\ntwo\r", b"\n"], [b"one", b"two"]),
    ([b"\n\nx\n"], [b"", b"", b"x"]),
    ([b"  indented\n"], [b"  indented"]),
])
def test_a_line_is_shown_when_it_has_ended(pieces, expected):
    assert shown(*pieces) == expected


def test_a_bar_is_shown_at_its_begin_and_its_end():
    drawn = [b"\r%d%%" % percent for percent in range(0, 101, 10)]  # as tqdm draws
    assert shown(*drawn, b"\n", b"done\n") == [b"0%", b"100%", b"done"]
    drawn = [b"%d%%\r" % percent for percent in range(0, 101, 10)]
    assert shown(*drawn, b"\n", b"done\n") == [b"0%", b"100%", b"done"]


def test_a_slow_bar_is_shown_all_along():
    drawn = [b"\r%d%%" % percent for percent in (0, 30, 60, 90)]
    assert shown(*drawn, b"\n", gap=LATER) == [b"0%", b"30%", b"60%", b"90%"]


def test_a_bar_that_is_cut_short_shows_its_last_state():
    assert shown(b"\r0%", b"\r50%") == [b"0%", b"50%"]
    assert shown(b"0%\r", b"50%\r") == [b"0%", b"50%"]


def test_moves_of_the_cursor_are_left_out_and_colours_stay():
    assert shown(b"\x1b[A\x1b[2K\x1b[32mok\x1b[0m\n", b"\x1b[", b"1Btwo\n") == [
        b"\x1b[32mok\x1b[0m", b"two"]


def test_a_line_without_an_end_is_divided():
    found = shown(b"x" * 50_000, b"x" * 50_000, b"x" * 50_000)
    assert b"".join(found) == b"x" * 150_000 and len(found) == 2
