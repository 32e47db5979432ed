"""What a node starts with: an invite, what its home kept, or a mesh of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.credential_files import load_requirements, save_membership, save_requirements
from p2pmesh.app.config import RequirementOptions, UpOptions
from p2pmesh.app.joining import choose_standing, last_pool, standing_in_pool
from p2pmesh.app.pool_options import PoolChoice
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.base.ids import OwnerId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.standing import Founding, Membership
from p2pmesh.wire.invite import LIFE_MS, Invite, encode_invite
from p2pmesh.wire.listing import (
    KIND,
    Listing,
    ListingContent,
    ListingEvent,
    ReadingRules,
    decode_listing,
    encode_content,
    listing_tags,
)
from p2pmesh.wire.ownership import VERSION, OwnershipClaim, encode_claim
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from tests.fakes.identity import FakeVerifier, fake_identity

NOW = UnixMillis(1_780_000_000_000)
FOUNDER, JOINER, OWNER = (fake_identity(name) for name in ("founder", "joiner", "owner"))
TERMS = MeshRequirements(FOUNDER.public_key)
INVITE = Invite(bytes(16), TERMS, NOW, NOW + LIFE_MS)
LINE = encode_invite(INVITE, FOUNDER.public_key, FOUNDER.sign)
CLAIM = encode_claim(
    OwnershipClaim(VERSION, bytes(16), FOUNDER.peer_id, "", NOW, NOW + 1000), OWNER.public_key, OWNER.sign
)


PUBLIC, ROUTER = "/ip4/93.184.215.14/tcp/4001", "/ip4/192.168.1.1/tcp/80"


def listing_of(invite: Invite, **changes: Any) -> Listing:
    """As a reader takes it."""
    line = encode_invite(invite, FOUNDER.public_key, FOUNDER.sign)
    content = ListingContent(line, (), 0, 1, mesh_id_of(invite.requirements), 1, **changes)
    tags, created_s = listing_tags(NOW // 1000 + 120), NOW // 1000
    event = ListingEvent("a" * 64, "b" * 64, created_s, KIND, tags, encode_content(content))
    listing = decode_listing(event, ReadingRules(NOW, FakeVerifier().is_signature_of))
    assert isinstance(listing, Listing)
    return listing


def options(home: Path, **given: Any) -> UpOptions:
    return UpOptions(home, **given)


def code_of(home: Path, identity: Any = FOUNDER, now: int = NOW, claim: bytes = b"", **given: Any) -> ErrorCode:
    with pytest.raises(P2PMeshError) as raised:
        choose_standing(options(home, **given), identity, claim, UnixMillis(now))
    assert "\n" not in raised.value.message
    return raised.value.code


def test_a_first_start_founds_a_mesh_and_the_next_ones_keep_it(tmp_path: Path) -> None:
    wanted = RequirementOptions(version_min="0.1.0")
    first = choose_standing(options(tmp_path, requirements=wanted), FOUNDER, b"", NOW)
    assert first.founding is not None
    assert first.founding.requirements == replace(TERMS, version_min="0.1.0") == load_requirements(tmp_path)
    for given in ({}, {"requirements": wanted}):
        assert choose_standing(options(tmp_path, **given), FOUNDER, b"", NOW) == first


def test_other_requirements_are_another_mesh_and_need_another_home(tmp_path: Path) -> None:
    choose_standing(options(tmp_path), FOUNDER, b"", NOW)
    with pytest.raises(ConfigError, match="--home") as raised:
        choose_standing(options(tmp_path, requirements=RequirementOptions(version_min="9.0.0")), FOUNDER, b"", NOW)
    assert raised.value.code is ErrorCode.CONFIG_INVALID
    assert load_requirements(tmp_path) == TERMS


def test_a_mesh_founded_with_another_node_key_is_not_founded_again_by_chance(tmp_path: Path) -> None:
    choose_standing(options(tmp_path), FOUNDER, b"", NOW)
    assert code_of(tmp_path, identity=JOINER) is ErrorCode.CONFIG_INVALID


def test_a_founder_that_requires_an_owner_needs_one(tmp_path: Path) -> None:
    required = RequirementOptions(requires_owner=True)
    assert code_of(tmp_path, requirements=required) is ErrorCode.OWNERSHIP_REFUSED
    assert load_requirements(tmp_path) is None
    listed = RequirementOptions(owners=(OwnerId("ab" * 32),))
    assert code_of(tmp_path, requirements=listed, claim=CLAIM) is ErrorCode.OWNERSHIP_REFUSED
    founded = choose_standing(options(tmp_path, requirements=required), FOUNDER, CLAIM, NOW).founding
    assert founded is not None
    assert founded.requirements.requires_owner


def test_requirements_that_nobody_can_meet_found_nothing(tmp_path: Path) -> None:
    crossed = RequirementOptions(version_min="0.2.0", version_max="0.1.0")
    assert code_of(tmp_path, requirements=crossed) is ErrorCode.VERSION_UNSUPPORTED
    for without_us in (RequirementOptions(version_min="999.9.9"), RequirementOptions(version_max="0.0.0")):
        assert code_of(tmp_path, requirements=without_us) is ErrorCode.VERSION_UNSUPPORTED
    assert load_requirements(tmp_path) is None


def test_an_invite_is_refused_before_anything_runs(tmp_path: Path) -> None:
    assert code_of(tmp_path, identity=JOINER, invite="nonsense") is ErrorCode.INVITE_MALFORMED
    assert code_of(tmp_path, identity=JOINER, invite=LINE, now=NOW + 2 * LIFE_MS) is ErrorCode.INVITE_EXPIRED
    assert code_of(tmp_path, invite=LINE) is ErrorCode.CONFIG_INVALID
    newer = replace(INVITE, requirements=replace(TERMS, generation_min=2, generation_max=2))
    line = encode_invite(newer, FOUNDER.public_key, FOUNDER.sign)
    assert code_of(tmp_path, identity=JOINER, invite=line) is ErrorCode.GENERATION_UNSUPPORTED


def test_an_expired_invite_is_enough_where_the_home_kept_its_mesh(tmp_path: Path) -> None:
    kept = Membership(TERMS, (), (b"pass",))
    save_membership(tmp_path, kept)
    late = UnixMillis(NOW + 2 * LIFE_MS)
    standing = choose_standing(options(tmp_path, invite=LINE), JOINER, b"", late)
    assert (standing.invite_text, standing.membership, standing.founding) == (LINE, kept, None)
    assert choose_standing(options(tmp_path, is_rejoining=True), JOINER, b"", late).membership == kept


def test_rejoining_needs_something_to_rejoin(tmp_path: Path) -> None:
    save_requirements(tmp_path, TERMS)
    assert code_of(tmp_path, is_rejoining=True) is ErrorCode.INVITE_MISSING


@pytest.mark.parametrize(
    "given",
    [
        {"owners": (OwnerId("short"),)},
        {"owners": tuple(OwnerId(f"{n:064x}") for n in range(65))},
        {"version_min": "latest"},
        {"version_max": "1." + "2" * 70},
    ],
)
def test_requirements_of_no_form_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RequirementOptions(**given)


def test_requirements_are_the_founders_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="founder's"):
        options(tmp_path, invite=LINE, requirements=RequirementOptions(requires_owner=True))


# --- public pools ----------------------------------------------------------------
PUBLISHING = PoolChoice(is_publishing=True)


def test_a_home_founds_one_private_mesh_and_one_pool(tmp_path: Path) -> None:
    private = choose_standing(options(tmp_path), FOUNDER, b"", NOW)
    pool = choose_standing(options(tmp_path, pool=PUBLISHING), FOUNDER, b"", NOW)
    assert pool.founding is not None
    assert pool.is_public
    assert not private.is_public
    assert pool.founding.requirements == replace(TERMS, is_public=True) == load_requirements(tmp_path, is_public=True)
    assert load_requirements(tmp_path) == TERMS
    for given, kept in (({}, private), ({"pool": PUBLISHING}, pool)):
        assert choose_standing(options(tmp_path, **given), FOUNDER, b"", NOW) == kept


def test_a_pool_keeps_the_name_that_it_was_founded_with(tmp_path: Path) -> None:
    named = replace(PUBLISHING, name="garage")
    first = choose_standing(options(tmp_path, pool=named), FOUNDER, b"", NOW)
    assert first.founding is not None
    assert first.founding.requirements.pool_name == "garage"
    assert choose_standing(options(tmp_path, pool=PUBLISHING), FOUNDER, b"", NOW) == first
    assert code_of(tmp_path, pool=replace(PUBLISHING, name="attic")) is ErrorCode.CONFIG_INVALID


def test_who_only_looks_for_a_pool_of_a_name_founds_none_of_it(tmp_path: Path) -> None:
    standing = choose_standing(options(tmp_path, pool=PoolChoice(is_searching=True, name="x")), FOUNDER, b"", NOW)
    assert not standing.is_public
    assert load_requirements(tmp_path, is_public=True) is None


def test_a_private_mesh_that_is_joined_cannot_be_published(tmp_path: Path) -> None:
    assert code_of(tmp_path, identity=JOINER, invite=LINE, pool=PUBLISHING) is ErrorCode.CONFIG_INVALID


def test_a_pool_that_was_found_is_joined_and_ones_own_is_founded_again(tmp_path: Path) -> None:
    terms = replace(TERMS, is_public=True)
    listing = listing_of(replace(INVITE, requirements=terms, addresses=(PUBLIC,)))
    joined = standing_in_pool(tmp_path, listing, JOINER)
    assert joined is not None
    assert (joined.invite_text, joined.is_public) == (listing.content.invite_token, True)
    assert standing_in_pool(tmp_path, listing, FOUNDER) is None
    choose_standing(options(tmp_path, pool=PUBLISHING), FOUNDER, b"", NOW)
    own = standing_in_pool(tmp_path, listing, FOUNDER)
    assert own is not None
    assert own.founding == Founding(terms)


def test_a_pool_that_was_found_is_joined_at_no_address_that_its_invite_hides(tmp_path: Path) -> None:
    invite = replace(INVITE, requirements=replace(TERMS, is_public=True), addresses=(ROUTER, "/dns4/router.lan/tcp/80"))
    beside = f"{PUBLIC}/p2p/{FOUNDER.peer_id}"
    joined = standing_in_pool(
        tmp_path, listing_of(invite, addresses=(beside, ROUTER + f"/p2p/{FOUNDER.peer_id}")), JOINER
    )
    assert joined is not None
    assert joined.ways_in == (beside,)


def test_the_last_pool_is_the_mesh_that_was_joined_last_if_it_is_one(tmp_path: Path) -> None:
    assert last_pool(tmp_path) is None
    pool = Membership(replace(TERMS, is_public=True), (), (), saved_unix_ms=5)
    save_membership(tmp_path, pool)
    assert last_pool(tmp_path) == pool.mesh_id
    save_membership(tmp_path, Membership(TERMS, (), (), saved_unix_ms=6))
    assert last_pool(tmp_path) is None
