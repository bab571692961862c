"""Proof that a process knows a secret, without sending the secret.

Each role of a run is a claim: "I am the standby", "I am the server, follow me", "I am worker 3 of
this run". The process that makes a claim sends it with a nonce, and without a proof. The other
process answers with a `Challenge`: its own nonce, and a MAC over both, which proves that it knows
the secret. Then the first process sends the claim again, with a MAC over both nonces and the whole
claim. So neither a replay nor a relayed answer to another question proves anything, and a process
reveals nothing but its claim to a process that has not proven itself.

The secret is one of these:

- the run's own, created with the run's id: `wbsp.ps.launch` keeps it in run.json. Servers and
  standbys know it, workers do not;
- a key derived from it: for the shards, for each process of a worker in a run (its *ticket*), and
  for each of these processes in all runs of one server;
- a random number that a server gives to a worker and its shards, which prove themselves to each
  other;
- for processes that do not know a secret of the run yet, the key of a first contact: see
  `ServerSocket.contact`.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msgspec import structs

from wbsp.wire.messages import codec as m
from wbsp.wire.messages.replication import Challenge
from wbsp.wire.messages.sharding import Lead, Present

SIZE = 32  # bytes of a secret, of a nonce and of a MAC
# The meaning, if a process knows none of the expected keys.
STRANGER = ("it is a process of another user or of another run; start both processes as the same "
            "user, or both with the same --token_file")
_EMPTY = b""

Request = TypeVar("Request", m.Hello, m.Follow, m.Reattach, Lead, Present, m.NextVersion,
                  m.Evaluated)


def mac(key: bytes, *parts: bytes | str | int) -> bytes:
    """Return the HMAC-SHA256 over these parts and their lengths, so that no two lists collide."""
    made = hmac.new(key, digestmod="sha256")
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        made.update(len(data).to_bytes(8, "little") + data)
    return made.digest()


def key_of_shards(secret: bytes) -> bytes:
    """Return the key by which a later server of the run proves itself to the shards."""
    return mac(secret, "shards")


def ticket(secret: bytes, worker: int, owner: str, epoch: int) -> bytes:
    """Return what the server of an epoch gives to a member.

    With it the member proves to any server of the run that it is the process `owner`, and that
    there was a server of that epoch.
    """
    return mac(secret, "ticket", worker, owner, epoch)


def key_of_process(secret: bytes, worker: int, own: bytes) -> bytes:
    """Return what a server gives to the process that it welcomes as this worker.

    With it the process proves, to any server of the same series of runs, that it was this worker
    in an earlier one; `own`: its random number, as in `messages.Hello`.
    """
    return mac(secret, "process", worker, own)


def attachment(secret: int) -> tuple[int, bytes]:
    """Return name and key of a member's attachment to a shard, from the secret in `ShardGroup`.

    Member and shard send only the name. So a process that has taken a shard's port, and reads what
    was sent to it, can prove itself neither to workers nor to shards.
    """
    known = secret.to_bytes(8, "little")
    name = int.from_bytes(mac(known, "name")[:8], "little") >> 1
    return name, mac(known, "attachment")


class Bond(NamedTuple):
    """What two processes share that have proven themselves to each other.

    Attributes:
        key: that both know.
        nonce: of the process that made the claim.
        challenge: of the other process.
    """

    key: bytes
    nonce: bytes
    challenge: bytes

    def mac(self, *parts: bytes | str | int) -> bytes:
        """Return the MAC of a message between the two."""
        return mac(self.key, "bond", self.nonce, self.challenge, *parts)

    def proves(self, proof: bytes, *parts: bytes | str | int) -> bool:
        """Return whether `proof` is the MAC of this message between the two."""
        return hmac.compare_digest(proof, self.mac(*parts))

    def hidden(self, key: bytes) -> bytes:
        """Encrypt a key that one of the two sends to the other; applied again, decrypt it."""
        return bytes(a ^ b for a, b in zip(key, self.mac("hidden"), strict=True))


class Challenges:
    """The challenges of a process to which peers make claims, one for each identity of a socket.

    They are valid as long as this object exists; it stores nothing for each of them.
    """

    def __init__(self, random: Callable[[int], bytes]):
        """`random`: returns the given number of random bytes."""
        self._own = random(SIZE)

    def challenge(self, identity: bytes, nonce: bytes, *keys: bytes) -> Challenge:
        """Return the answer to a claim with this nonce that has no proof yet."""
        own = self._nonce(identity)
        return Challenge(nonce, own, [mac(key, "challenge", nonce, own) for key in keys])

    def admit(self, send: Callable[[bytes, m.Message], object], identity: bytes,
              request: Request, *keys: bytes) -> Bond | None:
        """As `proven`, and challenge a peer without a proof: `send`(identity, challenge)."""
        bond = self.proven(identity, request, *keys)
        if bond is None:
            send(identity, self.challenge(identity, request.nonce, *keys))
        return bond

    def proven(self, identity: bytes, request: Request, *keys: bytes) -> Bond | None:
        """Return the bond with a peer whose claim one of these keys proves; None if none does."""
        own = self._nonce(identity)
        for key in keys if request.proof else ():
            if hmac.compare_digest(request.proof, _seal(key, request, own)):
                return Bond(key, request.nonce, own)
        return None

    def _nonce(self, identity: bytes) -> bytes:
        return mac(self._own, identity)


class Claim:
    """A claim of this process, over one connection after another.

    Attributes:
        keys: that the other process may know, those that prove most first.
        nonce: of this connection.
        bond: with the other process; None: it has not proven itself over this connection.
    """

    def __init__(self, random: Callable[[int], bytes], *keys: bytes):
        """`random`: see `Challenges`."""
        self._random, self.keys = random, keys
        self.renew()

    def has(self, *keys: bytes) -> None:
        """Claim to know these keys from here on."""
        self.keys = keys

    def renew(self) -> None:
        """Begin with a new connection: nothing is known of the process at the other end."""
        self.nonce = self._random(SIZE)
        self.bond: Bond | None = None

    def meets(self, challenge: Challenge) -> bool | None:
        """Check the other process's proof that it knows one of the keys.

        Returns True for the first proof over this connection, False if it knows none of the keys,
        and None for a repeated proof or an answer to a claim of an earlier connection.
        """
        if challenge.claim != self.nonce:
            return None
        known = self.bond is not None
        self.bond = None
        for key in self.keys:
            expected = mac(key, "challenge", self.nonce, challenge.nonce)
            if any(hmac.compare_digest(expected, proof) for proof in challenge.proofs):
                self.bond = Bond(key, self.nonce, challenge.nonce)
                return None if known else True
        return False

    def sealed(self, request: Request) -> Request:
        """Return the claim with this process's nonce, and with a proof once there is a bond."""
        request = structs.replace(request, nonce=self.nonce, proof=_EMPTY)
        if self.bond is None:
            return request
        return structs.replace(request,
                               proof=_seal(self.bond.key, request, self.bond.challenge))

    def answers(self, proof: bytes, *parts: bytes | str | int) -> bool:
        """Return whether one of the keys proves an answer to the claim's nonce alone."""
        return any(hmac.compare_digest(proof, answer(key, self.nonce, *parts))
                   for key in self.keys)


def answer(key: bytes, nonce: bytes, *parts: bytes | str | int) -> bytes:
    """Return the MAC of an answer to a question with this nonce."""
    return mac(key, "answer", nonce, *parts)


def _seal(key: bytes, request: Request, challenge: bytes) -> bytes:
    return mac(key, "claim", challenge, m.encode(structs.replace(request, proof=_EMPTY)))
