"""``p2pmesh auth``: the owner's key, and claims on nodes. Whom this node trusts is ``app.trust_commands``'.

Every command answers with facts that JSON can hold; ``next``, where it is, tells a person what remains to be done.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from p2pmesh.adapters.home_lock import hold_home
from p2pmesh.adapters.identity import load_or_create_identity, replace_identity
from p2pmesh.adapters.keychain import forget_passphrase, store_passphrase
from p2pmesh.adapters.owner_keystore import (
    OwnerKey,
    load_owner_key,
    owner_key_missing,
    read_keystore_facts,
    save_owner_key,
)
from p2pmesh.adapters.trust_file import load_claim, load_trust, read_claim, remove_claim, save_claim, write_claim
from p2pmesh.app.claims import (
    DEFAULT_HOURS,
    LONGEST_HOURS,
    MS_PER_HOUR,
    OwnerFiles,
    as_utc,
    describe_ownership,
    now_unix_ms,
    open_own_claim,
    own_identity,
    save_changed,
    sign_claim,
    trust_own_owner,
    verify,
)
from p2pmesh.app.passphrase import PassphraseSources
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import OwnerId, PeerId, is_peer_id
from p2pmesh.base.limits import MAX_NODE_LABEL_BYTES
from p2pmesh.core.ownership import (
    Ownership,
    OwnershipStatus,
    assess_ownership,
    renewal_due,
    renewal_due_unix_ms,
)
from p2pmesh.wire.ownership import SignedClaim
from p2pmesh.wire.schema import is_line

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """What a new claim is to say; ``label`` None keeps that of the claim before it."""

    label: str | None = None
    hours: int = DEFAULT_HOURS

    def __post_init__(self) -> None:
        if not 1 <= self.hours <= LONGEST_HOURS:
            raise _invalid(f"--hours must be 1 to {LONGEST_HOURS}, not {self.hours}")
        check_label(self.label or "")


def init(files: OwnerFiles, sources: PassphraseSources, *, is_forced: bool, use_keychain: bool) -> Facts:
    """Makes the owner key; one that is there stays unless ``is_forced``."""
    before = None
    if not is_forced:
        before = read_keystore_facts(files.keystore)
    if before is not None:
        message = f"there is an owner key at {files.keystore} (owner {before.owner_id}); --force replaces it for ever"
        raise ConfigError(ErrorCode.OWNER_KEY_EXISTS, message)
    key = OwnerKey.generate()
    _keep_owner_key(files.keystore, key, sources.choose(), use_keychain=use_keychain)
    trust = load_trust(files.home)
    save_changed(files.home, trust, lambda store: store.trusting(key.owner_id, "own"))
    return {
        "owner_id": key.owner_id,
        "owner_key": str(files.keystore),
        "keychain": use_keychain,
        "next": "sign this node with p2pmesh auth sign-node, and keep a copy of the owner key and its passphrase",
    }


def status(files: OwnerFiles) -> Facts:
    """Owner, node, claim and trust of a home; nothing is made or changed, and no passphrase is needed."""
    facts = read_keystore_facts(files.keystore)
    identity = own_identity(files.home)
    claim = load_claim(files.home)
    trust = load_trust(files.home)
    node: Facts = {"peer_id": None, "status": OwnershipStatus.UNSIGNED.value}
    if identity is not None:
        found = assess_ownership(claim, identity.peer_id, trust, now_unix_ms(), verify)
        node = {"peer_id": identity.peer_id, **describe_ownership(found), **_renewal(claim, found)}
    return {
        "owner": None if facts is None else {"owner_id": facts.owner_id, "owner_key": str(files.keystore),
                                             "keychain": facts.has_keychain_passphrase},
        "node": node,
        "trust": {
            "policy": trust.policy.value,
            "trusted_owners": len(trust.trusted_owners),
            "revoked_owners": len(trust.revoked_owners),
            "revoked_certificates": len(trust.revoked_certificates),
            "revoked_nodes": len(trust.revoked_peers),
        },
    }  # fmt: skip


def sign_node(files: OwnerFiles, sources: PassphraseSources, options: ClaimOptions) -> Facts:
    """Signs the node of this home, whose key is made if need be."""
    owner = sources.open_key(files.keystore)
    peer = load_or_create_identity(files.home).peer_id
    label = options.label if options.label is not None else _label_before(files.home)
    return _sign_own(files.home, owner, peer, replace(options, label=label))


def sign_other_node(
    files: OwnerFiles, sources: PassphraseSources, options: ClaimOptions, peer_text: str, out: Path
) -> Facts:
    """Signs the node ``peer_text`` of another machine into the file ``out``, which is taken in there."""
    peer = check_peer_id(peer_text)
    if not out.absolute().parent.is_dir():
        raise _invalid(f"there is no directory {out.absolute().parent} for --out; make it first")
    owner = sources.open_key(files.keystore)
    claim = sign_claim(owner, peer, options.label or "", options.hours * MS_PER_HOUR, now_unix_ms())
    write_claim(out, claim)
    return {
        **_describe_signed(open_own_claim(claim)),
        "claim_file": str(out),
        "next": f"take {out.absolute()} to that machine and run there: p2pmesh auth sign-node --claim {out.name}",
    }


def take_claim(files: OwnerFiles, path: Path) -> Facts:
    """Takes in a claim that the owner signed elsewhere for the node of this home."""
    claim = read_claim(path)
    if claim is None:
        raise _invalid(f"there is no claim file {path}")
    signed = open_own_claim(claim)
    identity = load_or_create_identity(files.home)
    if signed.claim.peer_id != identity.peer_id:
        message = f"the claim is for node {signed.claim.peer_id}, this one is {identity.peer_id}; sign this one"
        raise ConfigError(ErrorCode.CLAIM_INVALID, message)
    found = assess_ownership(claim, identity.peer_id, load_trust(files.home), now_unix_ms(), verify)
    if found.status is OwnershipStatus.EXPIRED:
        message = f"the claim is for another time (it ends {as_utc(signed.claim.expires_unix_ms)}); sign the node again"
        raise ConfigError(ErrorCode.CLAIM_INVALID, message)
    save_claim(files.home, claim)
    trust_own_owner(files.home, signed)
    return _describe_signed(signed)


def renew_node(files: OwnerFiles, sources: PassphraseSources, hours: int, *, only_if_due: bool) -> Facts:
    """Signs the node of this home again, with the label it has."""
    options = ClaimOptions(hours=hours)
    claim, identity = load_claim(files.home), own_identity(files.home)
    if claim is None or identity is None:
        raise ConfigError(
            ErrorCode.CLAIM_INVALID, "this node has no claim to renew; sign it with p2pmesh auth sign-node"
        )
    signed = open_own_claim(claim)
    if only_if_due and signed.claim.peer_id == identity.peer_id and not renewal_due(signed.claim, now_unix_ms()):
        return {**_describe_signed(signed), "renewed": False}
    owner = sources.open_key(files.keystore)
    if owner.owner_id != signed.owner_id:
        message = f"the claim is of owner {signed.owner_id}, the key of {owner.owner_id}; use p2pmesh auth sign-node"
        raise ConfigError(ErrorCode.CLAIM_INVALID, message)
    made = _sign_own(files.home, owner, identity.peer_id, replace(options, label=signed.claim.label))
    return {**made, "renewed": True}


def verify_node(files: OwnerFiles, path: Path | None, peer_text: str | None) -> tuple[Facts, bool]:
    """What this node makes of its own claim, or of that in a file; and whether that is ``verified``."""
    claim = load_claim(files.home) if path is None else read_claim(path)
    if path is not None and claim is None:
        raise _invalid(f"there is no claim file {path}")
    peer = _peer_to_verify(files.home, path, peer_text, claim)
    found = assess_ownership(claim, peer, load_trust(files.home), now_unix_ms(), verify)
    facts = {"peer_id": peer, **describe_ownership(found), **_renewal(claim, found)}
    return facts, found.status is OwnershipStatus.VERIFIED


def rotate_node(files: OwnerFiles, sources: PassphraseSources) -> Facts:
    """Gives the node a new key, hence a new peer id; it is signed again if it was. No node may run in the home."""
    with hold_home(files.home):
        before = own_identity(files.home)
        if before is None:
            raise _invalid("there is no node key to replace; p2pmesh up makes one")
        claim = load_claim(files.home)
        owner = sources.open_key(files.keystore) if claim is not None else None
        label = _label_before(files.home)
        trust = load_trust(files.home)
        save_changed(
            files.home, trust, lambda store: replace(store, revoked_peers=store.revoked_peers | {before.peer_id})
        )
        after = replace_identity(files.home)
        remove_claim(files.home)
        signed = {} if owner is None else _sign_own(files.home, owner, after.peer_id, ClaimOptions(label))
    return {
        **signed,
        "peer_id": after.peer_id,
        "old_peer_id": before.peer_id,
        "next": (
            f"if the old key was exposed, run on your other nodes: p2pmesh auth revoke-node {before.peer_id}; "
            "an overlay that this node founded keeps its name, but gets no more invites"
        ),
    }


def rotate_owner(files: OwnerFiles, sources: PassphraseSources, new_sources: PassphraseSources | None) -> Facts:
    """Puts a new owner key in the place of the old, and signs this node with it if the old one had.

    The old owner stays trusted here until it is revoked: nodes that it signed go on until they are signed anew.
    """
    facts = read_keystore_facts(files.keystore)
    if facts is None:
        raise owner_key_missing(files.keystore)
    passphrase = sources.open_with(facts)
    with sources.naming():
        old = load_owner_key(files.keystore, passphrase)
    new = OwnerKey.generate()
    chosen = passphrase if new_sources is None else new_sources.choose()
    trust = load_trust(files.home)
    label = trust.trusted_owners.get(old.owner_id, "own")
    save_changed(files.home, trust, lambda store: store.trusting(new.owner_id, label))
    _keep_owner_key(files.keystore, new, chosen, use_keychain=facts.has_keychain_passphrase)
    if facts.has_keychain_passphrase:
        forget_passphrase(old.owner_id)
    return {
        **_sign_after_rotation(files.home, old.owner_id, new),
        "owner_id": new.owner_id,
        "old_owner_id": old.owner_id,
        "next": (
            f"on your other nodes: p2pmesh auth trust add {new.owner_id}, and sign them again; "
            f"then everywhere: p2pmesh auth revoke-owner {old.owner_id}"
        ),
    }


def check_label(label: str) -> None:
    """Refuses what is no label with ``ConfigError(CONFIG_INVALID)``."""
    if not is_line(label) or len(label.encode("utf-8", "replace")) > MAX_NODE_LABEL_BYTES or not _is_unicode(label):
        raise _invalid(f"--label must be one line of at most {MAX_NODE_LABEL_BYTES} bytes")


def check_peer_id(text: str) -> PeerId:
    """``text`` as a peer id; ``ConfigError(CONFIG_INVALID)`` for what is none."""
    if not is_peer_id(text):
        raise _invalid(f"{text[:140]!r} is no peer id; p2pmesh auth status shows that of a node")
    return PeerId(text)


# --- parts of the commands ------------------------------------------------------
def _keep_owner_key(path: Path, key: OwnerKey, passphrase: str, *, use_keychain: bool) -> None:
    """The keychain first: a key whose passphrase could not be kept where it was asked to be is not made."""
    if use_keychain:
        store_passphrase(key.owner_id, passphrase)
    save_owner_key(path, key, passphrase, has_keychain_passphrase=use_keychain)


def _sign_own(home: Path, owner: OwnerKey, peer: PeerId, options: ClaimOptions) -> Facts:
    claim = sign_claim(owner, peer, options.label or "", options.hours * MS_PER_HOUR, now_unix_ms())
    signed = open_own_claim(claim)
    save_claim(home, claim)
    trust_own_owner(home, signed)
    return _describe_signed(signed)


def _sign_after_rotation(home: Path, old: OwnerId, new: OwnerKey) -> Facts:
    claim, identity = load_claim(home), own_identity(home)
    if claim is None or identity is None:
        return {}
    before = open_own_claim(claim)
    if before.owner_id != old:
        return {}
    return _sign_own(home, new, identity.peer_id, ClaimOptions(before.claim.label))


def _label_before(home: Path) -> str:
    """The label of the claim that is there; a damaged one, which is about to be replaced, has none."""
    try:
        claim = load_claim(home)
        return "" if claim is None else open_own_claim(claim).claim.label
    except ConfigError:
        return ""


def _describe_signed(signed: SignedClaim) -> Facts:
    claim = signed.claim
    return {
        "peer_id": claim.peer_id,
        "owner_id": signed.owner_id,
        "label": claim.label,
        "certificate_id": claim.certificate_id.hex(),
        "issued_unix_ms": claim.issued_unix_ms,
        "expires_unix_ms": claim.expires_unix_ms,
        "expires": as_utc(claim.expires_unix_ms),
    }


def _renewal(claim: bytes | None, found: Ownership) -> Facts:
    """When a claim is to be renewed; nothing for one that proves nothing."""
    if claim is None or found.owner_id is None:
        return {}
    signed = open_own_claim(claim)
    due = renewal_due_unix_ms(signed.claim)
    return {"renewal_due": as_utc(due), "is_renewal_due": renewal_due(signed.claim, now_unix_ms())}


def _peer_to_verify(home: Path, path: Path | None, peer_text: str | None, claim: bytes | None) -> PeerId:
    """The peer that shows the claim: as given, else the one that a claim file names, else the node of the home."""
    if peer_text is not None:
        return check_peer_id(peer_text)
    if path is not None and claim is not None:
        return PeerId(open_own_claim(claim).claim.peer_id)
    identity = own_identity(home)
    if identity is None:
        raise _invalid("no node has a key in this home; p2pmesh auth sign-node makes and signs one")
    return identity.peer_id


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(message: str) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_INVALID, message)
