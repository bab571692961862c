"""Types of the values in messages, each with its bounds: values out of bounds do not decode.

So no text, list or number of a peer is longer or larger than the code expects, and no text holds a
line break, an escape sequence or a mark that changes the direction of writing. A peer's claims
about the run (which push is due, which version there is) are checked by the code that knows the
run. These bounds only make every number safe to add, store and print, and every text safe to print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NewType

from msgspec import Meta

NAME = 1000  # characters of a variable's name
DIMENSIONS = 32  # of a variable
VARIABLES = 1 << 17  # of a model
MAX_FLOATS = 1 << 33  # of a model (32 GiB)
SHARDS = 64  # of a server
SPANS = 1 << 15  # ranges of a run's work in one message


class _Kind(type):
    """The type of all kinds of text: a `str` is an instance of a kind if it keeps its bounds."""

    most: int
    least: int

    def __instancecheck__(cls, value: object) -> bool:
        return (isinstance(value, str) and cls.least <= len(value) <= cls.most
                and value.isprintable())


def text_of(kind: Any, value: Any) -> str:
    """Return a peer's text as one of this kind; the `dec_hook` of every decoder of messages.

    What cannot be printed in a line becomes "?".

    Raises:
        ValueError: it is no text of this kind.
    """
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if not kind.least <= len(value) <= kind.most:
        raise ValueError(f"Expected `str` of length {kind.least} to {kind.most}")
    return printable(value)


def printable(text: str) -> str:
    """Return a text with "?" for each character that cannot be printed in a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def one_line(text: str, most: int = 400) -> str:
    """Return a text for one line: at most `most` characters, all of them printable."""
    return printable(text[:most])


if TYPE_CHECKING:
    from typing import Annotated as Text
else:
    class Text:
        """The kind of printable texts of `least` to `most` characters: Text[str, most, least]."""

        def __class_getitem__(cls, bounds: tuple[Any, ...]) -> type:
            _, most, *least = bounds
            return _Kind("Text", (), {"most": most, "least": least[0] if least else 0})

# Counters of a run (pushes, versions, steps, epochs); exact as a float64, too.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Position = NewType("Position", Count)  # in the run's work: see `wbsp.core.work_ledger`
Offset = NewType("Offset", Count)  # in a worker's sequence of ranges: the examples in front of it
OrNone = Annotated[int, Meta(ge=-1, le=1 << 53)]  # a Count, or `message.NONE`
Size = Annotated[int, Meta(ge=0, le=MAX_FLOATS)]  # floats or words of a vector, or an offset in it
Total = Annotated[int, Meta(ge=0, le=1 << 40)]  # floats of a version and of its optimizer state
Bytes = Annotated[int, Meta(ge=0, le=1 << 53)]
Random = Annotated[int, Meta(ge=0)]  # 63 bits that name something; 0: nothing
Worker = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]  # index, as given to the process
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]  # up to thirty years
# Sums of a whole run have no upper bound: a server may add up any number of reports.
Sum = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0, le=1.7e308)]  # finite, too
Finite = Annotated[float, Meta(ge=-1.7e308, le=1.7e308)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Id = Text[str, 64]  # of a run, a socket, a file
Host = Text[str, 255]  # as in DNS
Mac = Annotated[bytes, Meta(max_length=32)]  # or a nonce, or a key; empty: there is none
Macs = Annotated[list[Mac], Meta(max_length=4)]
Line = Text[str, 4096]  # for the user
Reason = Text[str, 400]  # of rejections, which are counted by it
# Of the Unix socket at which a process takes shared memory; "": it takes none.
SocketName = Annotated[str, Meta(max_length=37, pattern=r"^(wbsp-[0-9a-f]{32})?\Z")]
FileName = Text[str, 255]
# Of a checkpoint: results of an evaluation by name.
Metrics = Annotated[dict[Annotated[str, Meta(max_length=100)], Finite], Meta(max_length=128)]
State = Text[str, 1 << 21]  # JSON; limited by the size of a message
Settings = Annotated[dict[Text[str, 100], Text[str, 1 << 16]], Meta(max_length=256)]
Name = Text[str, NAME]  # of a variable
Shape = Annotated[tuple[Size, ...], Meta(max_length=DIMENSIONS)]
States = Annotated[dict[Id, Total], Meta(max_length=64)]  # of an outer optimizer: name -> floats
# Of shards: host and port; "": the host at which the server was reached.
Addresses = Annotated[list[tuple[Host, Port]], Meta(max_length=1024)]
