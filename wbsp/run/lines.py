"""The output of a process, as whole lines.

Lines of several processes that share a terminal must not be mixed within a line. A progress bar
draws itself again and again in one line; here its state is a line of its own every few seconds, and
at its end.
"""

from __future__ import annotations

import re

DRAWN_SECONDS = 5.0  # between two lines of a progress bar
_MOST = 1 << 16  # bytes of a line; a longer one is divided
_END = re.compile(rb"\r*\n|\r+")
_MOVES = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")  # the cursor, which has no place here


class Lines:
    """The lines of one stream."""

    def __init__(self) -> None:
        self._text = b""  # after the newest end of a line
        self._waiting = b""  # the newest state of a bar, not shown yet
        self._shown = b""  # the newest state of a bar that was shown
        self._redraws = False  # this line has been drawn before
        self._since = float("-inf")  # when a bar was shown last

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that are to be shown now, without their ends.

        Args:
            data: what was read.
            now: seconds of any clock.
        """
        text = self._text + data
        # Half of "\r\n" may be missing, or half of a sequence that moves the cursor.
        held = re.search(rb"(\r+|\x1b(\[[0-9;?]*)?)\Z", text)
        end = held.start() if held else len(text)
        text, self._text = text[:end], text[end:]
        found: list[bytes] = []
        begin = 0
        for match in _END.finditer(text):
            piece = _MOVES.sub(b"", text[begin:match.start()])
            begin = match.end()
            if match[0].endswith(b"\n"):
                found += self._ended(piece)
            else:
                found += self._drawn(piece, now)
                self._redraws = True
        rest = text[begin:]
        if self._redraws and rest:  # a bar that begins with \r: this is its newest state
            found += self._drawn(_MOVES.sub(b"", rest), now, keep=False)
        self._text = rest + self._text
        if len(self._text) > _MOST:
            found.append(self._text)
            self._text = b""
        return found

    def rest(self) -> list[bytes]:
        """Return the rest at the end of the stream."""
        text, self._text = _MOVES.sub(b"", self._text).strip(b"\r"), b""
        return self._ended(text) if text or self._waiting else []

    def _ended(self, piece: bytes) -> list[bytes]:
        """Return the line that ends with this piece."""
        if self._redraws and not piece.strip():
            piece = self._waiting or self._shown
        known = self._redraws and piece == self._shown
        self._redraws, self._waiting, self._shown = False, b"", b""
        return [] if known else [piece]

    def _drawn(self, piece: bytes, now: float, keep: bool = True) -> list[bytes]:
        """Return the state of a bar, if it is time to show it."""
        if not piece.strip() or piece == self._shown:
            return []
        if now - self._since < DRAWN_SECONDS:
            if keep:
                self._waiting = piece
            return []
        self._since, self._shown, self._waiting = now, piece, b""
        return [piece]
