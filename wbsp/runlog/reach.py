"""Console lines on who can connect to a process that listens, and what to type there."""

from __future__ import annotations

import contextlib
import getpass
import shlex
from typing import NamedTuple

from wbsp.process.token import Token

# The usual place of another machine, whatever XDG_CONFIG_HOME is here.
_THERE = "~/.config/wbsp/token"


class Reach(NamedTuple):
    """Who can reach a process that listens.

    Attributes:
        beyond: other machines can.
        address: host:port at which they find it.
        token: that they need, or None.
        made: the token was made for this process.
    """

    beyond: bool
    address: str
    token: Token | None
    made: bool

    def of_token(self) -> list[str]:
        """Return the lines on the token itself."""
        token = self.token
        lines = []
        if token is not None and self.made:
            lines.append(f"made a token, for this and later runs: {token.file}")
        if token is not None and (warning := token.warning()):
            lines.append(warning)
        return lines

    def of_server(self, worker: str) -> list[str]:
        """Return the lines of a server; `worker`: the command that starts a worker."""
        if not self.beyond:
            return ["only this machine can connect; for workers on other machines, start the "
                    "server with --host=0.0.0.0"]
        start = f"WBSP_SERVER={self.address} {worker}"
        if self.token is None or not self.token.file:
            return [f"other machines can connect; a worker there: {start}"]
        if not self.token.usual:
            name = shlex.quote(self.token.file)
            return [f"other machines can connect; a worker there, with a copy of {name}: "
                    f"WBSP_TOKEN_FILE={name} {start}"]
        return [f"other machines can connect; type there, once: {self._copies()}",
                f"and for each worker there: {start}"]

    def of_shard(self) -> list[str]:
        """Return the lines of a shard."""
        if not self.beyond:
            return ["only this machine can connect; for a server and workers on other machines, "
                    "start the shard with --host=0.0.0.0"]
        return [f"its server names it by --shards={self.address}, and has the same token"]

    def _copies(self) -> str:
        """Return the command that copies the token to the usual place of another machine."""
        assert self.token is not None
        host = self.address.split(",")[0].rpartition(":")[0]
        user = ""
        with contextlib.suppress(OSError, KeyError, ImportError):  # it has no name
            user = f"{getpass.getuser()}@"
        source = shlex.quote(f"{user}{host}:{self.token.file}")
        return f"mkdir -pm 700 {_THERE.rpartition('/')[0]} && scp {source} {_THERE}"
