"""Types of the values in messages, each with its bounds: values out of bounds do not decode.

So no text, list or number of a peer is longer or larger than the code expects. A peer's claims
about the run (which push is due, which version there is) are checked by the code that knows the
run. These bounds only make every number safe to add, store and print.
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
# Counters of a run (pushes, versions, steps, epochs); exact as a float64, too.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
OrNone = Annotated[int, Meta(ge=-1, le=1 << 53)]  # a Count, or `message.NONE`
Size = Annotated[int, Meta(ge=0, le=MAX_FLOATS)]  # floats or words of a vector, or an offset in it
Total = Annotated[int, Meta(ge=0, le=1 << 40)]  # floats of a version and of its optimizer state
Bytes = Annotated[int, Meta(ge=0, le=1 << 53)]
Random = Annotated[int, Meta(ge=0)]  # 63 bits that name something; 0: nothing
Worker = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]  # index, as given to the process
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]  # up to thirty years
Port = Annotated[int, Meta(ge=1, le=65535)]
Id = Annotated[str, Meta(max_length=64)]  # of a run, a socket, a file
Host = Annotated[str, Meta(max_length=255)]  # as in DNS
Mac = Annotated[bytes, Meta(max_length=32)]  # or a nonce, or a key; empty: there is none
Macs = Annotated[list[Mac], Meta(max_length=4)]
Line = Annotated[str, Meta(max_length=4096)]  # for the user
Reason = Annotated[str, Meta(max_length=400)]  # of rejections, which are counted by it
# Of the Unix socket at which a process takes shared memory; "": it takes none.
SocketName = Annotated[str, Meta(max_length=37, pattern=r"^(wbsp-[0-9a-f]{32})?\Z")]
FileName = Annotated[str, Meta(max_length=255)]
State = Annotated[str, Meta(max_length=1 << 21)]  # JSON; limited by the size of a message
Settings = Annotated[dict[Annotated[str, Meta(max_length=100)],
                          Annotated[str, Meta(max_length=1 << 16)]], Meta(max_length=256)]
Name = Annotated[str, Meta(max_length=NAME)]  # of a variable
Shape = Annotated[tuple[Size, ...], Meta(max_length=DIMENSIONS)]
States = Annotated[dict[Id, Total], Meta(max_length=64)]  # of an outer optimizer: name -> floats
# Of shards: host and port; "": the host at which the server was reached.
Addresses = Annotated[list[tuple[Host, Port]], Meta(max_length=1024)]


def one_line(text: str, most: int = 400) -> str:
    """Return a peer's text for one line: at most `most` characters, all of them printable."""
    return "".join(c if c.isprintable() else "?" for c in text[:most])
