"""The versions of a run, for a process that evaluates them during the training.

    for version in wbsp.versions("localhost:2606"):
        version.assign(model)
        version.report(**model.evaluate(x, y, return_dict=True))

It may start, die and restart at any time: training neither waits for it nor loses anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from wbsp import given, timeouts
from wbsp.access import Access
from wbsp.environment import shown_server
from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.process.streams import fill_numbers
from wbsp.process.throttle import Throttle
from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.runlog.awaited import Awaited
from wbsp.runlog.console import say
from wbsp.saved import assign, read_at
from wbsp.wire.addresses import endpoints, split_addresses, to_check
from wbsp.wire.line import TROUBLE, Foreign, Line, Nobody, Refused
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.reading import METRICS

if TYPE_CHECKING:
    import keras

_CHECKPOINTS, _EPOCHS = "checkpoints", "epochs"
_PAUSE = 0.5  # seconds between two questions for a newer version
_FIRST_NOTICE, _NEXT_NOTICE = 2.0, 15.0  # seconds of waiting for the server before a line


class Version:
    """A version of a run.

    Attributes:
        number: of the version; training began with 0.
        run: the run's id.
        fit: number of the run among those of its server, 1, 2 ...: one for each `fit` of its
            workers.
        epoch: 0, 1 ... if it is the first version with all of that epoch of the workers' shared
            data; None: it is not, or that is unknown.
        last: whether it is the run's final version.
    """

    def __init__(self, saved: Checkpoint, at: m.VersionAt, server: Reader):
        self.number = saved.state.version
        self.run = at.run
        self.fit = at.fit
        self.epoch = None if at.epoch == m.NONE else at.epoch
        self.last = at.last
        self._saved = saved
        self._server = server

    def assign(self, model: keras.Model) -> None:
        """Set a model to this version.

        Args:
            model: a model that is built like those of the run's workers.

        Raises:
            ValueError: the model does not fit the run; one line.
        """
        assign(self._saved, model, f"version {self.number}")

    def report(self, **metrics: float) -> None:
        """Send the metrics of this version to the run.

        They become events of the run. By the metrics that its flags `--best` and `--target` name,
        the server keeps the best version and ends the run. Only the first report of a version
        counts. A value that is not finite is left out, with a line for the user.

        Args:
            metrics: at most 64 numbers, by name.

        Raises:
            ValueError: a value is no number, or there are more than 64.
            ConnectionError: the server is gone; one line.
        """
        if len(metrics) > METRICS:
            raise ValueError(f"{len(metrics)} metrics: at most {METRICS} of a version are allowed")
        found = {}
        for name, value in metrics.items():
            number = given.number(name, value)
            short = one_line(name, 100)
            if not abs(number) <= 1e300:
                self._server.say(f"version {self.number}: {short} is {number}, and not reported")
            elif not short or short in found:
                self._server.say(f"version {self.number}: another metric is named {short!r}, too: "
                                 "it is not reported")
            else:
                found[short] = number
        self._server.report(m.Evaluated(self.run, self.number, found))


def versions(address: str | None = None, *, at: str = "checkpoints", every: float = 0.0,
             token_file: str | None = None, patience: float = timeouts.WORKER_PATIENCE,
             say: Callable[[str], None] = say) -> Iterator[Version]:
    """Return the versions of the runs that are served at `address`, until the server ends.

    The last version of a run is its final one. A reader that is slower than the versions gets the
    newest each time.

    Args:
        address: host:port of the server; with a standby: host:port,host:port; default: from the
            environment, as for `SyncCallback`, else localhost:2606.
        at: "checkpoints": the versions in the server's checkpoints. "epochs": for each epoch of the
            workers' shared data, the first version with all of it; workers then validate nothing,
            and the reports of this process are their `val_` results.
        every: minimum seconds between two versions.
        token_file: file with the shared secret; default: the environment variable
            WBSP_TOKEN_FILE, else ~/.config/wbsp/token for a server of another machine. Without a
            token this process must run on the server's machine, as its user.
        patience: seconds to wait for a server, at first and when it is lost. If it is lost after
            its run's final version was read, at most 30 s, and then it counts as ended.
        say: function that prints a line for the user.

    Raises:
        ValueError: an argument is wrong.
        OSError: the token file cannot be read; one line.
        ConnectionError: no server answers, or it refuses; one line.
    """
    if not isinstance(at, str) or at not in (_CHECKPOINTS, _EPOCHS):
        raise ValueError(f"at={given.shown(at)}: it is {_CHECKPOINTS!r} or {_EPOCHS!r}")
    if not callable(say):
        raise ValueError(f"say={given.shown(say)}: it must be a function that prints a line")
    every = given.seconds("every", every)
    access = Access.of(address, token_file, patience=patience)
    access.warn(say)
    fill_numbers()
    return Reader(access, say, at == _EPOCHS).versions(every)


class _NoServer(ConnectionError):
    """No server has answered in time."""


class Reader:
    """A reader of a server's versions; after a lost connection, it searches the server again."""

    def __init__(self, access: Access, say: Callable[[str], None], epochs: bool = False,
                 on: Host = HOST, key: bytes = b""):
        """Set up. `epochs`: read the epochs' versions; `key`: as in `messages.NextVersion`."""
        self._key = key
        self._on = on
        self._clock = on.clock
        self._access, self._address, self._patience = access, access.address, access.patience
        self._epochs = epochs
        self.say = say
        self._context = on.network.context()
        self._line: Line | None = None
        self._run, self._newest = "", m.NONE  # of the newest version that was read
        self._over = False  # that version was the final one of the current run
        self._awaited = Awaited(say)
        self._unread_since: float | None = None  # no version could be read since then

    def versions(self, every: float) -> Iterator[Version]:
        """Yield the versions, at least that many seconds apart."""
        with contextlib.closing(self):
            due = 0.0
            while (version := self.next(due)) is not None:
                due = self._clock.monotonic() + every
                yield version
                if version.last:
                    due = 0.0

    def next(self, due: float) -> Version | None:
        """Return the newest version, once it is a new one and its time, `due`, has come.

        None: no run has any more.
        """
        while True:
            try:
                answer = self._ask(m.NextVersion(m.PROTOCOL, self._run, self._newest, self._epochs,
                                                 self._key), m.VersionAt)
            except _NoServer:
                if self._over:  # the server has ended, and its last answer was lost
                    return None
                raise
            if answer.ends:
                return None
            self._over = answer.last and answer.version == m.NONE
            if answer.version != m.NONE and (answer.last or self._clock.monotonic() >= due):
                assert self._line is not None, "over which the answer came"
                saved = read_at(self._line.place, answer, self._access.token, self._on)
                if not isinstance(saved, str):
                    self._run, self._newest = answer.run, answer.version
                    self._over, self._unread_since = answer.last, None
                    return Version(saved, answer, self)
                self._await_version(one_line(saved))
            self._clock.sleep(_PAUSE)

    def _await_version(self, problem: str) -> None:
        """Wait for a version that can be read. Raises ConnectionError, in one line, at the end."""
        now = self._clock.monotonic()
        self._unread_since = self._unread_since or now
        left = self._unread_since + self._patience - now
        if not self._awaited.wait("the server", f"to send a version ({problem})",
                                  left, "this process gives up", now):
            raise ConnectionError(f"{self._address}: no version could be read within "
                                  f"{self._patience:g} s: {problem}")

    def report(self, found: m.Evaluated) -> None:
        """Send the metrics to the server. Raises ConnectionError in one line."""
        answer = self._ask(found, m.Noted)
        if answer.problem:
            self.say(f"version {found.version}: the server ignores its metrics: "
                     f"{one_line(answer.problem)}")

    def close(self) -> None:
        self._leave()
        self._context.destroy(0)

    def _ask(self, question: Any, kind: Any) -> Any:
        """Return the answer, of this type. Raises ConnectionError in one line."""
        begun = self._clock.monotonic()
        end = begun + (min(self._patience, timeouts.READ_TO_THE_END) if self._over else
                       self._patience)
        notice = Throttle(_NEXT_NOTICE, begun + _FIRST_NOTICE)
        while True:
            problem, nobody = f"the host name of {self._address} is not known", True
            for place in self._places():
                try:
                    return self._try(place, question, kind)
                except Foreign as error:
                    if not self._access.other():
                        raise ConnectionError(f"{self._address}: {error}") from None
                    problem = str(error)
                    self._leave()
                except Refused as error:
                    raise ConnectionError(f"{self._address}: {error}") from None
                except TROUBLE as error:
                    problem = str(error)
                    nobody = nobody and isinstance(error, Nobody)
                    self._leave()
            if (now := self._clock.monotonic()) > end:
                raise _NoServer(f"{self._address}: {problem}"
                                + (f"; {to_check(self._address)}" if nobody else ""))
            if notice.due(now) and not self._over:
                self.say(f"waiting for the server at {shown_server(self._address)}, for "
                         f"{end - now:.0f} s more: {problem}")
            self._clock.sleep(_PAUSE)

    def _places(self) -> Iterator[str]:
        for host, port in split_addresses(self._address):
            with contextlib.suppress(OSError):  # the name may be unknown for a moment only
                yield from endpoints(host, port, self._on.network)

    def _try(self, place: str, question: Any, kind: Any) -> Any:
        if self._line is None:
            self._line = Line(self._context, place, self._access.token, self._on)
        return self._line.ask_proven(question, kind)

    def _leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
