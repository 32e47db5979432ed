"""Invites of a founder that does not run: its files are changed. The running one is asked in ``tests/e2e``."""

from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.credential_files import load_ledger, save_ledger, save_requirements
from p2pmesh.adapters.home_lock import hold_home
from p2pmesh.adapters.identity import Ed25519Verifier, load_or_create_identity
from p2pmesh.app import invites
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.core.invite_ledger import InviteLedger, IssuedInvite
from p2pmesh.wire.invite import Invite, decode_invite
from p2pmesh.wire.requirements import MeshRequirements
from tests.fakes.identity import fake_identity

ADDRESSES = ("/ip4/192.0.2.7/tcp/4001",)
BAD = fake_identity("bad").peer_id


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A founder's home whose node has run once."""
    identity = load_or_create_identity(tmp_path)
    save_requirements(tmp_path, MeshRequirements(identity.public_key))
    save_ledger(tmp_path, InviteLedger(addresses=ADDRESSES))
    return tmp_path


def code_of(act: Any, *arguments: Any, **named: Any) -> ErrorCode:
    with pytest.raises(P2PMeshError) as raised:
        act(*arguments, **named)
    return raised.value.code


def test_an_invite_made_on_files_is_listed_shown_and_revoked(home: Path) -> None:
    made = invites.create_invite(home, 3600, 2)
    assert "no node runs here" in made["note"]
    shown = invites.show_invite(made["invite"])
    assert (shown["id"], shown["max_uses"], shown["is_expired"]) == (made["id"], 2, False)
    assert shown["founder"] == load_or_create_identity(home).peer_id
    assert shown["peers"] == [{"peer_id": shown["founder"], "addresses": list(ADDRESSES)}]
    assert [entry["state"] for entry in invites.list_invites(home)["invites"]] == ["valid"]
    assert made["invite"] not in str(invites.list_invites(home))
    assert invites.revoke_invite(home, made["invite"], is_expelling=False)["state"] == "revoked"
    assert invites.revoke_invite(home, made["id"].upper(), is_expelling=True)["state"] == "expelled"
    assert [entry["state"] for entry in invites.list_invites(home)["invites"]] == ["expelled"]
    assert load_ledger(home).sequence == 2


def test_a_member_is_removed_on_files(home: Path) -> None:
    assert code_of(invites.remove_peer, home, BAD) is ErrorCode.REQUEST_INVALID  # nobody here has seen it
    assert invites.remove_peer(home, BAD, is_forced=True)["state"] == "removed"
    assert invites.list_invites(home)["removed_peers"] == [BAD]
    assert code_of(invites.remove_peer, home, load_or_create_identity(home).peer_id) is ErrorCode.REQUEST_INVALID


def test_a_removal_is_taken_back_on_files(home: Path) -> None:
    assert code_of(invites.readmit_peer, home, BAD) is ErrorCode.REQUEST_INVALID
    invites.remove_peer(home, BAD, is_forced=True)
    assert invites.readmit_peer(home, BAD) == {"peer_id": BAD, "state": "readmitted"}
    assert invites.list_invites(home)["removed_peers"] == []
    assert load_ledger(home).sequence == 2


def test_what_cannot_be_done_says_why(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert code_of(invites.revoke_invite, home, "ab" * 16, is_expelling=False) is ErrorCode.REQUEST_INVALID
    assert code_of(invites.create_invite, home, 10**9, 0) is ErrorCode.REQUEST_INVALID
    assert code_of(invites.create_invite, home, 60, 5000) is ErrorCode.REQUEST_INVALID
    assert code_of(invites.show_invite, "p2pmesh2-AAAA") is ErrorCode.INVITE_MALFORMED
    save_ledger(home, InviteLedger())
    assert code_of(invites.create_invite, home, 60, 0) is ErrorCode.NODE_NOT_RUNNING
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert code_of(invites.list_invites, elsewhere) is ErrorCode.CONFIG_INVALID
    assert list(elsewhere.iterdir()) == []
    assert code_of(invites.create_invite, elsewhere / "typo", 60, 0) is ErrorCode.CONFIG_INVALID
    assert code_of(invites.remove_peer, elsewhere / "typo", BAD, is_forced=True) is ErrorCode.CONFIG_INVALID
    assert list(elsewhere.iterdir()) == []
    with hold_home(home):
        assert code_of(invites.remove_peer, home, BAD) is ErrorCode.HOME_IN_USE


def test_a_home_with_another_node_key_signs_for_nobody(home: Path) -> None:
    (home / "node.key").unlink()
    assert code_of(invites.create_invite, home, 60, 0) is ErrorCode.CONFIG_INVALID


# --- a home with a public pool --------------------------------------------------------
def found_pool(home: Path) -> None:
    terms = MeshRequirements(load_or_create_identity(home).public_key, is_public=True)
    save_requirements(home, terms)
    listed = IssuedInvite("ab" * 16, 0, 2**50, is_listed=True)
    save_ledger(home, InviteLedger(invites=(listed,), addresses=ADDRESSES), is_public=True)


def test_the_invite_of_a_pools_listings_is_shown_and_revoked_beside_a_private_mesh(home: Path) -> None:
    found_pool(home)
    made = invites.create_invite(home, 3600, 0)
    assert not decoded(made["invite"]).requirements.is_public
    assert [entry["id"] for entry in invites.list_invites(home)["invites"]] == [made["id"], "ab" * 16]
    invites.revoke_invite(home, "ab" * 16, is_expelling=True)
    invites.revoke_invite(home, made["id"], is_expelling=False)
    assert [entry["state"] for entry in invites.list_invites(home)["invites"]] == ["revoked", "expelled"]
    assert (load_ledger(home).sequence, load_ledger(home, is_public=True).sequence) == (1, 1)


def test_a_home_that_founded_a_pool_alone_invites_into_it(tmp_path: Path) -> None:
    found_pool(tmp_path)
    made = invites.create_invite(tmp_path, 3600, 0)
    assert decoded(made["invite"]).requirements.is_public
    invites.remove_peer(tmp_path, BAD, is_forced=True)
    assert invites.list_invites(tmp_path)["removed_peers"] == [BAD]
    assert load_ledger(tmp_path) == InviteLedger()
    invites.readmit_peer(tmp_path, BAD)
    assert load_ledger(tmp_path, is_public=True).removed == ()


def decoded(line: str) -> Invite:
    return decode_invite(line, Ed25519Verifier().is_signature_of)
