"""Proof that a process knows a secret, which it does not say.

Each role of a run is a claim: "I am the standby", "I am the server, follow me", "I am worker 3 of
this run". The process that makes a claim sends it with a nonce of its own, and without a proof. The
other one answers with a `Challenge`: its nonce, and a MAC over both, which proves that it knows the
secret itself. Then the claim is sent again, with a MAC over both nonces and all that it says. So
neither a replay nor the relay of an answer to another question proves anything, and no process is
told more than a claim before it has proven itself.

Which secret that is:

- the run's own, which is made with the run's id: `wbsp.ps.launch` keeps it in run.json. Servers and
  standbys know it, and no worker does;
- a key that is derived from it: for the shards, and for each process of a worker (its *ticket*);
- a random number that a server gives to a worker and its shards: these prove themselves to each
  other;
- for processes that know no secret of the run yet, the key of a first contact: see
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
# What it means where a process knows none of the keys that it is to know.
STRANGER = ("it is a process of another user or of another run; start both processes as the same "
            "user, or both with the same --token_file")
_EMPTY = b""

Request = TypeVar("Request", m.Follow, m.Reattach, Lead, Present, m.NextVersion, m.Evaluated)


def mac(key: bytes, *parts: bytes | str | int) -> bytes:
    """HMAC-SHA256 over these parts, with the length of each: no two lists have the same."""
    made = hmac.new(key, digestmod="sha256")
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        made.update(len(data).to_bytes(8, "little") + data)
    return made.digest()


def key_of_shards(secret: bytes) -> bytes:
    """The key for the shards of the run with this secret: by it a later server proves itself."""
    return mac(secret, "shards")


def ticket(secret: bytes, worker: int, owner: str, epoch: int) -> bytes:
    """What the server of an epoch gives to a member: with it the member proves, to any server of
    the run, that it is the process that `owner` names, and that there was a server of that epoch.
    """
    return mac(secret, "ticket", worker, owner, epoch)


def attachment(secret: int) -> tuple[int, bytes]:
    """Name and key of a member's attachment to a shard, of the secret in `ShardGroup`.

    The name is all that the two say of it: a process that has taken a shard's port, and reads what
    was on its way, can prove itself to no worker, and to no shard.
    """
    known = secret.to_bytes(8, "little")
    name = int.from_bytes(mac(known, "name")[:8], "little") >> 1
    return name, mac(known, "attachment")


class Bond(NamedTuple):
    """What two processes share that have proven themselves to each other.

    key: that both know; nonce: of the one that made the claim; challenge: of the other one
    """

    key: bytes
    nonce: bytes
    challenge: bytes

    def mac(self, *parts: bytes | str | int) -> bytes:
        """MAC of a message between the two."""
        return mac(self.key, "bond", self.nonce, self.challenge, *parts)

    def proves(self, proof: bytes, *parts: bytes | str | int) -> bool:
        """Whether this is the MAC of a message between the two."""
        return hmac.compare_digest(proof, self.mac(*parts))

    def hidden(self, key: bytes) -> bytes:
        """A key that one of the two tells the other, such that no other process can read it; and
        that key again, of what was hidden."""
        return bytes(a ^ b for a, b in zip(key, self.mac("hidden"), strict=True))


class Challenges:
    """Challenges of a process to which peers make claims; one for each identity of a socket.

    They are valid as long as this object is there, and nothing has to be kept for them.
    """

    def __init__(self, random: Callable[[int], bytes]):
        """`random`: makes so many random bytes."""
        self._own = random(SIZE)

    def challenge(self, identity: bytes, nonce: bytes, *keys: bytes) -> Challenge:
        """The answer to a claim with this nonce that proves nothing yet."""
        own = self._nonce(identity)
        return Challenge(nonce, own, [mac(key, "challenge", nonce, own) for key in keys])

    def proven(self, identity: bytes, request: Request, *keys: bytes) -> Bond | None:
        """The bond with a peer whose claim is proven by one of these keys; None: by none."""
        own = self._nonce(identity)
        for key in keys if request.proof else ():
            if hmac.compare_digest(request.proof, _seal(key, request, own)):
                return Bond(key, request.nonce, own)
        return None

    def _nonce(self, identity: bytes) -> bytes:
        return mac(self._own, identity)


class Claim:
    """A claim of this process, over one connection after another.

    keys:  that the other process may know, those that prove most first
    nonce: of this connection
    bond:  what is shared with it; None: it has not proven itself over this connection
    """

    def __init__(self, random: Callable[[int], bytes], *keys: bytes):
        """`random`: as of `Challenges`."""
        self._random, self.keys = random, keys
        self.renew()

    def renew(self) -> None:
        """The connection is a new one: nothing is known of the process at the other end."""
        self.nonce = self._random(SIZE)
        self.bond: Bond | None = None

    def meets(self, challenge: Challenge) -> bool | None:
        """True: the other process proves that it knows one of the keys, for the first time over
        this connection; False: it knows none of them; None: that is no news, or answers a claim of
        an earlier connection."""
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
        """The claim with this process's nonce, and proven once the other process is."""
        request = structs.replace(request, nonce=self.nonce, proof=_EMPTY)
        if self.bond is None:
            return request
        return structs.replace(request,
                               proof=_seal(self.bond.key, request, self.bond.challenge))

    def answers(self, proof: bytes, *parts: bytes | str | int) -> bool:
        """Whether an answer to the claim's nonce alone is proven by one of the keys."""
        return any(hmac.compare_digest(proof, answer(key, self.nonce, *parts))
                   for key in self.keys)


def answer(key: bytes, nonce: bytes, *parts: bytes | str | int) -> bytes:
    """MAC of an answer to a question with this nonce."""
    return mac(key, "answer", nonce, *parts)


def _seal(key: bytes, request: Request, challenge: bytes) -> bytes:
    return mac(key, "claim", challenge, m.encode(structs.replace(request, proof=_EMPTY)))
