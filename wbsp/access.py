"""How a process reaches a server: the address, the secret, and what limits a connection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wbsp import given, timeouts
from wbsp.environment import address_of_server, shares_memory, token
from wbsp.process.token import Token, usual_there, usual_token
from wbsp.wire.addresses import all_here, split_addresses


@dataclass
class Access:
    """The way of one process to a server.

    Attributes:
        address: host:port, or several of them, separated by commas.
        token_file: file with the secret; "": there is none; None: that of `variable`, or else, for
            a server that may be on another machine, that of the usual place.
        variable: of the environment, which names that file.
        token: the secret; None: this process connects without one.
        timeout: seconds to wait for the first connection.
        patience: seconds to wait for a lost server.
        bandwidth: bytes/s in each direction, or None.
        share: share memory with a server of this machine and user, if there is no bandwidth.
    """

    address: str
    token_file: str | None = ""
    variable: str = "WBSP_TOKEN_FILE"
    token: bytes | None = field(default=None, compare=False, repr=False)
    timeout: float = field(default=timeouts.CONNECT, compare=False)
    patience: float = timeouts.WORKER_PATIENCE
    bandwidth: float | None = None
    share: bool = True

    @classmethod
    def of(cls, address: Any = None, token_file: Any = None,
           connect_timeout: Any = timeouts.CONNECT, patience: Any = timeouts.WORKER_PATIENCE,
           band_width_limit: Any = None, transport: Any = None) -> Access:
        """Return what the arguments of `SyncCallback` say, and else the environment.

        Raises:
            ValueError: one of them is bad; one line, which names it.
            OSError: the token file cannot be read; one line.
        """
        for name, text in (("address", address), ("transport", transport)):
            if text is not None and not isinstance(text, str):
                raise ValueError(f"{name}={given.shown(text)}: it must be a text")
        limit = math.inf if band_width_limit is None else given.above_zero(
            "band_width_limit", band_width_limit)
        return cls(address_of_server(address, split_addresses),
                   given.path("token_file", token_file),
                   timeout=given.seconds("connect_timeout", connect_timeout),
                   patience=given.seconds("patience", patience),
                   bandwidth=None if limit == math.inf else 1e6 * limit,
                   share=shares_memory(transport))

    def __post_init__(self) -> None:
        """Read the secret, unless it was given.

        Raises:
            ValueError: it is too short; one line.
            OSError: it cannot be read, or not by this user alone; one line.
        """
        if self.token is None:
            self.token = token(self.token_file, self.variable)
        self._chosen = self.token_file is not None or self.token is not None
        if not self._chosen and usual_there() and not all_here(self.address):
            self.token = usual_token()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process, which reads the secret from its file."""
        return {**self.__dict__, "token": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def warn(self, say: Callable[[str], None]) -> None:
        """Print a line on a token file that others can read, too."""
        if isinstance(self.token, Token) and (warning := self.token.warning()) is not None:
            say(warning)

    def other(self) -> bool:
        """Take the secret of the usual place, for a server that refuses this process without one.

        That is a server of this machine which other machines can reach, too.

        Returns:
            False if that secret does not exist, or was tried.

        Raises:
            ValueError: it is too short; one line.
            OSError: it cannot be read, or not by this user alone; one line.
        """
        if self._chosen or self.token is not None:
            return False
        self.token = usual_token()
        return self.token is not None
