"""Whether a peer may come in, by what it shows: total functions over decoded facts, each refusal with its reason.

Owns the order of the checks, chains of passes, what a revocation puts out, and what is granted. Bytes and signatures
are ``wire``'s and are done before; uses of an invite are ``core.invite_ledger``'s; whether there is room is
``core.admission``'s.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import ID_BYTES, MeshId, PeerId
from p2pmesh.base.limits import CLOCK_SKEW_MS, MAX_PASSES, PROTOCOL_GENERATION
from p2pmesh.base.quantities import UnixMillis, format_age
from p2pmesh.core.ownership import (
    OpenedClaim,
    OwnershipStatus,
    TrustStore,
    admits,
    judge_claim,
)
from p2pmesh.wire.invite import LISTED_LIFE_MS, Invite, is_expired
from p2pmesh.wire.membership_pass import LIFE_MS, MembershipPass, SignedPass
from p2pmesh.wire.requirements import MeshRequirements
from p2pmesh.wire.revocation import Revocation

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?!\d)")
Version = tuple[int, int, int]


class RefusalReason(StrEnum):
    """Why a hello, or the welcome to one, is refused; upstream's names where they mean the same here."""

    GENERATION_BOUNDS_INVALID = "protocol_generation_bounds_invalid"
    GENERATION_BELOW_MINIMUM = "protocol_generation_below_minimum"
    GENERATION_ABOVE_MAXIMUM = "protocol_generation_above_maximum"
    GENERATION_UNKNOWN = "protocol_generation_unknown"
    VERSION_BOUNDS_INVALID = "node_version_bounds_invalid"
    VERSION_MALFORMED = "node_version_malformed"
    VERSION_BELOW_MINIMUM = "node_version_below_minimum"
    VERSION_ABOVE_MAXIMUM = "node_version_above_maximum"
    MESH_MISMATCH = "mesh_policy_mismatch"
    SENDER_MISMATCH = "sender_id_mismatch"
    INVITE_INVALID = "bootstrap_token_invalid"
    INVITE_EXPIRED = "bootstrap_token_expired"
    INVITE_REVOKED = "bootstrap_token_revoked"
    INVITE_EXHAUSTED = "bootstrap_token_exhausted"
    INVITE_FOUNDER_ONLY = "bootstrap_token_founder_only"
    PROOF_MISSING = "direct_proof_missing"
    PROOF_INVALID = "direct_proof_invalid"
    PROOF_STALE = "direct_proof_stale"
    PROOF_SENDER_MISMATCH = "direct_proof_sender_id_mismatch"
    PROOF_REVOKED = "direct_proof_revoked"
    ORIGIN_OWNER_MISSING = "origin_owner_missing"
    OWNER_MISSING = "owner_missing"
    OWNER_NOT_LISTED = "owner_not_listed"
    TRUST_POLICY_DENIED = "trust_policy_denied"


_R = RefusalReason
_C = ErrorCode
CODES = MappingProxyType(
    {
        _R.GENERATION_BOUNDS_INVALID: _C.GENERATION_UNSUPPORTED,
        _R.GENERATION_BELOW_MINIMUM: _C.GENERATION_UNSUPPORTED,
        _R.GENERATION_ABOVE_MAXIMUM: _C.GENERATION_UNSUPPORTED,
        _R.GENERATION_UNKNOWN: _C.GENERATION_UNSUPPORTED,
        _R.VERSION_BOUNDS_INVALID: _C.VERSION_UNSUPPORTED,
        _R.VERSION_MALFORMED: _C.VERSION_UNSUPPORTED,
        _R.VERSION_BELOW_MINIMUM: _C.VERSION_UNSUPPORTED,
        _R.VERSION_ABOVE_MAXIMUM: _C.VERSION_UNSUPPORTED,
        _R.MESH_MISMATCH: _C.INVITE_FOREIGN,
        _R.SENDER_MISMATCH: _C.SIGNATURE_INVALID,
        _R.INVITE_INVALID: _C.INVITE_MALFORMED,
        _R.INVITE_EXPIRED: _C.INVITE_EXPIRED,
        _R.INVITE_REVOKED: _C.INVITE_REVOKED,
        _R.INVITE_EXHAUSTED: _C.INVITE_EXHAUSTED,
        _R.INVITE_FOUNDER_ONLY: _C.NOT_ADMITTED,
        _R.PROOF_MISSING: _C.INVITE_MISSING,
        _R.PROOF_INVALID: _C.PASS_INVALID,
        _R.PROOF_STALE: _C.PASS_EXPIRED,
        _R.PROOF_SENDER_MISMATCH: _C.PASS_INVALID,
        _R.PROOF_REVOKED: _C.PEER_REMOVED,
        _R.ORIGIN_OWNER_MISSING: _C.OWNERSHIP_REFUSED,
        _R.OWNER_MISSING: _C.OWNERSHIP_REFUSED,
        _R.OWNER_NOT_LISTED: _C.OWNERSHIP_REFUSED,
        _R.TRUST_POLICY_DENIED: _C.OWNERSHIP_REFUSED,
    }
)
"""The code that each reason travels under."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason, and a line that says what to do."""

    reason: RefusalReason
    text: str

    @property
    def code(self) -> ErrorCode:
        """What it travels under."""
        return CODES[self.reason]

    @property
    def message(self) -> str:
        """The line as it travels: the reason, a colon, the text."""
        return f"{self.reason.value}: {self.text}"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a peer is held against: the mesh's requirements, what its founder revoked, and this operator's trust."""

    requirements: MeshRequirements
    mesh_id: MeshId
    revocation: Revocation
    trust: TrustStore


@dataclass(frozen=True, slots=True)
class Shown:
    """What a peer shows in a hello or welcome, decoded, every signature checked.

    ``peer`` is the authenticated peer of the connection, ``key`` the one that signed the announcement.
    """

    peer: PeerId
    key: bytes
    generation: int
    mesh_id: str
    announced_peer: str
    version: str
    claim: OpenedClaim
    invite: Invite | None = None
    chain: tuple[SignedPass, ...] = ()
    inviter: PeerId | None = None
    """The member that made the invite, with its passes beside; None for the founder."""
    inviter_chain: tuple[SignedPass, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """Through whom an admitted peer came in: what a revocation can name."""

    peers: frozenset[PeerId]
    invite_ids: frozenset[bytes]


DAY_MS = 24 * 3600 * 1000
NO_INVITE = bytes(ID_BYTES)
"""Stands for the invite of the founder, who came by none."""


def nothing_revoked(mesh_id: MeshId) -> Revocation:
    """What counts before the founder has revoked anything."""
    return Revocation(mesh_id, 0, 0, (), (), ())


# --- requirements ------------------------------------------------------------
def parse_version(text: str) -> Version | None:
    """The three numbers of a version; what follows the third does not count."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def judge_requirements(requirements: MeshRequirements) -> Refusal | None:
    """Whether requirements can be met by anybody, and by this software."""
    low, high = requirements.generation_min, requirements.generation_max
    if low > high:
        return Refusal(_R.GENERATION_BOUNDS_INVALID, f"generations {low} to {high} are none; found another mesh")
    bounds = (requirements.version_min, requirements.version_max)
    parsed = [parse_version(text) for text in bounds if text]
    if None in parsed:
        return Refusal(_R.VERSION_MALFORMED, f"{' or '.join(filter(None, bounds))!r} is no version such as 0.2.0")
    if len(parsed) == 2 and parsed != sorted(parsed, key=_order):
        return Refusal(_R.VERSION_BOUNDS_INVALID, f"versions {bounds[0]} to {bounds[1]} are none; swap them")
    return judge_generation(PROTOCOL_GENERATION, requirements)


def judge_generation(generation: int, requirements: MeshRequirements) -> Refusal | None:
    """Whether a mesh lets a protocol generation in, and whether we speak it."""
    low, high = requirements.generation_min, requirements.generation_max
    if generation < low:
        return Refusal(_R.GENERATION_BELOW_MINIMUM, f"this overlay needs generation {low} or newer; update p2pmesh")
    if generation > high:
        return Refusal(_R.GENERATION_ABOVE_MAXIMUM, f"this overlay takes generations to {high}; use an older p2pmesh")
    if generation != PROTOCOL_GENERATION:
        text = f"protocol generation {generation}, this peer speaks {PROTOCOL_GENERATION}; update the older"
        return Refusal(_R.GENERATION_UNKNOWN, text)
    return None


def judge_version(version: str, requirements: MeshRequirements) -> Refusal | None:
    """Whether a mesh lets a software version in."""
    low, high = requirements.version_min, requirements.version_max
    if not low and not high:
        return None
    parsed = parse_version(version)
    if parsed is None:
        return Refusal(_R.VERSION_MALFORMED, f"{version!r} is no version; this overlay asks for one such as 0.2.0")
    if low and parsed < (parse_version(low) or parsed):
        return Refusal(_R.VERSION_BELOW_MINIMUM, f"this overlay needs p2pmesh {low} or newer, not {version}; update it")
    if high and parsed > (parse_version(high) or parsed):
        return Refusal(_R.VERSION_ABOVE_MAXIMUM, f"this overlay takes p2pmesh up to {high}, not {version}")
    return None


def _order(version: Version | None) -> Version:
    return version or (0, 0, 0)


# --- a peer ------------------------------------------------------------------
def judge_peer(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """The first thing that is wrong with what a peer shows, in the order of the protocol; None admits it."""
    return _first(_RULES, shown, terms, now_unix_ms)


def _generation(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    return judge_generation(shown.generation, terms.requirements)


def _mesh(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    return judge_mesh(shown.mesh_id, terms.mesh_id)


def judge_mesh(said: str, ours: MeshId) -> Refusal | None:
    """Whether a peer speaks of our mesh."""
    if said == ours:
        return None
    return Refusal(_R.MESH_MISMATCH, "the invite is for another mesh than the peer it leads to; ask for a new one")


def _sender(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    if shown.announced_peer == shown.peer:
        return None
    return Refusal(_R.SENDER_MISMATCH, "the announcement is another peer's")


def _version(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    return judge_version(shown.version, terms.requirements)


def _removed(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    return judge_removed(shown.peer, terms.revocation)


def judge_removed(peer: PeerId, revocation: Revocation) -> Refusal | None:
    """Whether the founder removed this very peer: then no invite helps, only the founder."""
    if peer not in revocation.peers:
        return None
    text = f"the founder removed this peer; only p2pmesh peer readmit {peer} in the founder's home lets it in again"
    return Refusal(_R.PROOF_REVOKED, text)


def _proof(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    if shown.key == terms.requirements.founder_key:
        return None
    if shown.chain:
        return judge_chain(shown.chain, shown.peer, terms, now_unix_ms)
    if shown.invite is not None:
        refusal = judge_invite(shown.invite, terms, now_unix_ms)
        return refusal or _judge_inviter(shown, shown.invite, terms, now_unix_ms)
    return Refusal(_R.PROOF_MISSING, "an invite is needed; ask a member for one")


def judge_ownership(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """Whether the claim that a peer shows meets the mesh's terms and this operator's trust."""
    return _first((judge_mesh_owner, _operators_trust), shown, terms, now_unix_ms)


def judge_mesh_owner(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """Whether the claim that a peer shows meets the mesh's terms; ``judge_owner`` of what is shown."""
    is_founder = shown.key == terms.requirements.founder_key
    return judge_owner(shown.claim, shown.peer, terms.requirements, now_unix_ms, is_founder=is_founder)


def _operators_trust(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    policy, status = terms.trust.policy, judge_claim(shown.claim, shown.peer, terms.trust, now_unix_ms).status
    if admits(policy, status):
        return None
    text = f"the operator of this peer admits by {policy.value}, and {_claim_in_words(status)}"
    return Refusal(_R.TRUST_POLICY_DENIED, f"{text}; sign the node (p2pmesh auth sign-node), or ask that operator")


def _claim_in_words(status: OwnershipStatus) -> str:
    if status is OwnershipStatus.UNSIGNED:
        return "no owner has signed this node"
    return f"the claim is {status.value}"


_Rule = Callable[[Shown, Terms, int], Refusal | None]
_OF_SPEAKERS: tuple[_Rule, ...] = (_mesh, _sender, _version, _removed, _proof, judge_mesh_owner)
_RULES: tuple[_Rule, ...] = (_generation, *_OF_SPEAKERS, _operators_trust)


def _first(rules: tuple[_Rule, ...], shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    return next((refusal for rule in rules if (refusal := rule(shown, terms, now_unix_ms)) is not None), None)


def judge_speaker(shown: Shown, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """The first thing wrong with the membership of a peer that only its announcement tells of; None keeps its word.

    As ``judge_peer``, but for the generation, which no announcement says, and this operator's trust, which decides with
    whom we connect and not who is a member.
    """
    return _first(_OF_SPEAKERS, shown, terms, now_unix_ms)


def judge_owner(
    claim: OpenedClaim, peer: PeerId, requirements: MeshRequirements, now_unix_ms: int, *, is_founder: bool = False
) -> Refusal | None:
    """Whether a claim meets what the mesh asks of owners. No operator's trust has a part in it."""
    if not requirements.requires_owner and not requirements.owners:
        return None
    ownership = judge_claim(claim, peer, TrustStore(), now_unix_ms)
    if ownership.status is not OwnershipStatus.VERIFIED:
        reason = _R.ORIGIN_OWNER_MISSING if is_founder else _R.OWNER_MISSING
        text = f"this overlay requires an owner's signature, and {_claim_in_words(ownership.status)}"
        return Refusal(reason, f"{text}; run p2pmesh auth sign-node")
    if requirements.owners and ownership.owner_id not in requirements.owners:
        return Refusal(
            _R.OWNER_NOT_LISTED, f"this overlay does not list the owner {ownership.owner_id}; ask its founder"
        )
    return None


# --- invites and passes --------------------------------------------------------
def judge_invite(invite: Invite, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """Whether an invite lets anybody into the mesh now; its uses are not counted here."""
    if invite.mesh_id != terms.mesh_id:
        return Refusal(_R.MESH_MISMATCH, "the invite is for another mesh; ask for one of this")
    if invite.invite_id in (*terms.revocation.invites, *terms.revocation.expelled_invites):
        return Refusal(_R.INVITE_REVOKED, "the invite was revoked; ask for a new one")
    if is_expired(invite, UnixMillis(now_unix_ms)):
        age = format_age(now_unix_ms - invite.expires_unix_ms)
        return Refusal(_R.INVITE_EXPIRED, f"the invite expired {age} ago; ask for a new one")
    return None


def _judge_inviter(shown: Shown, invite: Invite, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """Whether the member that made an invite may invite; nothing to ask of the founder.

    Members let others in by passes anyway. That they may give lines to strangers is the founder's to decide, once, in
    the terms. The id is that of the invite they came by themselves: what revokes it ends theirs, too.
    """
    if shown.inviter is None:
        return None
    if not terms.requirements.is_public:
        return Refusal(_R.INVITE_INVALID, "only the founder invites into this mesh; ask it for an invite")
    if invite.expires_unix_ms > now_unix_ms + LISTED_LIFE_MS + CLOCK_SKEW_MS:
        return Refusal(_R.INVITE_INVALID, "it lives longer than a member's invite may; look for the pool again")
    chain = shown.inviter_chain
    if not chain or chain[0].granted.invite_id != invite.invite_id:
        return Refusal(_R.INVITE_INVALID, "its passes are those of another invite; look for the pool again")
    refusal = judge_chain(chain, shown.inviter, terms, now_unix_ms)
    return refusal and Refusal(_R.INVITE_INVALID, f"whoever made the invite is no member: {refusal.text}")


def may_invite(chain: tuple[SignedPass, ...], requirements: MeshRequirements) -> bool:
    """Whether a member with these passes may list the pool: its guests get passes of their own."""
    return requirements.is_public and 0 < len(chain) < MAX_PASSES


def judge_chain(chain: tuple[SignedPass, ...], peer: PeerId, terms: Terms, now_unix_ms: int) -> Refusal | None:
    """Whether passes, the peer's own first, lead from ``peer`` to the founder; ``chain`` is not empty."""
    if len(chain) > MAX_PASSES:
        return Refusal(_R.PROOF_INVALID, f"a chain of {len(chain)} passes; allowed are {MAX_PASSES}; use an invite")
    for signed in chain:
        if signed.granted.mesh_id != terms.mesh_id:
            return Refusal(_R.PROOF_INVALID, "the pass is for another mesh; use an invite of this one")
        if not _is_life_possible(signed.granted, now_unix_ms):
            return Refusal(_R.PROOF_INVALID, "the pass lives longer than a pass may, or never; use an invite")
    if chain[0].granted.peer_id != peer:
        return Refusal(_R.PROOF_SENDER_MISMATCH, "the pass is another peer's: a home serves one machine; use an invite")
    if not _is_linked(chain, terms.requirements.founder_key):
        return Refusal(_R.PROOF_INVALID, "the pass does not lead to the founder; use an invite")
    if now_unix_ms > expiry_unix_ms(chain) + CLOCK_SKEW_MS:
        return Refusal(_R.PROOF_STALE, "the pass has expired (or a clock is wrong); use an invite")
    ids = frozenset(signed.granted.invite_id for signed in chain)
    return judge_proof(Proof(frozenset([peer, *(signed.signer for signed in chain)]), ids), terms.revocation)


def _is_life_possible(granted: MembershipPass, now_unix_ms: int) -> bool:
    """Not over before it began, not longer than allowed, also by our clock: none is made for a later day."""
    lives_ms = granted.expires_unix_ms - granted.issued_unix_ms
    return 0 <= lives_ms <= LIFE_MS and granted.expires_unix_ms <= now_unix_ms + LIFE_MS + CLOCK_SKEW_MS


def _is_linked(chain: tuple[SignedPass, ...], founder_key: bytes) -> bool:
    above = [signed.granted.peer_id for signed in chain[1:]]
    signers = [signed.signer for signed in chain[:-1]]
    return signers == above and chain[-1].signer_key == founder_key


def expiry_unix_ms(chain: tuple[SignedPass, ...]) -> int:
    """When the first pass of a chain is over, and the chain with it; ``chain`` is not empty."""
    return min(signed.granted.expires_unix_ms for signed in chain)


def proof_of(shown: Shown) -> Proof:
    """Everyone and everything that a peer's membership hangs on."""
    ids = [signed.granted.invite_id for signed in shown.chain]
    ids += [shown.invite.invite_id] if shown.invite is not None else []
    above = [signed.signer for signed in (*shown.chain, *shown.inviter_chain)]
    above += [shown.inviter] if shown.inviter is not None else []
    return Proof(frozenset([shown.peer, *above]), frozenset(ids))


def judge_proof(proof: Proof, revocation: Revocation) -> Refusal | None:
    """Whether a revocation puts out a peer that is, or was, a member by ``proof``."""
    is_out = not proof.peers.isdisjoint(revocation.peers) or not proof.invite_ids.isdisjoint(
        revocation.expelled_invites
    )
    if not is_out:
        return None
    text = "the founder removed whoever let this peer in, or all who came by its invite; join by a new invite"
    return Refusal(_R.PROOF_REVOKED, text)


# --- granting ------------------------------------------------------------------
def grant_pass(
    shown: Shown, own_chain: tuple[SignedPass, ...], terms: Terms, now_unix_ms: int
) -> MembershipPass | None:
    """The pass for a peer that was admitted; ``own_chain`` is empty at the founder. None where none can be given."""
    if shown.key == terms.requirements.founder_key or len(own_chain) >= MAX_PASSES:
        return None
    expires = now_unix_ms + LIFE_MS
    if own_chain:
        expires = min(expires, expiry_unix_ms(own_chain))
    if expires <= now_unix_ms:
        return None
    return MembershipPass(terms.mesh_id, shown.peer, invite_id_of(shown), now_unix_ms, expires)


def invite_id_of(shown: Shown) -> bytes:
    """The invite that a peer came by, in the end."""
    if shown.chain:
        return shown.chain[0].granted.invite_id
    return shown.invite.invite_id if shown.invite is not None else NO_INVITE


def is_better_chain(offered: tuple[SignedPass, ...], held: tuple[SignedPass, ...], now_unix_ms: int) -> bool:
    """Whether to change to an offered chain: none is held, or it is shorter, or as long and lives longer.

    A chain in the second half of its life gives way to any that lives longer. Less than a day is no reason to write a
    file at each hello.
    """
    if not offered or not held:
        return bool(offered)
    lives_longer = expiry_unix_ms(offered) > expiry_unix_ms(held) + DAY_MS
    if renewal_due(held, now_unix_ms):
        return lives_longer
    return len(offered) < len(held) or (len(offered) == len(held) and lives_longer)


def renewal_due(chain: tuple[SignedPass, ...], now_unix_ms: int) -> bool:
    """Whether a chain that is held is in the second half of its life."""
    return bool(chain) and now_unix_ms > expiry_unix_ms(chain) - LIFE_MS // 2
