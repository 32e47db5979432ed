"""``p2pmesh auth trust`` and the revocations: whom this node's operator trusts, and whom no longer.

They change ``HOME/trust.json``; a node that runs in the home sees the change within seconds.
"""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2pmesh.adapters.trust_file import load_trust
from p2pmesh.app.auth import check_label, check_peer_id
from p2pmesh.app.claims import save_changed
from p2pmesh.app.run_file import is_node_running
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId, is_owner_id
from p2pmesh.core.ownership import CERTIFICATE_ID_BYTES, TrustPolicy, TrustStore

Facts = dict[str, Any]
_Change = Callable[[TrustStore], TrustStore]


def describe_trust(home: Path) -> Facts:
    """The whole store."""
    return _facts(load_trust(home))


def choose_policy(home: Path, policy: TrustPolicy) -> Facts:
    """The policy of this node, unless ``up --trust-policy`` says otherwise."""
    facts = _change(home, lambda trust: replace(trust, policy=policy))
    if not is_node_running(home):
        return facts
    text = "the node that runs here follows within seconds, unless it was started with --trust-policy, which wins"
    return {**facts, "note": f"{text} until it is started again without"}


def trust_owner(home: Path, owner_text: str, label: str) -> Facts:
    """Trusts an owner; one that is revoked is not trusted by the way."""
    owner = check_owner_id(owner_text)
    check_label(label)

    def change(trust: TrustStore) -> TrustStore:
        if owner in trust.revoked_owners:
            raise _invalid(f"owner {owner} is revoked here; first run: p2pmesh auth revoke-owner --undo {owner}")
        return trust.trusting(owner, label)

    return _change(home, change)


def distrust_owner(home: Path, owner_text: str) -> Facts:
    """No longer trusts an owner; its claims still count as those of any other."""
    owner = check_owner_id(owner_text)

    def change(trust: TrustStore) -> TrustStore:
        if owner not in trust.trusted_owners:
            raise _invalid(f"owner {owner} is not trusted here; p2pmesh auth trust list shows who is")
        return trust.not_trusting(owner)

    return _change(home, change)


def revoke_owner(home: Path, owner_text: str, *, is_undone: bool) -> Facts:
    """No claim of this owner counts any more, or again if ``is_undone``."""
    owner = check_owner_id(owner_text)
    before = load_trust(home)

    def change(trust: TrustStore) -> TrustStore:
        if is_undone:
            return replace(trust, revoked_owners=trust.revoked_owners - {owner})
        return replace(trust.not_trusting(owner), revoked_owners=trust.revoked_owners | {owner})

    facts = _change(home, change)
    note = _note_on_allowlist(before, owner, is_undone=is_undone)
    return {**facts, "note": note} if note else facts


def _note_on_allowlist(before: TrustStore, owner: OwnerId, *, is_undone: bool) -> str:
    """What a revocation did to the owner's place among the trusted, which its undoing does not give back."""
    if is_undone:
        if owner not in before.revoked_owners:
            return ""
        return f"owner {owner} is not trusted by this; to trust it run p2pmesh auth trust add {owner}"
    label = before.trusted_owners.get(owner)
    if label is None:
        return ""
    again = f"p2pmesh auth trust add {owner}" + (f" --label {shlex.quote(label)}" if label else "")
    return f"it is off the list of trusted owners, too; after --undo, put it back with {again}"


def revoke_node(home: Path, peer_text: str, *, is_undone: bool) -> Facts:
    """The node counts as revoked whatever it shows, or no longer if ``is_undone``."""
    peer = frozenset({check_peer_id(peer_text)})

    def change(trust: TrustStore) -> TrustStore:
        revoked = trust.revoked_peers - peer if is_undone else trust.revoked_peers | peer
        return replace(trust, revoked_peers=revoked)

    return _change(home, change)


def revoke_certificate(home: Path, certificate_text: str, *, is_undone: bool) -> Facts:
    """One claim does not count any more, or again if ``is_undone``."""
    certificate = frozenset({_check_certificate_id(certificate_text)})

    def change(trust: TrustStore) -> TrustStore:
        revoked = trust.revoked_certificates - certificate if is_undone else trust.revoked_certificates | certificate
        return replace(trust, revoked_certificates=revoked)

    return _change(home, change)


def check_owner_id(text: str) -> OwnerId:
    """``text`` as an owner id; ``ConfigError(CONFIG_INVALID)`` for what is none."""
    if not is_owner_id(text):
        raise _invalid(f"{text[:80]!r} is no owner id (64 lower-case hex digits); p2pmesh auth status shows one's own")
    return OwnerId(text)


def _check_certificate_id(text: str) -> bytes:
    try:
        certificate = bytes.fromhex(text)
    except ValueError:
        certificate = b""
    if len(certificate) != CERTIFICATE_ID_BYTES:
        raise _invalid(
            f"{text[:80]!r} is no certificate id (32 hex digits); p2pmesh auth verify-node shows that of a claim"
        )
    return certificate


def _change(home: Path, change: _Change) -> Facts:
    return _facts(save_changed(home, load_trust(home), change))


def _facts(trust: TrustStore) -> Facts:
    facts: Facts = {
        "policy": trust.policy.value,
        "trusted_owners": [
            {"owner_id": owner, "label": label} for owner, label in sorted(trust.trusted_owners.items())
        ],
        "revoked_owners": sorted(trust.revoked_owners),
        "revoked_certificates": sorted(certificate.hex() for certificate in trust.revoked_certificates),
        "revoked_nodes": sorted(trust.revoked_peers),
    }
    if trust.policy is TrustPolicy.OFF and (trust.revoked_owners or trust.revoked_certificates or trust.revoked_peers):
        facts["next"] = "the policy is off: nobody is turned away; choose one with p2pmesh auth trust policy POLICY"
    return facts


def _invalid(message: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_INVALID, message)
