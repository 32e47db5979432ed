"""The founder's ledger: which invites it gave out, who used them, what it revoked. Pure changes of one record.

A change is kept on disk before anybody hears of it; that is ``node.founder_desk``'s part, and the file is
``adapters.credential_files``'.
"""

from dataclasses import dataclass, replace
from typing import Any

from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import MeshId, PeerId, is_mesh_id, is_peer_id
from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_ADDRESS_BYTES, MAX_ADDRESSES, MAX_INVITE_USES, MAX_REVOKED
from p2pmesh.core.credentials import Refusal, RefusalReason
from p2pmesh.wire.invite import Invite
from p2pmesh.wire.membership_pass import LIFE_MS as PASS_LIFE_MS
from p2pmesh.wire.revocation import Revocation
from p2pmesh.wire.schema import Boolean, Integer, ListOf, Record, Text, declared, is_line

MAX_ISSUED = MAX_REVOKED
"""Invites that are kept at once, so that all of them can be revoked."""
MAX_INVITE_LIFE_MS = 365 * 24 * 3600 * 1000
MAX_COUNTED_USES = 8192
"""Uses that the counted invites of a ledger may have together."""

_TIME = Integer(0, 2**53)


@dataclass(frozen=True, slots=True)
class IssuedInvite:
    """One invite: what it allows and what became of it. ``peers`` are those who used a counted one.

    ``revoked_unix_ms`` 0 is not revoked; ``is_expelled`` besides puts out all who came in by it. ``is_standing`` is the
    one that a founder shows by itself, the same after each restart; ``is_listed`` the one in public listings, whose
    lines are renewed with each under one id, so that its uses are counted and it can be revoked.
    """

    invite_id: str = declared(Text(32, is_mesh_id))
    issued_unix_ms: int = declared(_TIME)
    expires_unix_ms: int = declared(_TIME)
    max_uses: int = declared(Integer(0, MAX_INVITE_USES), 0)
    uses: int = declared(_TIME, 0)
    peers: tuple[str, ...] = declared(ListOf(Text(128, is_peer_id), MAX_INVITE_USES), ())
    revoked_unix_ms: int = declared(_TIME, 0)
    is_expelled: bool = declared(Boolean(), False)
    is_standing: bool = declared(Boolean(), False)
    is_listed: bool = declared(Boolean(), False)


@dataclass(frozen=True, slots=True)
class RemovedPeer:
    """A member that was put out."""

    peer_id: str = declared(Text(128, is_peer_id))
    removed_unix_ms: int = declared(_TIME)


@dataclass(frozen=True, slots=True)
class InviteLedger:
    """Everything that a founder remembers; ``sequence`` is that of its last revocation.

    ``addresses`` are those of the last invite, for one that is made while the node does not run.
    """

    sequence: int = declared(_TIME, 0)
    invites: tuple[IssuedInvite, ...] = declared(ListOf(Record(IssuedInvite), MAX_ISSUED), ())
    removed: tuple[RemovedPeer, ...] = declared(ListOf(Record(RemovedPeer), MAX_REVOKED), ())
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, is_line), MAX_ADDRESSES), ())

    def find(self, invite_id: str) -> IssuedInvite | None:
        """The entry of an invite, by its id in hex."""
        return next((entry for entry in self.invites if entry.invite_id == invite_id), None)


def find_standing(ledger: InviteLedger, now_unix_ms: int, least_life_ms: int) -> IssuedInvite | None:
    """The invite that the founder shows by itself, if it is not revoked and lives at least so long."""
    fit = (entry for entry in ledger.invites if entry.is_standing and not entry.revoked_unix_ms)
    return next((entry for entry in fit if entry.expires_unix_ms - now_unix_ms >= least_life_ms), None)


def find_listed(ledger: InviteLedger, now_unix_ms: int, least_life_ms: int) -> IssuedInvite | None:
    """The invite of public listings, if it is not revoked and its id lives at least so long."""
    fit = (entry for entry in ledger.invites if entry.is_listed and not entry.revoked_unix_ms)
    return next((entry for entry in fit if entry.expires_unix_ms - now_unix_ms >= least_life_ms), None)


def issue(
    ledger: InviteLedger, invite: Invite, now_unix_ms: int, *, is_standing: bool = False, is_listed: bool = False
) -> InviteLedger:
    """With a new invite; ``Refused`` where too many live, or where it would live too long or allow too many uses."""
    life_ms = invite.expires_unix_ms - invite.issued_unix_ms
    if not 0 < life_ms <= MAX_INVITE_LIFE_MS or not 0 <= invite.max_uses <= MAX_INVITE_USES:
        text = f"an invite lives up to {MAX_INVITE_LIFE_MS // 86_400_000} days and has up to {MAX_INVITE_USES} uses"
        raise Refused(ErrorCode.REQUEST_INVALID, text)
    kept = prune(ledger, now_unix_ms)
    counted = sum(entry.max_uses for entry in kept.invites) + invite.max_uses
    if len(kept.invites) >= MAX_ISSUED or counted > MAX_COUNTED_USES:
        text = f"{len(kept.invites)} invites for {counted - invite.max_uses} counted uses live; let some expire"
        raise Refused(ErrorCode.OVERLOADED, text)
    entry = IssuedInvite(
        invite.invite_id.hex(),
        invite.issued_unix_ms,
        invite.expires_unix_ms,
        invite.max_uses,
        is_standing=is_standing,
        is_listed=is_listed,
    )
    return replace(kept, invites=(*kept.invites, entry), addresses=invite.addresses)


def redeem(ledger: InviteLedger, invite: Invite, peer: PeerId) -> InviteLedger | Refusal:
    """With one more use of an invite that is valid otherwise; the same peer again is the same use.

    An invite without a limit needs no entry: its signature is proof enough, and a lost ledger shuts nobody out. One
    with a limit does, or a lost ledger would let all its uses happen again.
    """
    entry = ledger.find(invite.invite_id.hex())
    if entry is None:
        if invite.max_uses == 0:
            return ledger
        return Refusal(RefusalReason.INVITE_INVALID, "the founder has no record of this invite; ask for a new one")
    if entry.max_uses == 0:
        return _changed(ledger, replace(entry, uses=entry.uses + 1))
    if peer in entry.peers:
        return ledger
    if len(entry.peers) >= entry.max_uses:
        text = f"the invite was for {_times(entry.max_uses)} and is used up; ask for a new one"
        return Refusal(RefusalReason.INVITE_EXHAUSTED, text)
    return _changed(ledger, replace(entry, uses=entry.uses + 1, peers=(*entry.peers, peer)))


def revoke(ledger: InviteLedger, invite_id: str, now_unix_ms: int, *, is_expelling: bool) -> InviteLedger:
    """With an invite revoked, and those put out who came in by it; ``Refused(REQUEST_INVALID)`` for an unknown one."""
    kept = prune(ledger, now_unix_ms)
    entry = kept.find(invite_id)
    if entry is None:
        text = f"no invite {invite_id[:64]} is known here; `p2pmesh invite list` shows those that are"
        raise Refused(ErrorCode.REQUEST_INVALID, text)
    changed = replace(entry, revoked_unix_ms=entry.revoked_unix_ms or now_unix_ms)
    if is_expelling and not entry.is_expelled:
        changed = replace(changed, revoked_unix_ms=now_unix_ms, is_expelled=True)
    if changed == entry:
        return kept
    return replace(_changed(kept, changed), sequence=kept.sequence + 1)


def remove_peer(ledger: InviteLedger, peer: PeerId, now_unix_ms: int) -> InviteLedger:
    """With a member put out for as long as its passes could live; ``Refused(OVERLOADED)`` beyond the bound."""
    kept = prune(ledger, now_unix_ms)
    others = tuple(entry for entry in kept.removed if entry.peer_id != peer)
    if len(others) >= MAX_REVOKED:
        text = f"{MAX_REVOKED} peers are removed already; found a new mesh, or require owners in it"
        raise Refused(ErrorCode.OVERLOADED, text)
    return replace(kept, removed=(*others, RemovedPeer(peer, now_unix_ms)), sequence=kept.sequence + 1)


def readmit_peer(ledger: InviteLedger, peer: PeerId, now_unix_ms: int) -> InviteLedger:
    """With a removed member let in again; ``Refused(REQUEST_INVALID)`` for one that is not removed."""
    kept = prune(ledger, now_unix_ms)
    others = tuple(entry for entry in kept.removed if entry.peer_id != peer)
    if len(others) == len(kept.removed):
        text = f"peer {peer} is not removed; `p2pmesh invite list` shows who is"
        raise Refused(ErrorCode.REQUEST_INVALID, text)
    return replace(kept, removed=others, sequence=kept.sequence + 1)


def knows(ledger: InviteLedger, peer: PeerId) -> bool:
    """Whether a peer came by a counted invite, or is removed already; others leave no trace here."""
    removed = (entry.peer_id for entry in ledger.removed)
    return peer in removed or any(peer in entry.peers for entry in ledger.invites)


def check_known(peer: PeerId, *, is_known: bool) -> None:
    """``Refused(REQUEST_INVALID)`` for the removal of a peer that nobody here has seen: most likely a slip."""
    if not is_known:
        text = f"no member {peer} is known here; p2pmesh status lists those that are, --force removes it all the same"
        raise Refused(ErrorCode.REQUEST_INVALID, text)


def adopt(ledger: InviteLedger, revocation: Revocation, now_unix_ms: int) -> InviteLedger:
    """With what a newer revocation of ours says, which a restored backup has forgotten."""
    if revocation.sequence <= ledger.sequence:
        return ledger
    expelled = set(revocation.expelled_invites)
    entries = {entry.invite_id: entry for entry in ledger.invites}
    for invite_id in (*revocation.invites, *revocation.expelled_invites):
        entry = entries.get(invite_id.hex()) or IssuedInvite(invite_id.hex(), 0, now_unix_ms + PASS_LIFE_MS)
        entries[entry.invite_id] = replace(entry, revoked_unix_ms=now_unix_ms, is_expelled=invite_id in expelled)
    before = {entry.peer_id: entry for entry in ledger.removed}
    removed = {peer: before.get(peer) or RemovedPeer(peer, now_unix_ms) for peer in revocation.peers}
    newest = tuple(entries.values())[-MAX_ISSUED:]
    return InviteLedger(revocation.sequence, newest, tuple(removed.values())[-MAX_REVOKED:], ledger.addresses)


def prune(ledger: InviteLedger, now_unix_ms: int) -> InviteLedger:
    """Without invites and peers that no valid invite or pass can name any more."""
    invites = tuple(entry for entry in ledger.invites if now_unix_ms <= _kept_until(entry))
    removed = tuple(e for e in ledger.removed if now_unix_ms <= e.removed_unix_ms + PASS_LIFE_MS + CLOCK_SKEW_MS)
    return replace(ledger, invites=invites, removed=removed)


def revocation_of(ledger: InviteLedger, mesh_id: MeshId, now_unix_ms: int) -> Revocation:
    """The record that says what the ledger says."""
    revoked = [entry for entry in ledger.invites if entry.revoked_unix_ms]
    return Revocation(
        mesh_id,
        ledger.sequence,
        now_unix_ms,
        tuple(bytes.fromhex(entry.invite_id) for entry in revoked if not entry.is_expelled),
        tuple(bytes.fromhex(entry.invite_id) for entry in revoked if entry.is_expelled),
        tuple(entry.peer_id for entry in ledger.removed),
    )


def _kept_until(entry: IssuedInvite) -> int:
    passes_end = entry.revoked_unix_ms + PASS_LIFE_MS if entry.is_expelled else 0
    return max(entry.expires_unix_ms, passes_end) + CLOCK_SKEW_MS


def _changed(ledger: InviteLedger, changed: IssuedInvite) -> InviteLedger:
    entries = (changed if entry.invite_id == changed.invite_id else entry for entry in ledger.invites)
    return replace(ledger, invites=tuple(entries))


def _times(count: int) -> str:
    return "one peer" if count == 1 else f"{count} peers"


def state_of(entry: IssuedInvite, now_unix_ms: int) -> str:
    """One word for an operator: ``valid``, ``used``, ``expired``, ``revoked`` or ``expelled``."""
    if entry.revoked_unix_ms:
        return "expelled" if entry.is_expelled else "revoked"
    if now_unix_ms > entry.expires_unix_ms + CLOCK_SKEW_MS:
        return "expired"
    return "used" if entry.max_uses and len(entry.peers) >= entry.max_uses else "valid"


def describe_ledger(ledger: InviteLedger, now_unix_ms: int) -> dict[str, Any]:
    """A ledger as values that JSON can hold."""
    return {
        "invites": [
            {
                "id": entry.invite_id,
                "expires_unix_ms": entry.expires_unix_ms,
                "max_uses": entry.max_uses,
                "uses": entry.uses,
                "state": state_of(entry, now_unix_ms),
            }
            for entry in ledger.invites
        ],
        "removed_peers": [entry.peer_id for entry in ledger.removed],
    }
