"""A claim is accepted only with the secret, for its own fields, and from the asked process."""

import os

from msgspec import structs

from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Bond, Challenges, Claim, answer, mac, ticket

SECRET, OTHER = bytes(32), bytes([1]) * 32
FOLLOW = m.Follow(m.PROTOCOL, {"sync": "asp"}, 2607, "ab12", 3)
IDENTITY = b"dealer"


def proven(claim, challenges, key=SECRET, identity=IDENTITY, follow=FOLLOW):
    """The claim, sealed after one challenge; None: the other side is not believed."""
    challenge = challenges.challenge(identity, claim.nonce, key)
    return claim.sealed(follow) if claim.meets(challenge) else None


def test_both_sides_prove_that_they_know_the_secret():
    claim, challenges = Claim(os.urandom, SECRET), Challenges(os.urandom)
    assert challenges.proven(IDENTITY, claim.sealed(FOLLOW), SECRET) is None, "asked for nothing"
    bond = challenges.proven(IDENTITY, proven(claim, challenges), OTHER, SECRET)
    assert bond == claim.bond and bond.key == SECRET
    assert bond.proves(claim.bond.mac("held", 4, 9), "held", 4, 9)
    assert not bond.proves(claim.bond.mac("held", 4, 9), "held", 49)
    assert not bond.proves(b"", "held", 4, 9)


def test_a_process_with_another_secret_learns_nothing():
    claim = Claim(os.urandom, OTHER)
    assert proven(claim, Challenges(os.urandom)) is None and claim.bond is None
    assert not claim.sealed(FOLLOW).proof
    forged = structs.replace(FOLLOW, nonce=claim.nonce, proof=os.urandom(32))
    assert Challenges(os.urandom).proven(IDENTITY, forged, SECRET) is None


def test_a_proof_is_of_one_message_one_socket_and_one_process():
    claim, challenges = Claim(os.urandom, SECRET), Challenges(os.urandom)
    said = proven(claim, challenges)
    assert challenges.proven(IDENTITY, said, SECRET)
    assert not challenges.proven(IDENTITY, structs.replace(said, rank=4), SECRET)
    assert not challenges.proven(b"another", said, SECRET)
    assert not Challenges(os.urandom).proven(IDENTITY, said, SECRET), "it was started again"


def test_a_replayed_challenge_proves_nothing():
    claim, challenges = Claim(os.urandom, SECRET), Challenges(os.urandom)
    old = challenges.challenge(IDENTITY, claim.nonce, SECRET)
    assert claim.meets(old)
    claim.renew()
    assert claim.bond is None and claim.meets(old) is None
    stale = structs.replace(old, claim=claim.nonce)
    assert claim.meets(stale) is False


def test_the_key_that_proves_most_is_taken_and_lists_are_not_confused():
    claim, challenges = Claim(os.urandom, SECRET, OTHER), Challenges(os.urandom)
    assert claim.meets(challenges.challenge(IDENTITY, claim.nonce, OTHER, SECRET))
    assert claim.bond.key == SECRET
    assert mac(SECRET, "ab", "c") != mac(SECRET, "a", "bc") != mac(SECRET, "abc")
    assert claim.answers(answer(OTHER, claim.nonce, "leading", 3), "leading", 3)
    assert not claim.answers(answer(OTHER, claim.nonce, "leading", 3), "leading", 4)
    tickets = {ticket(SECRET, *of) for of in [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2)]}
    assert len(tickets) == 4


def test_a_hidden_key_is_read_by_the_other_side_alone():
    bond, stranger = Bond(SECRET, b"n", b"c"), Bond(OTHER, b"n", b"c")
    assert bond.hidden(bond.hidden(OTHER)) == OTHER
    assert stranger.hidden(bond.hidden(OTHER)) != OTHER
