"""A member's place in a run: its introduction to known and unknown servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from msgspec import structs

from wbsp import timeouts
from wbsp.core.messages import Span, WorkHeld
from wbsp.core.resend_buffer import ResendBuffer
from wbsp.core.rules import RuleBroken
from wbsp.core.stats import AnsweredWork
from wbsp.sync.base import UNFIT, Push
from wbsp.tensors.blocks import encoded, found
from wbsp.tensors.codecs import FLOAT32, Ranges, parse
from wbsp.tensors.error_feedback import ErrorFeedback, Sent
from wbsp.tensors.layout import total_size
from wbsp.tensors.ops import bounds
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Claim


class Session:
    """A member's place in a run, over all its connections.

    A worker never returns to a server of a lower epoch than the highest that it knows, because that
    server has been replaced, even if it does not know.

    Attributes:
        hello: None before the first.
        join: None before the first.
        joined: the answer to that, once a server has admitted this worker.
        member: a server has admitted this worker.
        kept: decided cuts that would be lost with the server.
        lacks: first push whose decision the server lacks that this worker attaches to.
        version: newest received one.
        left: this worker has finished, and waits for the final version.
        wire: the run's format.
        claim: proof that this process owns its index.
        was: proof that this process was this worker in an earlier run; None: it was none, or the
            server does not know of it.
        sending: error feedback: the sent part of a cut, and the rest for the next.
        sparse: the newest update was sent as the blocks that are not zero.
        held: version that the server may add differences to; NONE: none.
        work: returns what it holds of the run's shared data; None: it has its own data.
        epoch: of the server that this worker belongs to: the highest that it knows.
        promised: epoch of the server that it has voted for; 0: none.
    """

    def __init__(self, random: Callable[[int], bytes],
                 say: Callable[[str], None] = lambda text: None):
        """Start; `random`: returns a number of random bytes; `say`: prints a console line."""
        self._random, self._say = random, say
        self.hello: m.Hello | None = None
        self.join: m.Join | None = None
        self.member = False
        self.kept = ResendBuffer()
        self.lacks: int | None = None
        self.version = 0
        self.left = False
        self.wire = FLOAT32
        self.claim = Claim(random)
        self.was: Claim | None = None
        self.sending = ErrorFeedback(self.wire)
        self.sparse = False
        self.held = m.NONE
        self.work: Callable[[], WorkHeld] | None = None
        self._run: str | None = None  # id
        self.joined: m.Joined | None = None
        self.epoch = 0
        # Of the newest answer by which a server admitted this worker: the resend buffer counts by
        # that server's ledger. A server is known earlier, from its own messages.
        self._ledger = 0
        self.promised = 0
        self._doubted: dict[int, float] = {}  # epoch -> time of the first request without a vote
        self._zero = 0.0  # of the run's time, in seconds of the monotonic clock

    @property
    def introduction(self) -> m.Hello:
        """Return Hello, with this worker's present knowledge of the run."""
        hello = self.hello
        assert hello is not None
        if self.epoch:
            hello = structs.replace(hello, run=self._run or "", epoch=self.epoch)
        return hello if self.was is None else self.was.sealed(hello)

    def introduces(self, hello: m.Hello) -> None:
        """Note with which introduction this worker connects."""
        self.hello = hello

    def asks_to_join(self, join: m.Join) -> None:
        """Note with which model this worker joins."""
        self.join = join

    def leaves(self, finished: bool) -> None:
        """Note that this worker leaves; `finished`: it waits for the final version."""
        self.left = finished

    def shares(self, held: Callable[[], WorkHeld] | None) -> None:
        """Note what returns what this worker holds of shared data; None: it has its own."""
        self.work = held

    def resends(self, first: int) -> None:
        """Note the first push whose decision the server lacks."""
        self.lacks = first

    def has_been(self, key: bytes) -> None:
        """Introduce this worker as the process with this key; as in `Welcome`, of a run before."""
        self.was = Claim(self._random, key)

    def meets(self, challenge: m.Challenge) -> bool:
        """Return whether to send the introduction again, after this answer to it."""
        met = None if self.was is None else self.was.meets(challenge)
        if met is False:  # a server that begins anew, which knows nothing of the run before
            self.was = None
        return met is not None

    def outdated(self, epoch: int) -> str | None:
        """Return why this worker avoids a server of this epoch, in one line, or None."""
        if epoch >= self.epoch:
            return None
        return (f"the server there is of epoch {epoch}, and this worker knows a later one of epoch "
                f"{self.epoch}: searching for that")

    def welcomed(self, welcome: m.Welcome) -> None:
        """Handle a server's answer to Hello.

        Raises:
            TransportError: the server serves another run.
        """
        run = welcome.run.id
        if self._run not in (None, run):
            raise TransportError(f"the server was restarted, and serves another run ({run} instead "
                                 f"of {self._run}): start this worker again")
        if self._run is None:
            try:
                self.wire = parse(welcome.run.wire)
            except ValueError as error:
                raise TransportError("the server and this worker are of different releases of "
                                     f"wbsp: {error}") from None
            self.sending = ErrorFeedback(self.wire)
        self._run = run
        if welcome.worker is not None and self.hello is not None:  # it keeps this index
            self.hello = structs.replace(self.hello, worker=welcome.worker, given=False)
        self.leads(welcome.epoch)

    def admitted(self, joined: m.Joined, now: float) -> None:
        """Note that this worker is a member. Raises RuleBroken: of a server that was replaced."""
        self._belongs(joined.epoch)
        self.joined = joined
        self.member = True
        self.leads(joined.epoch, joined.ticket)
        if joined.group is not None and not self.wire.lossless and self.join is not None:
            ends = bounds(total_size(self.join.layout), len(joined.group.addresses))
            self.sending = ErrorFeedback(Ranges(self.wire, ends))
        self._zero = now - joined.now
        self.kept = ResendBuffer(joined.seq)
        self._ledger = joined.epoch

    def reattach(self, door: str, waits: bool, now: float) -> m.Reattach:
        """Return the introduction of a member over a new connection.

        Args:
            door: as in `Line`.
            waits: as in `Reattach`; it must hold until the server answers, so that the member must
                receive no messages before.
        """
        self.lacks = None
        assert self.hello and self.join and self.joined, "this worker is a member"
        assert self.hello.worker is not None, "the server has chosen it"
        return self.claim.sealed(m.Reattach(
            m.PROTOCOL, self.hello.worker, self._run or "", self.epoch, self.join.layout,
            self.joined.seq, self.kept.answered, self.kept.first, self.version, self.left,
            waits, now - self._zero, door, self.joined.owner, ledger=self._ledger,
            work=None if self.work is None else self.work()))

    def lacking(self) -> tuple[AnsweredWork, np.ndarray] | None:
        """Return the sum that the server lacks, float32 [size], and its work; None: it lacks none.

        Raises:
            TransportError: the buffer does not hold the sum.
        """
        if self.lacks is None:
            return None
        assert self.join
        found = self.kept.since(self.lacks)
        if found is None or found[0].first != self.lacks:
            raise TransportError(f"the server requests pushes from {self.lacks} on, which this "
                                 f"worker no longer holds: it has {found and found[0]}")
        work, total = found
        return work, np.zeros(total_size(self.join.layout), np.float32) if total is None else total

    def encode(self, update: np.ndarray) -> Sent:
        """Return an update, float32 [size], in the run's format, with its sent part."""
        lossy = self.wire.in_blocks and not self.wire.lossless
        return self.sending.send((found(update) if lossy else None) or update)

    def owe(self, unsent: np.ndarray | None, decided: np.ndarray | None) -> None:
        """Begin with what an earlier process of this member had not sent.

        Args:
            unsent: that, float32 [size]; None: nothing.
            decided: an update that it pushed after that, and that the server has decided on, or
                None: what the format leaves of it is not sent, either.
        """
        self.sending.owe(unsent)
        if decided is not None:
            self.encode(decided)

    def parts(self, words: np.ndarray, group: m.ShardGroup | None) -> list[np.ndarray]:
        """Return the words of an update to send, one array for each shard.

        If most blocks of the update are zero, the arrays contain the others only.
        """
        if self.wire.lossless:
            ends = bounds(words.size, 1 if group is None else len(group.addresses))
            parts = [words[start:stop] for start, stop in pairwise(ends)]
        else:
            parts = self.sending.wire.parts(words) or [words]
        if self.wire.in_blocks:
            parts = [encoded(part) for part in parts]
        self.sparse = sum(part.size for part in parts) < words.size
        return parts

    def received(self, version: int, held: int) -> None:
        """Note a complete version, and the version that is held from here on."""
        self.version, self.held = version, held

    def reattached(self, answer: m.Reattached) -> None:
        """Note that the server knows this worker again. Raises RuleBroken as `admitted`."""
        self._belongs(answer.epoch)
        self.lacks = None
        self.held = m.NONE  # another server knows only its own versions
        if answer.joined and (answer.since or answer.epoch) > self._ledger:
            self.kept.replayed(answer.safe, answer.mark, answer.void)
        self._ledger = max(self._ledger, answer.epoch)
        self.leads(answer.epoch, answer.ticket)

    def _belongs(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise RuleBroken(f"a server of epoch {epoch} admits a worker that knows one of epoch "
                             f"{self.epoch}: no worker returns to a lower epoch")

    def answered(self, push: Push, sent: np.ndarray, ack: m.Ack,
                 spans: Sequence[Span] = ()) -> None:
        """Keep an answered push in the resend buffer until it is durable.

        If the push was rejected as not finite, or as too large, its error-feedback residual is
        dropped, too, because it would spoil the next pushes.
        """
        if ack.reason in UNFIT:
            self.sending.owe(None)
        self.kept.add(push, sent, ack.weight, ack.mark, ack.durable,
                      None if ack.accepted else ack.reason or "", spans)

    def leads(self, epoch: int, ticket: bytes = b"") -> None:
        """Note the epoch of this worker's server, which the ticket proves, if any.

        A vote for the other server that follows the epoch before is void.
        """
        if epoch > self.epoch:
            self.epoch = epoch
            self.promised = 0
            self._doubted.clear()
        if ticket and epoch == self.epoch:
            self.claim.has(ticket)

    def choose(self, message: m.Elect | m.Leading | m.NotServing, now: float,
               attached: bool = True) -> m.Elected | None:
        """Handle a server's request for a vote, or its report that it serves; return the answer.

        A worker votes for only one of the servers that follow one epoch, so that no two can win.
        The vote stays, wherever the worker connects, until its server releases it, or the other one
        reports that it serves, and that the first one knows.

        `attached`: a server has answered over this connection; otherwise its message may be old.
        """
        if isinstance(message, m.Leading):
            if message.epoch == self.epoch and attached:
                self.promised = 0
            self.leads(message.epoch, message.ticket)
        elif isinstance(message, m.Elect):
            return self._promise(message, now)
        elif self.promised == message.released:
            self.promised = 0
        return None

    def _promise(self, elect: m.Elect, now: float) -> m.Elected | None:
        if elect.since != self.epoch or elect.epoch <= elect.since:
            return None
        if not self.promised:
            if self._lacks(elect, now):
                return None
            self.promised = elect.epoch
        return m.Elected(self.promised)

    def _lacks(self, elect: m.Elect, now: float) -> bool:
        """Return whether to withhold a vote from a server with less than the durable state.

        A worker does so while the server with that state may still reconnect.
        """
        durable = self.kept.durable
        if elect.due >= durable:
            return False
        if elect.epoch not in self._doubted:
            self._doubted[elect.epoch] = now
            self._say(f"a restarted server holds this worker's pushes below {elect.due}, and "
                      f"another one holds those below {durable}: waiting up to "
                      f"{timeouts.VOTE_WITHHELD:g} s for that; restart it if it has ended")
        return now - self._doubted[elect.epoch] < timeouts.VOTE_WITHHELD
