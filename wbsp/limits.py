"""Types of what a peer says, each with its bounds: what is beyond them does not decode.

So no text, list or number of a peer is longer or larger than what the code behind it was made for.
What a peer claims of the run (which push is due, which version there is) is checked where that is
known; the bounds here only keep every number such that it can be added up, stored and printed.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NAME = 1000  # characters of a variable's name
DIMENSIONS = 32  # of a variable
VARIABLES = 1 << 17  # of a model
MAX_FLOATS = 1 << 33  # of a model (32 GiB)
SHARDS = 64  # of a server
SPANS = 1 << 15  # ranges of a run's work in one message
# What counts up over a run (pushes, versions, steps, epochs); exact as a float64, too.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
OrNone = Annotated[int, Meta(ge=-1, le=1 << 53)]  # the same, or `message.NONE`
Size = Annotated[int, Meta(ge=0, le=MAX_FLOATS)]  # floats or words of a vector, or an offset in it
Total = Annotated[int, Meta(ge=0, le=1 << 40)]  # floats of a version and what is beside it
Bytes = Annotated[int, Meta(ge=0, le=1 << 53)]
Random = Annotated[int, Meta(ge=0)]  # 63 bits that name something; 0: nothing
Worker = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]  # index, as the process was told it
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]  # up to thirty years
Port = Annotated[int, Meta(ge=1, le=65535)]
Id = Annotated[str, Meta(max_length=64)]  # of a run, a socket, a file
Host = Annotated[str, Meta(max_length=255)]  # as in DNS
Mac = Annotated[bytes, Meta(max_length=32)]  # or a nonce, or a key; empty: there is none
Macs = Annotated[list[Mac], Meta(max_length=4)]
Line = Annotated[str, Meta(max_length=4096)]  # for people
Reason = Annotated[str, Meta(max_length=400)]  # by which rejections are counted
# Of the Unix socket at which a process takes shared memory; "": it takes none.
SocketName = Annotated[str, Meta(max_length=37, pattern=r"^(wbsp-[0-9a-f]{32})?\Z")]
FileName = Annotated[str, Meta(max_length=255)]
State = Annotated[str, Meta(max_length=1 << 21)]  # JSON; a message is no longer
Settings = Annotated[dict[Annotated[str, Meta(max_length=100)],
                          Annotated[str, Meta(max_length=1 << 16)]], Meta(max_length=256)]
Name = Annotated[str, Meta(max_length=NAME)]  # of a variable
Shape = Annotated[tuple[Size, ...], Meta(max_length=DIMENSIONS)]
States = Annotated[dict[Id, Total], Meta(max_length=64)]  # of an outer step: name -> floats
# Of shards: host, or "" for the one at which the server was reached, and port.
Addresses = Annotated[list[tuple[Host, Port]], Meta(max_length=1024)]


def one_line(text: str, most: int = 400) -> str:
    """Text that a peer wrote, fit for a line: at most so many characters, all of them printable."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])
