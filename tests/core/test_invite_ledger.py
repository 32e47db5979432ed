"""The founder's ledger: uses, revocations, what is forgotten; a rule-based machine against a plain model."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CLOCK_SKEW_MS
from p2pmesh.core import invite_ledger
from p2pmesh.core.credentials import Refusal, RefusalReason
from p2pmesh.core.invite_ledger import MAX_COUNTED_USES, MAX_ISSUED, InviteLedger
from p2pmesh.wire.invite import LIFE_MS, Invite
from p2pmesh.wire.membership_pass import LIFE_MS as PASS_LIFE_MS
from p2pmesh.wire.revocation import Revocation
from p2pmesh.wire.schema import from_map, pack, to_map, unpack
from tests.wire.keys import FOUNDER, JOINER, STRANGER, TestKey

NOW = 1_780_000_000_000
PEERS = [TestKey(f"peer {number}").peer_id for number in range(5)]


def invite_of(number: int = 0, max_uses: int = 0, life_ms: int = LIFE_MS, now: int = NOW) -> Invite:
    fresh = number.to_bytes(16, "big")
    return Invite(fresh, FOUNDER.requirements, now, now + life_ms, ("/ip4/192.0.2.7/tcp/1",), max_uses=max_uses)


def issued(*invites: Invite) -> InviteLedger:
    ledger = InviteLedger()
    for invite in invites:
        ledger = invite_ledger.issue(ledger, invite, invite.issued_unix_ms)
    return ledger


def redeemed(ledger: InviteLedger, invite: Invite, peer: PeerId) -> InviteLedger:
    outcome = invite_ledger.redeem(ledger, invite, peer)
    assert isinstance(outcome, InviteLedger), outcome
    return outcome


def test_a_single_use_is_one_peer_who_may_come_again() -> None:
    invite = invite_of(max_uses=1)
    ledger = redeemed(issued(invite), invite, JOINER.peer_id)
    assert redeemed(ledger, invite, JOINER.peer_id) is ledger
    outcome = invite_ledger.redeem(ledger, invite, STRANGER.peer_id)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is RefusalReason.INVITE_EXHAUSTED
    assert "one peer" in outcome.text


def test_a_lost_ledger_lets_no_counted_invite_work_again_and_shuts_no_other_out() -> None:
    outcome = invite_ledger.redeem(InviteLedger(), invite_of(max_uses=3), JOINER.peer_id)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is RefusalReason.INVITE_INVALID
    assert redeemed(InviteLedger(), invite_of(), JOINER.peer_id) == InviteLedger()


def test_an_invite_without_a_limit_counts_and_keeps_no_names() -> None:
    invite = invite_of()
    ledger = redeemed(redeemed(issued(invite), invite, JOINER.peer_id), invite, STRANGER.peer_id)
    assert (ledger.invites[0].uses, ledger.invites[0].peers) == (2, ())


def test_a_revocation_says_what_the_ledger_says_and_grows_in_sequence() -> None:
    first, second = invite_of(1), invite_of(2)
    ledger = issued(first, second)
    ledger = invite_ledger.revoke(ledger, first.invite_id.hex(), NOW, is_expelling=False)
    ledger = invite_ledger.revoke(ledger, second.invite_id.hex(), NOW, is_expelling=True)
    ledger = invite_ledger.remove_peer(ledger, JOINER.peer_id, NOW)
    assert invite_ledger.revocation_of(ledger, FOUNDER.mesh_id, NOW) == Revocation(
        FOUNDER.mesh_id, 3, NOW, (first.invite_id,), (second.invite_id,), (JOINER.peer_id,)
    )


def test_revoking_twice_changes_nothing_but_expelling_after_revoking_does() -> None:
    invite_id = invite_of().invite_id.hex()
    ledger = invite_ledger.revoke(issued(invite_of()), invite_id, NOW, is_expelling=False)
    assert invite_ledger.revoke(ledger, invite_id, NOW + 1, is_expelling=False) == ledger
    harder = invite_ledger.revoke(ledger, invite_id, NOW + 1, is_expelling=True)
    assert (harder.sequence, harder.invites[0].is_expelled) == (2, True)
    assert invite_ledger.revoke(harder, invite_id, NOW + 2, is_expelling=True) == harder


def test_an_unknown_invite_cannot_be_revoked() -> None:
    with pytest.raises(Refused) as raised:
        invite_ledger.revoke(InviteLedger(), "ab" * 16, NOW, is_expelling=False)
    assert raised.value.code is ErrorCode.REQUEST_INVALID


def test_what_can_name_nobody_any_more_is_forgotten_and_nothing_before() -> None:
    kept, expelled = invite_of(1), invite_of(2)
    ledger = invite_ledger.revoke(issued(kept, expelled), expelled.invite_id.hex(), NOW, is_expelling=True)
    ledger = invite_ledger.remove_peer(ledger, JOINER.peer_id, NOW)
    end = NOW + LIFE_MS + CLOCK_SKEW_MS
    assert invite_ledger.prune(ledger, end) == ledger
    assert [entry.invite_id for entry in invite_ledger.prune(ledger, end + 1).invites] == [expelled.invite_id.hex()]
    later = NOW + PASS_LIFE_MS + CLOCK_SKEW_MS
    assert len(invite_ledger.prune(ledger, later).removed) == 1
    bare = invite_ledger.prune(ledger, later + 1)
    assert (bare.invites, bare.removed, bare.sequence) == ((), (), 2)


def test_the_number_of_invites_and_of_counted_uses_is_bounded() -> None:
    full = issued(*(invite_of(number) for number in range(MAX_ISSUED)))
    with pytest.raises(Refused, match=str(MAX_ISSUED)) as raised:
        invite_ledger.issue(full, invite_of(MAX_ISSUED), NOW)
    assert raised.value.code is ErrorCode.OVERLOADED
    assert len(invite_ledger.issue(full, invite_of(MAX_ISSUED), NOW + 2 * LIFE_MS).invites) == 1
    many = issued(*(invite_of(number, 1024) for number in range(MAX_COUNTED_USES // 1024)))
    with pytest.raises(Refused):
        invite_ledger.issue(many, invite_of(99, 1), NOW)


@pytest.mark.parametrize("life_ms", [0, -1, 366 * 24 * 3600 * 1000])
def test_a_life_that_no_invite_has_is_refused(life_ms: int) -> None:
    with pytest.raises(Refused) as raised:
        issued(invite_of(life_ms=life_ms))
    assert raised.value.code is ErrorCode.REQUEST_INVALID


def test_a_restored_backup_takes_in_what_members_remember() -> None:
    invite = invite_of()
    backup = issued(invite)
    revoked = invite_ledger.revoke(backup, invite.invite_id.hex(), NOW, is_expelling=True)
    revoked = invite_ledger.remove_peer(revoked, JOINER.peer_id, NOW)
    said = invite_ledger.revocation_of(revoked, FOUNDER.mesh_id, NOW)
    assert invite_ledger.adopt(backup, replace(said, sequence=0), NOW) is backup
    restored = invite_ledger.adopt(backup, said, NOW)
    assert invite_ledger.revocation_of(restored, FOUNDER.mesh_id, NOW) == said
    unheard = invite_ledger.adopt(InviteLedger(), said, NOW)
    assert invite_ledger.revocation_of(unheard, FOUNDER.mesh_id, NOW) == said


def test_the_state_of_an_invite_in_one_word() -> None:
    single, other = invite_of(1, 1), invite_of(2)
    ledger = redeemed(issued(single, other), single, JOINER.peer_id)
    assert [invite_ledger.state_of(entry, NOW) for entry in ledger.invites] == ["used", "valid"]
    assert invite_ledger.state_of(ledger.invites[1], NOW + 2 * LIFE_MS) == "expired"
    shown = invite_ledger.describe_ledger(
        invite_ledger.revoke(ledger, other.invite_id.hex(), NOW, is_expelling=False), NOW
    )
    assert [entry["state"] for entry in shown["invites"]] == ["used", "revoked"]


class Ledger(RuleBasedStateMachine):
    """Five invites, five peers, any order of uses and revocations; saved and read back at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.invites = [invite_of(number, max_uses) for number, max_uses in enumerate((0, 1, 2, 3))]
        self.ledger = issued(*self.invites)
        self.used: dict[bytes, set[PeerId]] = {invite.invite_id: set() for invite in self.invites}
        self.sequence = 0

    @rule(number=st.integers(0, 3), peer=st.sampled_from(PEERS))
    def use(self, number: int, peer: PeerId) -> None:
        invite = self.invites[number]
        used = self.used[invite.invite_id]
        outcome = invite_ledger.redeem(self.ledger, invite, peer)
        is_room = invite.max_uses == 0 or peer in used or len(used) < invite.max_uses
        assert isinstance(outcome, InviteLedger) == is_room
        if isinstance(outcome, InviteLedger):
            self.ledger = outcome
            used.add(peer)

    @rule(number=st.integers(0, 3), is_expelling=st.booleans())
    def revoke(self, number: int, is_expelling: bool) -> None:
        invite_id = self.invites[number].invite_id.hex()
        self.ledger = invite_ledger.revoke(self.ledger, invite_id, self.now, is_expelling=is_expelling)

    @rule(peer=st.sampled_from(PEERS))
    def remove(self, peer: PeerId) -> None:
        self.ledger = invite_ledger.remove_peer(self.ledger, peer, self.now)
        assert self.ledger.sequence > self.sequence

    @rule()
    def crash(self) -> None:
        self.ledger = from_map(InviteLedger, unpack(pack(to_map(self.ledger)), "ledger"), "ledger")

    @rule(seconds=st.integers(0, 3600))
    def wait(self, seconds: int) -> None:
        self.now = min(NOW + LIFE_MS, self.now + seconds * 1000)

    @invariant()
    def no_counted_invite_has_one_use_too_many(self) -> None:
        for invite in self.invites:
            entry = self.ledger.find(invite.invite_id.hex())
            assert entry is not None
            if invite.max_uses:
                assert set(entry.peers) == self.used[invite.invite_id]
                assert entry.uses == len(entry.peers) <= invite.max_uses

    @invariant()
    def the_sequence_never_falls(self) -> None:
        assert self.ledger.sequence >= self.sequence
        self.sequence = self.ledger.sequence


TestLedger = Ledger.TestCase


def test_a_readmitted_peer_is_in_no_newer_record_nor_in_what_a_backup_adopts() -> None:
    backup = invite_ledger.remove_peer(InviteLedger(), JOINER.peer_id, NOW)
    now = invite_ledger.readmit_peer(backup, JOINER.peer_id, NOW)
    record = invite_ledger.revocation_of(now, FOUNDER.mesh_id, NOW)
    assert (record.sequence, record.peers) == (2, ())
    assert invite_ledger.adopt(backup, record, NOW).removed == ()
    with pytest.raises(Refused):
        invite_ledger.readmit_peer(now, JOINER.peer_id, NOW)


def test_only_a_peer_that_left_a_trace_is_known() -> None:
    ledger = invite_ledger.remove_peer(InviteLedger(), JOINER.peer_id, NOW)
    assert invite_ledger.knows(ledger, JOINER.peer_id)
    assert not invite_ledger.knows(InviteLedger(), JOINER.peer_id)
    invite_ledger.check_known(JOINER.peer_id, is_known=True)
    with pytest.raises(Refused):
        invite_ledger.check_known(JOINER.peer_id, is_known=False)
