"""What this node shows, and what it makes of what others show: invites, passes, revocations.

Runs ``core.credentials`` on decoded facts and keeps the outcome in the home. The exchange of hellos and the table of
who is admitted are ``node.overlay``'s; a founder's ledger is ``node.founder_desk``'s.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.core import credentials, invite_ledger
from p2pmesh.core.credentials import Refusal, RefusalReason, Shown, Terms
from p2pmesh.core.ownership import open_claim
from p2pmesh.core.refusals import RefusalBook
from p2pmesh.core.standing import Founding, Membership
from p2pmesh.node.announcements import Neighbours
from p2pmesh.node.founder_desk import MAX_INVITE_ADDRESSES, FounderDesk
from p2pmesh.node.ownership import PeerTrust
from p2pmesh.node.reporting import Report
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.invite import (
    LISTED_LIFE_MS,
    Invite,
    check_invite_time,
    decode_invite,
    encode_invite,
    is_expired,
    names_peer,
)
from p2pmesh.wire.membership_pass import SignedPass, decode_pass, encode_pass
from p2pmesh.wire.messages.admission import Hello, Welcome
from p2pmesh.wire.requirements import MeshRequirements, mesh_id_of
from p2pmesh.wire.revocation import Revocation, decode_revocation
from p2pmesh.wire.schema import from_map, to_map, unpack
from p2pmesh.wire.signed import Envelope

MAX_KEPT_ADDRESSES = 16
MAX_ADDRESSES_OF_ONE = 4
KEEP_AGAIN_MS = 3_600_000
MAX_SHOWN_REFUSALS = 16
MAX_OPENED_PASSES = 1024
"""Passes whose signatures need no second look: four for each peer of a full view, and most share some."""
MAX_OUTCASTS = 1024


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to prove that we may come in; both empty for the founder, who needs none."""

    invite: str = ""
    passes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """What a node comes with: an invite, what it kept of the mesh it joined, or the mesh that it founded.

    With neither invite nor membership the node is a founder; ``founding`` None gives it a mesh without further terms.
    """

    invite_text: str | None = None
    membership: Membership | None = None
    founding: Founding | None = None
    ways_in: tuple[str, ...] = ()
    """Whom to dial instead of all whom the invite names: of one from a stranger, what a stranger may make us dial."""


class Credentials:
    """One node's standing in one mesh."""

    def __init__(self, ports: Neighbours, settings: CredentialSettings, trust: PeerTrust, report: Report) -> None:
        self._ports = ports
        self._report = report
        self._trust = trust
        self._invite_text = (settings.invite_text or "").strip()
        self._invite = decode_invite(self._invite_text, ports.verifier.is_signature_of) if self._invite_text else None
        self._ways_in = settings.ways_in
        self._membership = settings.membership
        self.desk: FounderDesk | None = None
        """Only at the founder."""
        if self._invite is None and settings.membership is None:
            founding = settings.founding or Founding(MeshRequirements(ports.identity.public_key))
            self.desk = FounderDesk(ports, founding, report)
            self.requirements = founding.requirements
        else:
            self.requirements = _requirements_of(self._invite, settings.membership)
        self.mesh_id = mesh_id_of(self.requirements)
        self.founder = ports.verifier.peer_id_of(self.requirements.founder_key)
        self.revocation = credentials.nothing_revoked(self.mesh_id)
        """The newest that is known."""
        self.sealed_revocation = b""
        self._passes: tuple[bytes, ...] = ()
        self._chain: tuple[SignedPass, ...] = ()
        self._admitted: dict[PeerId, Shown] = {}
        self._opened: dict[tuple[PeerId, bytes], SignedPass] = {}
        """By holder too: it is part of what is signed, and not of the bytes."""
        self._refusals = RefusalBook()
        self._outcasts: dict[PeerId, tuple[int, int]] = {}
        """Peers that were put out or refused as such, and under which revocation and trust."""
        self._take_up_kept()

    def _take_up_kept(self) -> None:
        _raise_if(credentials.judge_requirements(self.requirements))
        kept = self._membership
        if kept is not None and kept.mesh_id == self.mesh_id:
            self._passes, self._chain = kept.passes, self._decode_kept_chain(kept.passes)
            if kept.revocation:
                self.learn_revocation(kept.revocation)
        if self.desk is not None and self.desk.ledger.sequence:
            self.learn_revocation(self.desk.sealed_revocation())
        if self._invite is not None and not self._chain_holds():
            check_invite_time(self._invite, self._ports.clock.unix_ms())

    # --- what others here ask ----------------------------------------------------
    @property
    def is_founder(self) -> bool:
        """Whether the mesh is ours."""
        return self.desk is not None

    @property
    def passes(self) -> tuple[bytes, ...]:
        """Our chain, sealed; empty at the founder, and before a pass was granted."""
        return self._passes

    def handed_on(self) -> str | None:
        """The invite that others can be given: a member hands on its own while anybody may use it; None otherwise."""
        if self._invite is None or self._invite.max_uses or is_expired(self._invite, self._ports.clock.unix_ms()):
            return None
        return self._invite_text

    @property
    def depth(self) -> int:
        """Passes between us and the founder, who has none."""
        return len(self._chain)

    def listed_invite(self, addresses: tuple[str, ...]) -> str | None:
        """An invite for a public listing, to us at ``addresses``; None where the mesh is not public, or we may not."""
        if not self.requirements.is_public:
            return None
        if self.desk is not None:
            return self.desk.listed(addresses)
        if not self._chain_holds() or not credentials.may_invite(self._chain, self.requirements):
            return None
        own, now = self._ports.identity, self._ports.clock.unix_ms()
        told = _with_peer(addresses[:MAX_INVITE_ADDRESSES], own.peer_id)
        came_by = self._chain[0].granted.invite_id
        invite = Invite(
            came_by, self.requirements, now, now + LISTED_LIFE_MS, told, issuer_key=own.public_key, passes=self._passes
        )
        return encode_invite(invite, own.public_key, own.sign)

    def bootstrap(self) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
        """Whom to dial to come (back) in, each with addresses; those of the invite first."""
        found: dict[PeerId, dict[str, None]] = {}
        for peer, addresses in self._invited_by():
            found.setdefault(peer, {}).update(dict.fromkeys(addresses))
        for address in self._membership.addresses if self._membership else ():
            if names_peer(address):
                peer = PeerId(address.rpartition("/p2p/")[2])
                found.setdefault(peer, {}).setdefault(address)
        found.pop(self._ports.identity.peer_id, None)
        return tuple((peer, tuple(addresses)) for peer, addresses in found.items())

    def _invited_by(self) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
        if self._invite is None:
            return ()
        named = replace(self._invite, addresses=self._ways_in, relay_addresses=()) if self._ways_in else self._invite
        return named.peers(self.founder)

    def is_vouched_for(self, peer: PeerId) -> bool:
        """Whether our invite, or what was kept of members who proved it, names a peer: it may see an invite."""
        return peer == self.founder or any(peer == known for known, _ in self.bootstrap())

    def check_proof(self, peer: PeerId, passes: tuple[bytes, ...]) -> None:
        """Raises the refusal of a peer that is not the founder and whose passes do not prove it a member."""
        if peer == self.founder:
            return
        chain = self._decode_shown_chain(passes, peer)
        if not chain:
            raise _refusal_error(Refusal(RefusalReason.PROOF_MISSING, "it shows no pass"))
        _raise_if(credentials.judge_chain(chain, peer, self._terms(), self._now()))

    def attempts(self) -> tuple[Attempt, ...]:
        """What to show in a hello, the best first; never empty."""
        if self.is_founder:
            return (Attempt(),)
        held = (Attempt(passes=self._passes),) if self._is_chain_in_time() else ()
        is_open = self._is_invite_open()
        invited = (Attempt(self._invite_text),) if is_open or (self._invite is not None and not held) else ()
        return (*held, *invited) or (Attempt(passes=self._passes),)  # the answer says what is wrong with them

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left to come back by: only a new invite helps."""
        return not self.is_founder and not self._is_chain_in_time() and not self._is_invite_open()

    def _is_invite_open(self) -> bool:
        return self._invite is not None and not is_expired(self._invite, self._ports.clock.unix_ms())

    def _is_chain_in_time(self) -> bool:
        """A pass that our newest revocation denies is shown all the same: the founder may have taken it back."""
        return bool(self._chain) and self._now() <= credentials.expiry_unix_ms(self._chain)

    def is_renewal_due(self) -> bool:
        """Whether our passes are in the second half of their life."""
        return credentials.renewal_due(self._chain, self._ports.clock.unix_ms())

    def _terms(self) -> Terms:
        return Terms(self.requirements, self.mesh_id, self.revocation, self._trust.store)

    def _chain_holds(self) -> bool:
        own = self._ports.identity.peer_id
        now = self._ports.clock.unix_ms()
        return bool(self._chain) and credentials.judge_chain(self._chain, own, self._terms(), now) is None

    # --- hellos --------------------------------------------------------------------
    def check_kind(self, said: Hello | Welcome) -> None:
        """Generation and mesh of a hello or welcome, which come before all else; raises the refusal."""
        _raise_if(credentials.judge_generation(said.generation, self.requirements))
        _raise_if(credentials.judge_mesh(said.mesh_id, self.mesh_id))

    async def check_hello(self, hello: Hello, peer: PeerId, announcement: Announcement) -> Shown:
        """What a joiner shows, once it is found good and its use of a counted invite is on disk; raises the refusal."""
        invite = self._decode_shown_invite(hello.invite) if hello.invite and not hello.passes else None
        shown = self._shown(hello, peer, announcement, invite)
        _raise_if(credentials.judge_peer(shown, self._terms(), self._ports.clock.unix_ms()))
        if invite is not None and shown.key != self.requirements.founder_key:
            _raise_if(await self._redeem(invite, peer))
        return shown

    def check_welcome(self, welcome: Welcome, peer: PeerId, announcement: Announcement) -> Shown:
        """What the answering member shows; ``Refused`` where that is no proof: then it is the other who has none."""
        try:
            shown = self._shown(welcome, peer, announcement, None)
            _raise_if(credentials.judge_peer(shown, self._terms(), self._now()))
        except RemoteProtocolError as error:
            text = f"{error.message} (said of peer {peer}, which answered and proves nothing)"
            raise Refused(error.code, text) from None
        return shown

    def grant(self, shown: Shown) -> bytes:
        """A sealed pass for a peer that is admitted; empty where there is none to give."""
        if not self.is_founder and not self._chain_holds():
            return b""
        granted = credentials.grant_pass(shown, self._chain, self._terms(), self._ports.clock.unix_ms())
        identity = self._ports.identity
        key = b"" if self.is_founder else identity.public_key
        return encode_pass(granted, key, identity.sign) if granted else b""

    async def take_granted(self, welcome: Welcome, granter: Announcement) -> None:
        """Keeps a better chain and, with it, where its granter is."""
        if self.is_founder or not welcome.granted:
            return
        passes = (welcome.granted, *welcome.passes)
        try:
            chain = self._decode_chain(passes, self._ports.identity.peer_id)
            _raise_if(credentials.judge_chain(chain, self._ports.identity.peer_id, self._terms(), self._now()))
        except RemoteProtocolError:
            return  # a member that grants nothing of use is a member all the same
        if not self._chain_holds() or credentials.is_better_chain(chain, self._chain, self._now()):
            self._passes, self._chain = passes, chain
            await self._keep(_addresses_of(granter))

    async def remember(self, member: Announcement) -> None:
        """Keeps where a fellow member is, so that we come back by it while the founder is away."""
        if not self.is_founder and self._is_worth_keeping(member):
            await self._keep(_addresses_of(member))

    def _is_worth_keeping(self, member: Announcement) -> bool:
        """Whether a member's whereabouts go into the file: as long as there is room, and now and then a newer one."""
        kept = self._membership
        if kept is None or not set(_addresses_of(member)) - set(kept.addresses):
            return False
        return len(kept.addresses) < MAX_KEPT_ADDRESSES or self._now() - kept.saved_unix_ms > KEEP_AGAIN_MS

    async def _redeem(self, invite: Invite, peer: PeerId) -> Refusal | None:
        if self.desk is not None:
            return await self.desk.redeem(invite, peer)
        if invite.max_uses:
            text = "this invite is counted by the founder, who is not here; join at an address that the invite holds"
            return Refusal(RefusalReason.INVITE_FOUNDER_ONLY, text)
        return None

    def _shown(self, said: Hello | Welcome, peer: PeerId, announcement: Announcement, invite: Invite | None) -> Shown:
        inviter = self._inviter_of(invite)
        return Shown(
            peer=peer,
            key=from_map(Envelope, unpack(said.announcement, "announcement"), "announcement").key,
            generation=said.generation,
            mesh_id=said.mesh_id,
            announced_peer=announcement.peer_id,
            version=announcement.version,
            claim=open_claim(announcement.ownership, self._ports.verifier.is_signature_of),
            invite=invite,
            chain=self._decode_shown_chain(said.passes, peer),
            inviter=inviter,
            inviter_chain=self._decode_inviters_chain(invite, inviter),
        )

    def _inviter_of(self, invite: Invite | None) -> PeerId | None:
        if invite is None or not invite.issuer_key:
            return None
        return self._ports.verifier.peer_id_of(invite.issuer_key)

    def _decode_inviters_chain(self, invite: Invite | None, inviter: PeerId | None) -> tuple[SignedPass, ...]:
        if invite is None or inviter is None:
            return ()
        try:
            return self._decode_chain(invite.passes, inviter)
        except RemoteProtocolError as error:
            text = f"whoever made the invite is no member ({error.message}); look for the pool again"
            raise _refusal_error(Refusal(RefusalReason.INVITE_INVALID, text)) from None

    def _decode_shown_invite(self, text: str) -> Invite:
        try:
            return decode_invite(text, self._ports.verifier.is_signature_of)
        except RemoteProtocolError as error:
            raise _refusal_error(Refusal(RefusalReason.INVITE_INVALID, error.message)) from None

    def _decode_shown_chain(self, passes: tuple[bytes, ...], peer: PeerId) -> tuple[SignedPass, ...]:
        try:
            return self._decode_chain(passes, peer)
        except RemoteProtocolError as error:
            refusal = Refusal(RefusalReason.PROOF_INVALID, f"{error.message}; use an invite")
            if error.code is ErrorCode.SIGNATURE_INVALID:
                text = "the pass is not this peer's: a home serves one machine; use an invite"
                refusal = Refusal(RefusalReason.PROOF_SENDER_MISMATCH, text)
            raise _refusal_error(refusal) from None

    def _decode_kept_chain(self, passes: tuple[bytes, ...]) -> tuple[SignedPass, ...]:
        """Nothing where they are not ours, as in a copied home: then the answer to them says so."""
        try:
            return self._decode_chain(passes, self._ports.identity.peer_id)
        except RemoteProtocolError:
            return ()

    def _decode_chain(self, passes: tuple[bytes, ...], holder: PeerId) -> tuple[SignedPass, ...]:
        """Passes of ``holder``: a pass is for whoever signed the one before it."""
        chain: list[SignedPass] = []
        for sealed in passes:
            chain.append(self._open_pass(sealed, chain[-1].signer if chain else holder))
        return tuple(chain)

    def _open_pass(self, sealed: bytes, holder: PeerId) -> SignedPass:
        """A pass, its signature checked if it was not before."""
        opened = self._opened.pop((holder, sealed), None)
        if opened is None:
            verifier, founder_key = self._ports.verifier, self.requirements.founder_key
            given = (self.mesh_id, founder_key, verifier.is_signature_of, verifier.peer_id_of)
            opened = decode_pass(sealed, holder, *given)
        self._opened[holder, sealed] = opened
        if len(self._opened) > MAX_OPENED_PASSES:
            del self._opened[next(iter(self._opened))]  # the one that was asked for longest ago
        return opened

    def _now(self) -> int:
        return self._ports.clock.unix_ms()

    # --- speakers of whom gossip tells -----------------------------------------------
    def check_speaker(self, said: Announcement) -> None:
        """Raises the refusal of a checked announcement whose speaker it does not prove to be a member.

        An admitted peer without a pass of its own is a member by what it showed to us.
        """
        _raise_if(self._judge_speaker(said))

    def _judge_speaker(self, said: Announcement) -> Refusal | None:
        peer = PeerId(said.peer_id)
        kept = self._admitted.get(peer)
        if not said.passes and kept is not None:
            now_shown = replace(kept, claim=self._trust.open(said.ownership))
            refusal = credentials.judge_proof(credentials.proof_of(kept), self.revocation)
            return refusal or credentials.judge_mesh_owner(now_shown, self._terms(), self._now())
        shown = Shown(
            peer=peer,
            key=self.requirements.founder_key if peer == self.founder else b"",
            generation=0,
            mesh_id=said.mesh_id,
            announced_peer=said.peer_id,
            version=said.version,
            claim=self._trust.open(said.ownership),
            chain=self._decode_shown_chain(said.passes, peer),
        )
        return credentials.judge_speaker(shown, self._terms(), self._now())

    def is_put_out(self, said: Announcement) -> bool:
        """Whether the speaker of an announcement that was kept is a member no more."""
        try:
            return self._judge_speaker(said) is not None
        except RemoteProtocolError:
            return True

    # --- revocations ---------------------------------------------------------------
    def note_admitted(self, shown: Shown) -> None:
        """Remembers what an admitted peer showed."""
        self._outcasts.pop(shown.peer, None)
        self._admitted[shown.peer] = shown

    def forget(self, peer: PeerId) -> None:
        """The peer is gone."""
        self._admitted.pop(peer, None)

    def find_invites_of(self, peer: PeerId) -> tuple[str, ...]:
        """Ids, in hex, of the invites that an admitted peer's membership hangs on."""
        kept = self._admitted.get(peer)
        if kept is None:
            return ()
        return tuple(sorted(one.hex() for one in credentials.proof_of(kept).invite_ids if any(one)))

    def knows(self, peer: PeerId) -> bool:
        """Whether a peer is admitted, or came by a counted invite of ours."""
        return peer in self._admitted or (self.desk is not None and invite_ledger.knows(self.desk.ledger, peer))

    def decode_revocation(self, sealed: bytes) -> Revocation:
        """A record of our mesh and its founder; raises ``RemoteProtocolError``."""
        founder_key = self.requirements.founder_key
        return decode_revocation(sealed, founder_key, self.mesh_id, self._ports.verifier.is_signature_of)

    def learn_revocation(self, sealed: bytes) -> bool:
        """Takes a newer record in; whether it was one. Raises ``RemoteProtocolError`` for one that is none of ours."""
        revocation = self.decode_revocation(sealed)
        if revocation.sequence <= self.revocation.sequence:
            return False
        self.revocation = revocation
        self.sealed_revocation = sealed
        if self.desk is not None:
            self.desk.adopt(revocation)
        return True

    async def keep_revocation(self) -> None:
        """Keeps the newest record over restarts; a founder's ledger does that."""
        if not self.is_founder:
            await self._keep(())

    def put_out(self, claim_of: Callable[[PeerId], bytes | None]) -> tuple[tuple[PeerId, Refusal], ...]:
        """Admitted peers that are to be put out, in the order of their admission.

        By the newest revocation, another trust, or the claim that they show now (``claim_of``; None: that of hello).
        """
        judged = ((peer, self._judge_again(kept, claim_of(peer))) for peer, kept in self._admitted.items())
        return tuple((peer, refusal) for peer, refusal in judged if refusal is not None)

    def _judge_again(self, kept: Shown, claim: bytes | None) -> Refusal | None:
        refusal = credentials.judge_removed(kept.peer, self.revocation)
        refusal = refusal or credentials.judge_proof(credentials.proof_of(kept), self.revocation)
        now_shown = kept if claim is None else replace(kept, claim=self._trust.open(claim))
        return refusal or credentials.judge_ownership(now_shown, self._terms(), self._now())

    async def _keep(self, addresses: tuple[str, ...]) -> None:
        """Saves where we stand; a home that cannot be written is told of and costs only the next rejoining."""
        known = (text for peer, listed in self.bootstrap() for text in _with_peer(listed, peer))
        kept = tuple(dict.fromkeys((*addresses, *known)))[:MAX_KEPT_ADDRESSES]
        self._membership = Membership(self.requirements, kept, self._passes, self.sealed_revocation, self._now())
        try:
            await self._ports.credentials.save_membership(self._membership)
        except P2PMeshError as error:
            self._report("error", {"code": error.code.value, "message": error.message})

    def describe(self) -> dict[str, Any]:
        """For the status: what the mesh asks, how long our passes last, whom we refused lately. No proof is in it."""
        terms = to_map(self.requirements)
        del terms["founder_key"]
        return {
            "founder": self.founder,
            "requirements": terms,
            "revocation_sequence": self.revocation.sequence,
            "pass_expires_unix_ms": credentials.expiry_unix_ms(self._chain) if self._chain else None,
            "recent_refusals": self._refusals.describe(MAX_SHOWN_REFUSALS),
        }

    def note_refused(self, peer: PeerId, code: ErrorCode, message: str) -> int:
        """Counts a refusal. How many the operator is to hear of now; 0: it has heard of them lately."""
        return self._refusals.note(peer, code, message, self._ports.clock.now())

    # --- who is out ------------------------------------------------------------------
    def note_outcast(self, peer: PeerId) -> None:
        """A peer is put out: what gossip says of it counts for nothing until the founder or the operator changes it."""
        self._outcasts.pop(peer, None)
        while len(self._outcasts) >= MAX_OUTCASTS:
            del self._outcasts[next(iter(self._outcasts))]
        self._outcasts[peer] = self._word()

    def is_outcast(self, peer: PeerId) -> bool:
        """Whether a peer is out by the founder's word, or was found to be by all that is in force now."""
        return peer in self.revocation.peers or self._outcasts.get(peer) == self._word()

    def _word(self) -> tuple[int, int]:
        return self.revocation.sequence, self._trust.changes.count

    # --- the founder's commands ------------------------------------------------------
    def decode_invite(self, line: str) -> Invite:
        """What an invite says; raises ``INVITE_MALFORMED``."""
        return decode_invite(line, self._ports.verifier.is_signature_of)

    def founders_desk(self) -> FounderDesk:
        """The desk; ``Refused(REQUEST_INVALID)`` at a member, who has none."""
        if self.desk is None:
            text = f"only the founder of the mesh (peer {self.founder}) can do that; run it in the founder's home"
            raise Refused(ErrorCode.REQUEST_INVALID, text)
        return self.desk


def _addresses_of(member: Announcement) -> tuple[str, ...]:
    """Where a member says that it is, each with its peer id."""
    return _with_peer(member.addresses[:MAX_ADDRESSES_OF_ONE], PeerId(member.peer_id))


def _with_peer(addresses: tuple[str, ...], peer: PeerId) -> tuple[str, ...]:
    return tuple(text if names_peer(text) else f"{text}/p2p/{peer}" for text in addresses)


def _requirements_of(invite: Invite | None, membership: Membership | None) -> MeshRequirements:
    if invite is not None:
        return invite.requirements
    assert membership is not None
    return membership.requirements


def _refusal_error(refusal: Refusal) -> RemoteProtocolError:
    return RemoteProtocolError(refusal.code, refusal.message)


def _raise_if(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise _refusal_error(refusal)
