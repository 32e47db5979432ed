"""What a peer shows, judged: every reason once, their order, chains of passes, revocations, grants."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import OwnerId, PeerId, owner_id_of_key
from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_PASSES
from p2pmesh.core import credentials
from p2pmesh.core.credentials import CODES, Refusal, RefusalReason, Shown, Terms
from p2pmesh.core.ownership import OwnershipStatus, TrustPolicy, TrustStore
from p2pmesh.wire.invite import LIFE_MS, LISTED_LIFE_MS, Invite
from p2pmesh.wire.membership_pass import LIFE_MS as PASS_LIFE_MS
from p2pmesh.wire.membership_pass import MembershipPass, SignedPass
from p2pmesh.wire.ownership import OwnershipClaim, SignedClaim
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from tests.wire.keys import FOUNDER, JOINER, STRANGER, TestKey

NOW = 1_780_000_000_000
DAY_MS = 24 * 3600 * 1000
INVITE_ID = bytes(range(16))
INVITE = Invite(INVITE_ID, FOUNDER.requirements, NOW, NOW + LIFE_MS)
OWNER = owner_id_of_key(STRANGER.public_key)
NOBODY = OwnershipStatus.UNSIGNED


def terms_of(requirements: MeshRequirements = FOUNDER.requirements, trust: TrustStore | None = None) -> Terms:
    mesh_id = mesh_id_of(requirements)
    return Terms(requirements, mesh_id, credentials.nothing_revoked(mesh_id), trust or TrustStore())


TERMS = terms_of()


def signed_pass(holder: TestKey, signer: TestKey, **changes: Any) -> SignedPass:
    granted = replace(MembershipPass(FOUNDER.mesh_id, holder.peer_id, INVITE_ID, NOW, NOW + PASS_LIFE_MS), **changes)
    if "issued_unix_ms" not in changes:  # some time in its life, also of one that is over
        granted = replace(granted, issued_unix_ms=min(NOW, granted.expires_unix_ms - DAY_MS))
    return SignedPass(granted, signer.public_key, signer.peer_id)


def shown_by(key: TestKey = JOINER, **changes: Any) -> Shown:
    shown = Shown(key.peer_id, key.public_key, 1, FOUNDER.mesh_id, key.peer_id, "0.1.0", NOBODY, INVITE)
    return replace(shown, **changes)


def claim_of(key: TestKey = JOINER, **changes: Any) -> SignedClaim:
    claim = OwnershipClaim(1, bytes(16), key.peer_id, "box", NOW, NOW + DAY_MS)
    return SignedClaim(OwnerId(OWNER), replace(claim, **changes))


def revoking(terms: Terms = TERMS, **changes: Any) -> Terms:
    return replace(terms, revocation=replace(terms.revocation, sequence=1, **changes))


def reason_of(refusal: Refusal | None) -> RefusalReason | None:
    return refusal.reason if refusal is not None else None


MEMBER = (signed_pass(JOINER, FOUNDER),)
GUEST = (signed_pass(STRANGER, JOINER), *MEMBER)


# --- who is let in -------------------------------------------------------------
@pytest.mark.parametrize(
    "shown",
    [
        shown_by(),
        shown_by(invite=None, chain=MEMBER),
        shown_by(STRANGER, invite=None, chain=GUEST),
        shown_by(FOUNDER, invite=None),
    ],
    ids=["an invite", "a pass", "a member's guest", "the founder"],
)
def test_a_proof_admits(shown: Shown) -> None:
    assert credentials.judge_peer(shown, TERMS, NOW) is None


REFUSED: list[tuple[Shown, Terms, RefusalReason]] = [
    (shown_by(generation=0), TERMS, RefusalReason.GENERATION_BELOW_MINIMUM),
    (shown_by(generation=2), TERMS, RefusalReason.GENERATION_ABOVE_MAXIMUM),
    (shown_by(mesh_id=STRANGER.mesh_id), TERMS, RefusalReason.MESH_MISMATCH),
    (shown_by(announced_peer=STRANGER.peer_id), TERMS, RefusalReason.SENDER_MISMATCH),
    (shown_by(invite=None), TERMS, RefusalReason.PROOF_MISSING),
    (shown_by(invite=replace(INVITE, requirements=STRANGER.requirements)), TERMS, RefusalReason.MESH_MISMATCH),
    (shown_by(invite=replace(INVITE, expires_unix_ms=NOW - 60_000)), TERMS, RefusalReason.INVITE_EXPIRED),
    (shown_by(), revoking(invites=(INVITE_ID,)), RefusalReason.INVITE_REVOKED),
    (shown_by(), revoking(expelled_invites=(INVITE_ID,)), RefusalReason.INVITE_REVOKED),
    (shown_by(), revoking(peers=(JOINER.peer_id,)), RefusalReason.PROOF_REVOKED),
    (shown_by(chain=MEMBER), revoking(peers=(JOINER.peer_id,)), RefusalReason.PROOF_REVOKED),
    (shown_by(chain=MEMBER), revoking(expelled_invites=(INVITE_ID,)), RefusalReason.PROOF_REVOKED),
    (shown_by(STRANGER, chain=GUEST), revoking(peers=(JOINER.peer_id,)), RefusalReason.PROOF_REVOKED),
    (shown_by(STRANGER, chain=MEMBER), TERMS, RefusalReason.PROOF_SENDER_MISMATCH),
    (shown_by(chain=(signed_pass(JOINER, STRANGER),)), TERMS, RefusalReason.PROOF_INVALID),
    (shown_by(STRANGER, chain=(GUEST[0],)), TERMS, RefusalReason.PROOF_INVALID),
    (shown_by(STRANGER, chain=(GUEST[0], signed_pass(STRANGER, FOUNDER))), TERMS, RefusalReason.PROOF_INVALID),
    (shown_by(chain=(signed_pass(JOINER, FOUNDER, mesh_id=STRANGER.mesh_id),)), TERMS, RefusalReason.PROOF_INVALID),
    (
        shown_by(chain=(signed_pass(JOINER, FOUNDER, expires_unix_ms=NOW + PASS_LIFE_MS + 1),)),
        TERMS,
        RefusalReason.PROOF_INVALID,
    ),
    (shown_by(chain=(signed_pass(JOINER, FOUNDER, expires_unix_ms=NOW - 60_000),)), TERMS, RefusalReason.PROOF_STALE),
    (
        shown_by(STRANGER, chain=(GUEST[0], signed_pass(JOINER, FOUNDER, expires_unix_ms=NOW - 60_000))),
        TERMS,
        RefusalReason.PROOF_STALE,
    ),
]


@pytest.mark.parametrize(("shown", "terms", "reason"), REFUSED)
def test_a_proof_that_is_none_is_refused_for_its_reason(shown: Shown, terms: Terms, reason: RefusalReason) -> None:
    refusal = credentials.judge_peer(shown, terms, NOW)
    assert refusal is not None
    assert (refusal.reason, refusal.code) == (reason, CODES[reason])
    assert refusal.message.startswith(f"{reason.value}: ")
    assert len(refusal.message) < 300
    assert "\n" not in refusal.message


def test_a_revoked_invite_leaves_those_who_came_by_it_unless_they_are_expelled() -> None:
    assert credentials.judge_peer(shown_by(chain=MEMBER), revoking(invites=(INVITE_ID,)), NOW) is None


def test_passes_count_before_an_invite_and_a_bad_one_is_not_made_good_by_it() -> None:
    shown = shown_by(chain=(signed_pass(JOINER, STRANGER),))
    assert shown.invite is not None
    assert reason_of(credentials.judge_peer(shown, TERMS, NOW)) is RefusalReason.PROOF_INVALID


@pytest.mark.parametrize("late_ms", [0, CLOCK_SKEW_MS])
def test_half_a_minute_of_skew_is_forgiven(late_ms: int) -> None:
    invite = replace(INVITE, expires_unix_ms=NOW - late_ms)
    chain = (signed_pass(JOINER, FOUNDER, expires_unix_ms=NOW - late_ms),)
    assert credentials.judge_invite(invite, TERMS, NOW) is None
    assert credentials.judge_chain(chain, JOINER.peer_id, TERMS, NOW) is None
    assert credentials.judge_invite(invite, TERMS, NOW + CLOCK_SKEW_MS + 1) is not None
    assert credentials.judge_chain(chain, JOINER.peer_id, TERMS, NOW + CLOCK_SKEW_MS + 1) is not None


def chain_of(keys: list[TestKey]) -> tuple[SignedPass, ...]:
    """Passes of the first key, through the others, up to the founder."""
    return tuple(signed_pass(holder, signer) for holder, signer in zip(keys, [*keys[1:], FOUNDER], strict=True))


def keys_of(count: int) -> list[TestKey]:
    return [TestKey(f"member {number}") for number in range(count)]


@given(st.integers(1, MAX_PASSES + 2), st.data())
def test_a_chain_holds_up_to_eight_passes_and_only_whole(count: int, data: st.DataObject) -> None:
    keys = keys_of(count)
    chain = chain_of(keys)
    refusal = credentials.judge_chain(chain, keys[0].peer_id, TERMS, NOW)
    assert (refusal is None) == (count <= MAX_PASSES)
    if count > 1:
        left_out = data.draw(st.integers(0, count - 1))
        broken = chain[:left_out] + chain[left_out + 1 :]
        assert credentials.judge_chain(broken, keys[0].peer_id, TERMS, NOW) is not None


@given(st.integers(1, MAX_PASSES), st.data())
def test_whoever_of_a_chain_is_removed_takes_all_below_along(count: int, data: st.DataObject) -> None:
    keys = keys_of(count)
    removed = data.draw(st.sampled_from(keys))
    refusal = credentials.judge_chain(chain_of(keys), keys[0].peer_id, revoking(peers=(removed.peer_id,)), NOW)
    assert reason_of(refusal) is RefusalReason.PROOF_REVOKED


# --- requirements ----------------------------------------------------------------
def requiring(**changes: Any) -> MeshRequirements:
    return replace(FOUNDER.requirements, **changes)


@pytest.mark.parametrize(
    ("requirements", "reason"),
    [
        (requiring(), None),
        (requiring(version_min="0.1.0", version_max="0.1.0"), None),
        (requiring(version_min="0.9.0", version_max="0.10.0"), None),
        (requiring(generation_min=2, generation_max=1), RefusalReason.GENERATION_BOUNDS_INVALID),
        (requiring(generation_min=2, generation_max=3), RefusalReason.GENERATION_BELOW_MINIMUM),
        (requiring(generation_min=0, generation_max=0), RefusalReason.GENERATION_ABOVE_MAXIMUM),
        (requiring(version_min="newest"), RefusalReason.VERSION_MALFORMED),
        (requiring(version_max="1.0"), RefusalReason.VERSION_MALFORMED),
        (requiring(version_min="0.10.0", version_max="0.9.0"), RefusalReason.VERSION_BOUNDS_INVALID),
    ],
)
def test_requirements_that_nobody_could_meet_are_found_out(
    requirements: MeshRequirements, reason: RefusalReason | None
) -> None:
    assert reason_of(credentials.judge_requirements(requirements)) is reason


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.2.0", None),
        ("0.3.9.dev1+local", None),
        ("0.10.0", RefusalReason.VERSION_ABOVE_MAXIMUM),
        ("0.1.99", RefusalReason.VERSION_BELOW_MINIMUM),
        ("0.1999999.0", RefusalReason.VERSION_MALFORMED),
        ("v0.2.0", RefusalReason.VERSION_MALFORMED),
        ("", RefusalReason.VERSION_MALFORMED),
    ],
)
def test_versions_compare_as_numbers(version: str, reason: RefusalReason | None) -> None:
    terms = terms_of(requiring(version_min="0.2.0", version_max="0.9.9"))
    shown = shown_by(version=version, mesh_id=terms.mesh_id, invite=replace(INVITE, requirements=terms.requirements))
    assert reason_of(credentials.judge_peer(shown, terms, NOW)) is reason
    assert credentials.judge_peer(shown_by(version=version), TERMS, NOW) is None


def test_a_generation_that_the_mesh_takes_and_we_do_not_speak_is_refused_all_the_same() -> None:
    refusal = credentials.judge_generation(2, requiring(generation_max=3))
    assert reason_of(refusal) is RefusalReason.GENERATION_UNKNOWN


# --- owners ----------------------------------------------------------------------
LISTED = requiring(requires_owner=True, owners=(OWNER,))


@pytest.mark.parametrize(
    ("requirements", "claim", "reason"),
    [
        (requiring(requires_owner=True), claim_of(), None),
        (LISTED, claim_of(), None),
        (requiring(requires_owner=True), NOBODY, RefusalReason.OWNER_MISSING),
        (requiring(requires_owner=True), OwnershipStatus.INVALID_SIGNATURE, RefusalReason.OWNER_MISSING),
        (requiring(requires_owner=True), claim_of(STRANGER), RefusalReason.OWNER_MISSING),
        (requiring(requires_owner=True), claim_of(expires_unix_ms=NOW - DAY_MS), RefusalReason.OWNER_MISSING),
        (requiring(requires_owner=True, owners=("ab" * 32,)), claim_of(), RefusalReason.OWNER_NOT_LISTED),
    ],
)
def test_what_a_mesh_asks_of_owners(requirements: MeshRequirements, claim: Any, reason: RefusalReason | None) -> None:
    terms = terms_of(requirements)
    shown = shown_by(mesh_id=terms.mesh_id, invite=replace(INVITE, requirements=requirements), claim=claim)
    assert reason_of(credentials.judge_peer(shown, terms, NOW)) is reason


def test_a_founder_has_to_meet_its_own_terms() -> None:
    refusal = credentials.judge_owner(NOBODY, FOUNDER.peer_id, LISTED, NOW, is_founder=True)
    assert reason_of(refusal) is RefusalReason.ORIGIN_OWNER_MISSING
    assert credentials.judge_owner(claim_of(FOUNDER), FOUNDER.peer_id, LISTED, NOW, is_founder=True) is None


@pytest.mark.parametrize(
    ("trust", "claim", "is_admitted"),
    [
        (TrustStore(TrustPolicy.OFF), NOBODY, True),
        (TrustStore(TrustPolicy.PREFER_OWNED), NOBODY, True),
        (TrustStore(TrustPolicy.REQUIRE_OWNED), NOBODY, False),
        (TrustStore(TrustPolicy.REQUIRE_OWNED), claim_of(), True),
        (TrustStore(TrustPolicy.ALLOWLIST), claim_of(), False),
        (TrustStore(TrustPolicy.ALLOWLIST, {OwnerId(OWNER): "me"}), claim_of(), True),
    ],
)
def test_the_operators_own_trust_counts_besides(trust: TrustStore, claim: Any, is_admitted: bool) -> None:
    refusal = credentials.judge_peer(shown_by(claim=claim), terms_of(trust=trust), NOW)
    assert reason_of(refusal) is (None if is_admitted else RefusalReason.TRUST_POLICY_DENIED)


def test_what_a_mesh_asks_does_not_hang_on_the_operators_list() -> None:
    terms = terms_of(LISTED, TrustStore(TrustPolicy.PREFER_OWNED, revoked_owners=frozenset([OwnerId(OWNER)])))
    shown = shown_by(mesh_id=terms.mesh_id, invite=replace(INVITE, requirements=LISTED), claim=claim_of())
    assert credentials.judge_peer(shown, terms, NOW) is None


# --- the order of the checks -------------------------------------------------------
BREAKS: list[tuple[RefusalReason, Callable[[Shown, Terms], tuple[Shown, Terms]]]] = [
    (RefusalReason.GENERATION_ABOVE_MAXIMUM, lambda s, t: (replace(s, generation=9), t)),
    (RefusalReason.MESH_MISMATCH, lambda s, t: (replace(s, mesh_id="0" * 32), t)),
    (RefusalReason.SENDER_MISMATCH, lambda s, t: (replace(s, announced_peer=FOUNDER.peer_id), t)),
    (RefusalReason.PROOF_REVOKED, lambda s, t: (s, revoking(t, peers=(s.peer,)))),
    (RefusalReason.PROOF_MISSING, lambda s, t: (replace(s, invite=None), t)),
    (RefusalReason.TRUST_POLICY_DENIED, lambda s, t: (s, replace(t, trust=TrustStore(TrustPolicy.REQUIRE_OWNED)))),
]


@given(st.sets(st.integers(0, len(BREAKS) - 1), min_size=1))
def test_the_first_thing_wrong_in_the_order_of_the_document_is_told(chosen: set[int]) -> None:
    shown, terms = shown_by(), TERMS
    for index in sorted(chosen):
        shown, terms = BREAKS[index][1](shown, terms)
    assert reason_of(credentials.judge_peer(shown, terms, NOW)) is BREAKS[min(chosen)][0]


def test_every_reason_has_a_code() -> None:
    assert set(CODES) == set(RefusalReason)
    assert ErrorCode.INTERNAL not in CODES.values()


# --- granting ------------------------------------------------------------------
def test_the_founder_grants_thirty_days_and_a_member_no_more_than_it_has() -> None:
    by_founder = credentials.grant_pass(shown_by(), (), TERMS, NOW)
    assert by_founder == MembershipPass(FOUNDER.mesh_id, JOINER.peer_id, INVITE_ID, NOW, NOW + PASS_LIFE_MS)
    later = NOW + 10 * DAY_MS
    by_member = credentials.grant_pass(shown_by(STRANGER), MEMBER, TERMS, later)
    assert by_member is not None
    assert (by_member.issued_unix_ms, by_member.expires_unix_ms) == (later, NOW + PASS_LIFE_MS)


def test_a_renewed_pass_names_the_invite_of_the_first() -> None:
    first = (signed_pass(JOINER, FOUNDER, invite_id=b"i" * 16),)
    renewed = credentials.grant_pass(shown_by(invite=None, chain=first), (), TERMS, NOW)
    assert renewed is not None
    assert renewed.invite_id == b"i" * 16


def test_nothing_is_granted_to_the_founder_nor_beyond_eight_nor_by_who_has_nothing_left() -> None:
    assert credentials.grant_pass(shown_by(FOUNDER, invite=None), MEMBER, TERMS, NOW) is None
    assert credentials.grant_pass(shown_by(), chain_of(keys_of(MAX_PASSES)), TERMS, NOW) is None
    assert credentials.grant_pass(shown_by(), MEMBER, TERMS, NOW + PASS_LIFE_MS) is None


@given(st.integers(1, MAX_PASSES - 1), st.integers(0, 29))
def test_what_is_granted_holds(count: int, days: int) -> None:
    keys = keys_of(count)
    chain, now = chain_of(keys), NOW + days * DAY_MS
    granted = credentials.grant_pass(shown_by(), chain, TERMS, now)
    assert granted is not None
    held = (SignedPass(granted, keys[0].public_key, keys[0].peer_id), *chain)
    assert credentials.judge_chain(held, JOINER.peer_id, TERMS, now) is None


def test_a_shorter_chain_is_better_and_an_ending_one_gives_way() -> None:
    long, short = chain_of([JOINER, *keys_of(2)]), MEMBER
    fresher = (signed_pass(JOINER, FOUNDER, expires_unix_ms=NOW + PASS_LIFE_MS + DAY_MS + 1),)
    hardly = (signed_pass(JOINER, FOUNDER, expires_unix_ms=NOW + PASS_LIFE_MS + 1000),)
    assert credentials.is_better_chain(short, (), NOW)
    assert not credentials.is_better_chain((), short, NOW)
    assert credentials.is_better_chain(short, long, NOW)
    assert not credentials.is_better_chain(long, short, NOW)
    assert credentials.is_better_chain(fresher, short, NOW)
    assert not credentials.is_better_chain(hardly, short, NOW)
    ending = NOW + PASS_LIFE_MS // 2 + 1
    assert credentials.renewal_due(short, ending)
    assert not credentials.renewal_due(short, NOW)
    longer = tuple(
        SignedPass(replace(s.granted, expires_unix_ms=ending + PASS_LIFE_MS), s.signer_key, s.signer) for s in long
    )
    assert credentials.is_better_chain(longer, short, ending)


def test_a_membership_hangs_on_everyone_above_and_every_invite() -> None:
    proof = credentials.proof_of(shown_by(STRANGER, invite=None, chain=GUEST))
    assert proof.peers == {STRANGER.peer_id, JOINER.peer_id, FOUNDER.peer_id}
    assert proof.invite_ids == {INVITE_ID}
    assert credentials.proof_of(shown_by(FOUNDER, invite=None)).peers == {PeerId(FOUNDER.peer_id)}


# --- what members may give to strangers ----------------------------------------------
PUBLIC = replace(FOUNDER.requirements, is_public=True)
OPEN_TERMS = replace(TERMS, requirements=PUBLIC, mesh_id=mesh_id_of(PUBLIC))
INVITER = (signed_pass(JOINER, FOUNDER, mesh_id=OPEN_TERMS.mesh_id),)
MEMBERS_INVITE = Invite(INVITE_ID, PUBLIC, NOW, NOW + LISTED_LIFE_MS, issuer_key=JOINER.public_key, passes=(b"pass",))


def shown_members(terms: Terms = OPEN_TERMS, **changes: Any) -> Shown:
    shown = shown_by(STRANGER, mesh_id=terms.mesh_id, invite=MEMBERS_INVITE)
    return replace(shown, **{"inviter": JOINER.peer_id, "inviter_chain": INVITER, **changes})


def test_a_member_of_a_public_pool_lets_a_stranger_in() -> None:
    assert credentials.judge_peer(shown_members(), OPEN_TERMS, NOW) is None


def test_in_any_other_mesh_the_founder_alone_invites() -> None:
    invite = replace(MEMBERS_INVITE, requirements=FOUNDER.requirements)
    refusal = credentials.judge_peer(shown_members(TERMS, invite=invite, inviter_chain=MEMBER), TERMS, NOW)
    assert reason_of(refusal) is RefusalReason.INVITE_INVALID


MEMBERS_REFUSED: list[tuple[Shown, Terms, RefusalReason]] = [
    (shown_members(inviter_chain=()), OPEN_TERMS, RefusalReason.INVITE_INVALID),
    (shown_members(inviter=STRANGER.peer_id), OPEN_TERMS, RefusalReason.INVITE_INVALID),
    (shown_members(inviter_chain=MEMBER), OPEN_TERMS, RefusalReason.INVITE_INVALID),
    (shown_members(invite=replace(MEMBERS_INVITE, invite_id=bytes(16))), OPEN_TERMS, RefusalReason.INVITE_INVALID),
    (
        shown_members(invite=replace(MEMBERS_INVITE, expires_unix_ms=NOW + LISTED_LIFE_MS + CLOCK_SKEW_MS + 1)),
        OPEN_TERMS,
        RefusalReason.INVITE_INVALID,
    ),
    (shown_members(), revoking(OPEN_TERMS, invites=(INVITE_ID,)), RefusalReason.INVITE_REVOKED),
    (shown_members(), revoking(OPEN_TERMS, expelled_invites=(INVITE_ID,)), RefusalReason.INVITE_REVOKED),
    (shown_members(), revoking(OPEN_TERMS, peers=(JOINER.peer_id,)), RefusalReason.INVITE_INVALID),
]


@pytest.mark.parametrize(
    ("shown", "terms", "reason"),
    MEMBERS_REFUSED,
    ids=["no passes", "another's", "of another mesh", "another id", "too long", "revoked", "expelled", "removed"],
)
def test_a_members_invite_is_worth_what_its_membership_is(shown: Shown, terms: Terms, reason: RefusalReason) -> None:
    assert reason_of(credentials.judge_peer(shown, terms, NOW)) is reason


def test_a_guest_goes_with_the_member_that_invited_it() -> None:
    proof = credentials.proof_of(shown_members())
    assert credentials.judge_proof(proof, revoking(OPEN_TERMS, peers=(JOINER.peer_id,)).revocation) is not None


def test_whoever_could_give_no_passes_invites_nobody() -> None:
    assert credentials.may_invite(INVITER, PUBLIC)
    assert not credentials.may_invite(INVITER, FOUNDER.requirements)
    assert not credentials.may_invite((), PUBLIC)
    assert not credentials.may_invite(INVITER * MAX_PASSES, PUBLIC)
