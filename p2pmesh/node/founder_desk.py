"""The founder's desk: gives out invites, counts their uses, revokes. Every change is on disk before it is heard of.

Runs ``core.invite_ledger`` on one ledger. Who asks, and what a use means for admission, is ``node.credentials``'.
"""

from dataclasses import replace
from typing import Any

import trio

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import ID_BYTES, PeerId
from p2pmesh.core import invite_ledger
from p2pmesh.core.credentials import Refusal
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.core.standing import Founding
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.changes import Changes
from p2pmesh.node.reporting import Report
from p2pmesh.wire.invite import LIFE_MS, LISTED_LIFE_MS, Invite, encode_invite, without_peer
from p2pmesh.wire.requirements import mesh_id_of
from p2pmesh.wire.revocation import Revocation, encode_revocation

MAX_INVITE_ADDRESSES = 4
"""More would make an invite's QR code too fine for a phone."""


class FounderDesk:
    """The ledger of one founder, and its file."""

    def __init__(self, ports: Neighbours, founding: Founding, report: Report) -> None:
        self._ports = ports
        self._report = report
        self._requirements = founding.requirements
        self._mesh_id = mesh_id_of(founding.requirements)
        self._ledger = founding.ledger
        self._writing = trio.Lock()
        self._unsaved = trio.Event()
        self.revoked = Changes()
        """Marked when an invite is revoked: the one that is shown may be it."""

    @property
    def ledger(self) -> InviteLedger:
        """As it stands, without what no longer matters."""
        return invite_ledger.prune(self._ledger, self._ports.clock.unix_ms())

    async def run(self) -> None:
        """Saves what may be saved a moment later, until cancelled."""
        while True:
            await self._unsaved.wait()
            self._unsaved = trio.Event()
            try:
                await self._save()
            except P2PMeshError as error:
                self._report("error", {"code": error.code.value, "message": error.message})

    # --- invites -------------------------------------------------------------------
    def issue(self, life_ms: int = LIFE_MS, max_uses: int = 0, *, is_standing: bool = False) -> str:
        """A new invite, which is saved soon; ``create`` saves first, as one that is counted must be."""
        now = self._ports.clock.unix_ms()
        fresh = self._ports.entropy.random_bytes(ID_BYTES)
        invite = Invite(fresh, self._requirements, now, now + life_ms, self._addresses(), max_uses=max_uses)
        self._ledger = invite_ledger.issue(self._ledger, invite, now, is_standing=is_standing)
        self._unsaved.set()
        return self._sealed(invite)

    async def stand(self) -> str:
        """The invite that the node shows by itself: the last one while half its life is left, with today's addresses.

        So a node that starts over and over does not fill its ledger.
        """
        kept = invite_ledger.find_standing(self._ledger, self._ports.clock.unix_ms(), LIFE_MS // 2)
        if kept is None:
            line = self.issue(is_standing=True)
        else:
            fresh, addresses = bytes.fromhex(kept.invite_id), self._addresses()
            self._ledger = replace(self._ledger, addresses=addresses)
            line = self._sealed(Invite(fresh, self._requirements, kept.issued_unix_ms, kept.expires_unix_ms, addresses))
        await self._save()
        return line

    def listed(self, addresses: tuple[str, ...]) -> str:
        """A line for a public listing, for minutes. Its id is the same for half a day or more, and in the ledger."""
        now = self._ports.clock.unix_ms()
        kept = invite_ledger.find_listed(self._ledger, now, LIFE_MS // 2)
        if kept is None:
            whole = Invite(self._ports.entropy.random_bytes(ID_BYTES), self._requirements, now, now + LIFE_MS)
            self._ledger = invite_ledger.issue(
                self._ledger, replace(whole, addresses=self._ledger.addresses), now, is_listed=True
            )
            self._unsaved.set()
            invite_id = whole.invite_id
        else:
            invite_id = bytes.fromhex(kept.invite_id)
        own = self._ports.identity.peer_id
        told = tuple(without_peer(text, own) for text in addresses[:MAX_INVITE_ADDRESSES])
        return self._sealed(Invite(invite_id, self._requirements, now, now + LISTED_LIFE_MS, told))

    def _addresses(self) -> tuple[str, ...]:
        own = self._ports.identity.peer_id
        return tuple(without_peer(text, own) for text in self._ports.network.addresses()[:MAX_INVITE_ADDRESSES])

    def _sealed(self, invite: Invite) -> str:
        return encode_invite(invite, self._ports.identity.public_key, self._ports.identity.sign)

    async def create(self, life_ms: int = LIFE_MS, max_uses: int = 0) -> str:
        """A new invite, saved."""
        line = self.issue(life_ms, max_uses)
        await self._save()
        return line

    async def redeem(self, invite: Invite, peer: PeerId) -> Refusal | None:
        """Counts a use. When it returns None for a counted invite, the use is on disk."""
        outcome = invite_ledger.redeem(self._ledger, invite, peer)
        if isinstance(outcome, Refusal):
            return outcome
        self._ledger = outcome
        if invite.max_uses:
            await self._save()
        else:
            self._unsaved.set()
        return None

    # --- revoking ------------------------------------------------------------------
    async def revoke(self, invite_id: str, *, is_expelling: bool) -> bytes:
        """Revokes an invite by its id in hex; the sealed revocation, saved."""
        now = self._ports.clock.unix_ms()
        self._ledger = invite_ledger.revoke(self._ledger, invite_id, now, is_expelling=is_expelling)
        await self._save()
        self.revoked.mark()
        return self.sealed_revocation()

    async def remove_peer(self, peer: PeerId) -> bytes:
        """Puts a member out; the sealed revocation, saved."""
        if peer == self._ports.identity.peer_id:
            raise Refused(ErrorCode.REQUEST_INVALID, "the founder cannot be removed from its own mesh")
        self._ledger = invite_ledger.remove_peer(self._ledger, peer, self._ports.clock.unix_ms())
        await self._save()
        return self.sealed_revocation()

    async def readmit_peer(self, peer: PeerId) -> bytes:
        """Lets a removed member in again; the sealed revocation without it, saved."""
        self._ledger = invite_ledger.readmit_peer(self._ledger, peer, self._ports.clock.unix_ms())
        await self._save()
        return self.sealed_revocation()

    def adopt(self, revocation: Revocation) -> None:
        """Takes in a newer record of our own, which a peer kept while our home was restored from a backup."""
        adopted = invite_ledger.adopt(self._ledger, revocation, self._ports.clock.unix_ms())
        if adopted is not self._ledger:
            self._ledger = adopted
            self._unsaved.set()

    def sealed_revocation(self) -> bytes:
        """What is revoked now; empty bytes before anything ever was."""
        if not self._ledger.sequence:
            return b""
        revocation = invite_ledger.revocation_of(self._ledger, self._mesh_id, self._ports.clock.unix_ms())
        return encode_revocation(revocation, self._ports.identity.public_key, self._ports.identity.sign)

    async def _save(self) -> None:
        """The ledger as it stands when its turn has come; writers do not overtake each other."""
        async with self._writing:
            await self._ports.credentials.save_ledger(self._ledger)

    def describe(self) -> dict[str, Any]:
        """For ``invite list``: everything but the invites themselves."""
        return invite_ledger.describe_ledger(self.ledger, self._ports.clock.unix_ms())
