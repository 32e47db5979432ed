"""Trust: what follows from a claim. The statuses one by one stand in the vectors (``tests/wire/test_ownership``)."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import OwnerId, PeerId, owner_id_of_key
from p2pmesh.base.limits import MAX_REVOCATIONS, MAX_TRUSTED_OWNERS
from p2pmesh.core.ownership import (
    Ownership,
    OwnershipStatus,
    TrustPolicy,
    TrustStore,
    admits,
    assess_ownership,
    rank,
    renewal_due,
    renewal_due_unix_ms,
)
from p2pmesh.wire.ownership import LIFE_MS, RENEWAL_MS, OwnershipClaim, encode_claim
from tests.wire.keys import FOUNDER, JOINER, OWNER, STRANGER, verify

HOUR_MS = 3_600_000
ISSUED_MS = 1_780_000_000_000
CLAIM = OwnershipClaim(1, b"c" * 16, JOINER.peer_id, "kitchen", ISSUED_MS, ISSUED_MS + LIFE_MS)
SEALED = encode_claim(CLAIM, OWNER.public_key, OWNER.sign)
OWNER_ID, OTHER_ID = owner_id_of_key(OWNER.public_key), owner_id_of_key(STRANGER.public_key)

S, P = OwnershipStatus, TrustPolicy

OWNERS = st.sampled_from([OWNER_ID, OTHER_ID])
STORES = st.builds(
    TrustStore,
    st.sampled_from(TrustPolicy),
    st.dictionaries(OWNERS, st.sampled_from(["", "me"])),
    st.frozensets(OWNERS),
    st.frozensets(st.sampled_from([b"c" * 16, bytes(16)])),
    st.frozensets(st.sampled_from([JOINER.peer_id, FOUNDER.peer_id])),
)
SHOWN = st.sampled_from([SEALED, None, b"", SEALED[:-1], b"garbage"])
PEERS = st.sampled_from([JOINER.peer_id, FOUNDER.peer_id])
TIMES = st.sampled_from([0, ISSUED_MS - HOUR_MS, ISSUED_MS, ISSUED_MS + LIFE_MS, ISSUED_MS + LIFE_MS + HOUR_MS])


@given(SHOWN, PEERS, STORES, TIMES)
def test_verified_means_a_right_claim_of_this_peer_in_its_life_and_nothing_revoked(
    shown: bytes | None, peer: PeerId, trust: TrustStore, now: int
) -> None:
    found = assess_ownership(shown, peer, trust, now, verify)
    is_right = shown == SEALED and peer == JOINER.peer_id and ISSUED_MS <= now <= ISSUED_MS + LIFE_MS
    is_revoked = (
        OWNER_ID in trust.revoked_owners
        or b"c" * 16 in trust.revoked_certificates
        or JOINER.peer_id in trust.revoked_peers
    )
    is_listed = trust.policy is not P.ALLOWLIST or OWNER_ID in trust.trusted_owners
    assert (found.status is S.VERIFIED) == (is_right and not is_revoked and is_listed)


@given(SHOWN, PEERS, STORES, TIMES)
def test_no_owner_is_named_without_a_right_signature(
    shown: bytes | None, peer: PeerId, trust: TrustStore, now: int
) -> None:
    found = assess_ownership(shown, peer, trust, now, verify)
    if shown == SEALED:
        assert found.owner_id == OWNER_ID
        assert found.owner_label == trust.trusted_owners.get(OWNER_ID, "")
        assert (found.label, found.expires_unix_ms) == ("kitchen", ISSUED_MS + LIFE_MS)
    else:
        assert found == Ownership(found.status)


@given(SHOWN, PEERS, STORES, TIMES)
def test_a_revoked_node_is_revoked_whatever_it_shows(
    shown: bytes | None, peer: PeerId, trust: TrustStore, now: int
) -> None:
    found = assess_ownership(shown, peer, trust, now, verify)
    assert (found.status is S.REVOKED_NODE_ID) == (peer in trust.revoked_peers)


@given(SHOWN, PEERS, STORES, TIMES, st.sampled_from(TrustPolicy))
def test_revoking_more_never_admits_more(
    shown: bytes | None, peer: PeerId, trust: TrustStore, now: int, policy: TrustPolicy
) -> None:
    looser = replace(trust, revoked_owners=frozenset(), revoked_certificates=frozenset(), revoked_peers=frozenset())
    if admits(policy, assess_ownership(shown, peer, trust, now, verify).status):
        assert admits(policy, assess_ownership(shown, peer, looser, now, verify).status)


def test_who_may_join_under_each_policy() -> None:
    admitted = {policy: {status for status in S if admits(policy, status)} for policy in P}
    assert admitted == {
        P.OFF: set(S),
        P.PREFER_OWNED: set(S) - {S.REVOKED_NODE_ID},
        P.REQUIRE_OWNED: {S.VERIFIED},
        P.ALLOWLIST: {S.VERIFIED},
    }


@pytest.mark.parametrize("policy", list(P))
def test_only_prefer_owned_ranks_and_it_puts_verified_first(policy: TrustPolicy) -> None:
    for one, other in itertools.product(S, S):
        expected = policy is P.PREFER_OWNED and one is S.VERIFIED and other is not S.VERIFIED
        assert (rank(policy, one) < rank(policy, other)) == expected
    assert rank(policy, S.VERIFIED) == 0


def test_a_claim_of_a_week_is_renewed_from_36_hours_before_its_end() -> None:
    due = CLAIM.expires_unix_ms - 36 * HOUR_MS
    assert renewal_due_unix_ms(CLAIM) == due
    assert not renewal_due(CLAIM, due - 1)
    assert renewal_due(CLAIM, due)
    assert RENEWAL_MS == 36 * HOUR_MS


@given(st.integers(1, 720 * HOUR_MS))
def test_a_fresh_claim_is_never_due_unless_it_lives_a_moment(life_ms: int) -> None:
    claim = replace(CLAIM, expires_unix_ms=ISSUED_MS + life_ms)
    assert claim.issued_unix_ms + life_ms // 2 <= renewal_due_unix_ms(claim) <= claim.expires_unix_ms
    assert renewal_due(claim, claim.expires_unix_ms)
    assert not renewal_due(claim, ISSUED_MS) or life_ms == 1


def test_trusting_and_not_trusting_an_owner_are_each_others_inverse() -> None:
    trust = TrustStore().trusting(OWNER_ID, "me")
    assert trust.trusted_owners == {OWNER_ID: "me"}
    assert trust.trusting(OWNER_ID, "you").trusted_owners == {OWNER_ID: "you"}
    assert trust.not_trusting(OTHER_ID) == trust
    assert trust.not_trusting(OWNER_ID) == TrustStore()


def owners(count: int) -> list[OwnerId]:
    return [OwnerId(f"{number:064x}") for number in range(count)]


def test_a_store_is_bounded() -> None:
    TrustStore(trusted_owners=dict.fromkeys(owners(MAX_TRUSTED_OWNERS), ""))
    with pytest.raises(ValueError, match="trusted"):
        TrustStore(trusted_owners=dict.fromkeys(owners(MAX_TRUSTED_OWNERS + 1), ""))
    certificates = frozenset(number.to_bytes(16, "big") for number in range(MAX_REVOCATIONS + 1))
    with pytest.raises(ValueError, match="revocations"):
        TrustStore(revoked_certificates=certificates)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trusted_owners": {"x": "label"}},
        {"trusted_owners": {OWNER_ID: "two\nlines"}},
        {"trusted_owners": {OWNER_ID: "l" * 129}},
        {"revoked_owners": frozenset({OWNER_ID.upper()})},
        {"revoked_certificates": frozenset({bytes(15)})},
        {"revoked_peers": frozenset({"0OIl"})},
    ],
)
def test_a_store_of_another_form_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"hex digits|label|peer id"):
        TrustStore(**wrong)  # type: ignore[arg-type]
