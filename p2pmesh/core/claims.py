"""Who may coordinate a model: what a coordinator asks for, and its side of the asking.

A **run claim** names a model, a run, a term and the ordered list of peers that vote on it: the coordinator, then the
peers of the run's stages. It is held while a quorum of the list has granted it within a lease. ``Claimant`` asks,
counts, renews and steps down; the peers that are asked are ``core.grants``' side. What is loaded under a claim is
``core.coordination``'s, how messages travel ``node.claims``'.

Safety rests on three rules: a peer promises a model to one (term, run, coordinator) for a whole lease by its own
clock; a claimant counts its lease from before it asked, less what clocks may drift; two quorums of one list share a
peer. So of one list never two claims hold at once, whatever is lost, late or doubled.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_TERM, MAX_TERM_STEP
from p2pmesh.base.quantities import Micros


def quorum(peer_count: int) -> int:
    """Grants that a claim needs of a list so long: more than half (Mesh LLM's rule, 1, 2, 2, 3 for 1 to 4)."""
    return peer_count // 2 + 1


_NO_USE = frozenset({ErrorCode.PLACEMENT_REFUSED, ErrorCode.OVERLOADED, ErrorCode.NOT_IN_PLACEMENT})
"""Denials that asking again does not change, but asking others would."""
MAX_HASTY_ATTEMPTS = 4
"""So often a claimant follows at once upon the terms that it is told; then it backs off."""


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """Times of both sides, in microseconds.

    ``drift_us`` of a lease are given away, so that clocks may run apart by a twentieth each way. ``answer_us`` is
    how long one round waits; ``claiming_us`` how long a claim is tried for, ``takeover_us`` how long at a time a run is
    tried to be taken over. The successor at place ``i`` of the list waits ``i - 1`` times ``succession_us`` after the
    lease; ``keep_us`` is how long a run outlives it.
    """

    lease_us: int = 15_000_000
    renew_us: int = 5_000_000
    drift_us: int = 1_500_000
    answer_us: int = 4_000_000
    back_off_us: int = 1_000_000
    claiming_us: int = 45_000_000
    takeover_us: int = 20_000_000
    succession_us: int = 2_000_000
    keep_us: int = 90_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """A coordinator's claim on a model; ``peers`` is ordered, the coordinator first. ``model`` is its digest.

    ``is_serving``: the run is published, so its stages outlive their coordinator, and the list has a successor.
    """

    model: str
    run_id: bytes
    term: int
    peers: tuple[PeerId, ...]
    lease_us: int
    is_serving: bool = False

    @property
    def coordinator(self) -> PeerId:
        """Who asks."""
        return self.peers[0]


class ClaimPhase(StrEnum):
    """Where a claimant stands."""

    IDLE = "idle"
    ASKING = "asking"
    WAITING = "waiting"
    HELD = "held"
    OVER = "over"


# --- events -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ClaimWanted:
    """Begin to ask."""


@dataclass(frozen=True, slots=True)
class PeerGranted:
    """A peer granted what it was asked in ``round``."""

    peer: PeerId
    round: int


@dataclass(frozen=True, slots=True)
class PeerDenied:
    """A peer denied it; ``term`` is the one it knows, ``wait_us`` how long its promise to another lasts."""

    peer: PeerId
    round: int
    code: ErrorCode
    term: int
    wait_us: int


@dataclass(frozen=True, slots=True)
class PeerSilent:
    """A peer could not be asked, or did not answer."""

    peer: PeerId
    round: int


@dataclass(frozen=True, slots=True)
class RunServes:
    """The run of the claim is published."""


@dataclass(frozen=True, slots=True)
class ClaimWithdrawn:
    """The coordinator has no use for the claim any more: its run ``is_over``, or it leaves the run to others."""

    is_over: bool


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The machine's own deadline has come."""


Event = ClaimWanted | PeerGranted | PeerDenied | PeerSilent | RunServes | ClaimWithdrawn | DeadlinePassed


# --- effects ------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AskClaim:
    """Ask a peer of the list, oneself among them; the answer names the round."""

    peer: PeerId
    claim: Claim
    round: int


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Tell a peer that it need not keep its promise; unless the run ``is_over``, another may go on with it."""

    peer: PeerId
    claim: Claim
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class ClaimHeld:
    """A quorum granted. ``absent`` did not: a stage there could not be loaded."""

    claim: Claim
    absent: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """It was not granted, or is held no longer: whoever acted under it stops now. ``ungranted`` are those peers that
    did not grant what was asked last; ``leased`` are those of them that have promised the model to another's run."""

    code: ErrorCode
    text: str
    ungranted: tuple[PeerId, ...]
    leased: tuple[PeerId, ...] = ()


Effect = AskClaim | ReleaseClaim | ClaimHeld | ClaimLost


def _is_leased(denied: PeerDenied) -> bool:
    is_behind = denied.code in (ErrorCode.TERM_STALE, ErrorCode.TERM_CONFLICT)
    return denied.code is ErrorCode.MODEL_LEASED or (is_behind and denied.wait_us > 0)


class Claimant:
    """One coordinator's claim on one run, from the first question to its end.

    ``is_takeover``: the run is another's, who may live: the claimant asks itself last, so that its own promise stands
    until all others have given it up.
    """

    def __init__(self, claim: Claim, policy: ClaimPolicy | None = None, *, is_takeover: bool = False) -> None:
        if not claim.peers or len(set(claim.peers)) < len(claim.peers):
            raise ValueError("a claim names each of its peers once, the coordinator first")
        self._policy = policy or ClaimPolicy()
        self._claim = claim
        self._is_takeover = is_takeover and len(claim.peers) > 1
        self._phase = ClaimPhase.IDLE
        self._round = 0
        self._attempts = 0
        self._asked_at = Micros(0)
        self._granted: set[PeerId] = set()
        self._denied: dict[PeerId, PeerDenied] = {}
        self._silent: set[PeerId] = set()
        self._known_term = claim.term
        self._give_up_at = Micros(0)
        self._wait_until = Micros(0)
        self._valid_until = Micros(0)

    @property
    def phase(self) -> ClaimPhase:
        """Where the claim stands."""
        return self._phase

    @property
    def claim(self) -> Claim:
        """What is asked for; the term grows with each attempt until it is held."""
        return self._claim

    def is_valid(self, now: Micros) -> bool:
        """Whether the claim is held: nobody else can hold one of the same list."""
        return self._phase is ClaimPhase.HELD and now < self._valid_until

    def deadline(self) -> Micros | None:
        """When ``DeadlinePassed`` is due."""
        match self._phase:
            case ClaimPhase.ASKING:
                return Micros(self._asked_at + self._policy.answer_us)
            case ClaimPhase.WAITING:
                return self._wait_until
            case ClaimPhase.HELD:
                return min(Micros(self._asked_at + self._policy.renew_us), self._valid_until)
            case _:
                return None

    def handle(self, event: Event, now: Micros) -> tuple[Effect, ...]:
        """The effects of one event; a claim that is over has none."""
        if self._phase is ClaimPhase.OVER:
            return ()
        if self._phase is ClaimPhase.HELD and now >= self._valid_until:
            return self._lose(ErrorCode.QUORUM_LOST, "too few peers renewed the claim within its lease")
        match event:
            case ClaimWanted():
                return self._on_wanted(now)
            case PeerGranted(peer, number):
                return self._on_answer(peer, number, event, now)
            case PeerDenied(peer, number):
                return self._on_answer(peer, number, event, now)
            case PeerSilent(peer, number):
                return self._on_answer(peer, number, event, now)
            case RunServes():
                return self._on_serves(now)
            case ClaimWithdrawn(is_over):
                return self._on_withdrawn(is_over)
            case DeadlinePassed():
                return self._on_deadline(now)

    # --- asking ------------------------------------------------------------------
    def _on_wanted(self, now: Micros) -> tuple[Effect, ...]:
        if self._phase is not ClaimPhase.IDLE:
            return ()
        self._give_up_at = Micros(now + self._policy.claiming_us)
        self._phase = ClaimPhase.ASKING
        return self._ask(now)

    def _ask(self, now: Micros) -> tuple[Effect, ...]:
        self._round += 1
        self._asked_at = now
        self._granted.clear()
        self._denied.clear()
        self._silent.clear()
        is_first = self._is_takeover and self._phase is ClaimPhase.ASKING
        asked = self._claim.peers[1:] if is_first else self._claim.peers
        return tuple(AskClaim(peer, self._claim, self._round) for peer in asked)

    def _on_answer(
        self, peer: PeerId, number: int, event: PeerGranted | PeerDenied | PeerSilent, now: Micros
    ) -> tuple[Effect, ...]:
        """Answers of an earlier round are late: nobody knows when their question was read."""
        if number != self._round or peer not in self._claim.peers or self._has_answered(peer):
            return ()
        match event:
            case PeerGranted():
                self._granted.add(peer)
            case PeerDenied(term=term):
                self._denied[peer] = event
                # others follow no longer step than this, so neither do we, whatever one of them says
                self._known_term = max(self._known_term, min(term, self._claim.term + MAX_TERM_STEP - 1))
            case PeerSilent():
                self._silent.add(peer)
        if self._phase is ClaimPhase.HELD:
            return self._on_renewal()
        return self._on_asked(now) if self._phase is ClaimPhase.ASKING else ()

    def _on_asked(self, now: Micros) -> tuple[Effect, ...]:
        own, *others = self._claim.peers
        if not all(self._has_answered(other) for other in others):
            return ()
        if self._has_answered(own) or (self._is_takeover and not self._granted.issuperset(others)):
            return self._settle(now)
        return (AskClaim(own, self._claim, self._round),) if self._is_takeover else ()

    def _has_answered(self, peer: PeerId) -> bool:
        return peer in self._granted or peer in self._denied or peer in self._silent

    @property
    def _is_behind(self) -> bool:
        """Whether a peer knows a term that this claim could not know of."""
        return any(denied.code is ErrorCode.TERM_STALE for denied in self._denied.values())

    def _raise_term(self) -> None:
        self._known_term = min(self._known_term + 1, MAX_TERM)
        self._claim = replace(self._claim, term=self._known_term)

    @property
    def _has_quorum(self) -> bool:
        return len(self._granted) >= quorum(len(self._claim.peers))

    def _settle(self, now: Micros) -> tuple[Effect, ...]:
        """Everybody has answered, or was waited for long enough."""
        if self._is_behind and self._attempts < MAX_HASTY_ATTEMPTS and now < self._give_up_at:
            self._attempts += 1
            self._raise_term()
            return self._ask(now)  # those that granted go on with the same claimant
        if self._has_quorum and now < self._lease_end():
            self._phase = ClaimPhase.HELD
            self._valid_until = self._lease_end()
            absent = tuple(peer for peer in self._claim.peers if peer not in self._granted)
            return (ClaimHeld(self._claim, absent),)
        wait_us = self._back_off_us()
        if self._is_hopeless or now + max(wait_us, self._promised_us) >= self._give_up_at:
            return self._give_up()
        self._attempts += 1
        self._phase = ClaimPhase.WAITING
        self._wait_until = Micros(now + wait_us)
        return self._release_all()

    @property
    def _is_hopeless(self) -> bool:
        """Whether other peers would do better: some have no room, or do not answer. A run that is to be taken over has
        no others."""
        has_refused = any(denied.code in _NO_USE for denied in self._denied.values())
        return not self._is_takeover and (has_refused or bool(self._silent) or not self._has_all_answers)

    @property
    def _has_all_answers(self) -> bool:
        return all(self._has_answered(peer) for peer in self._claim.peers)

    def _lease_end(self) -> Micros:
        return Micros(self._asked_at + self._claim.lease_us - self._policy.drift_us)

    @property
    def _leased(self) -> tuple[PeerId, ...]:
        """Those whose promise to another's run lasts. Who claims for the first time knows no terms, and may hit upon
        that run's own."""
        return tuple(peer for peer in self._claim.peers if (d := self._denied.get(peer)) and _is_leased(d))

    @property
    def _promised_us(self) -> int:
        """How long the longest promise to another lasts, where it is not given back before."""
        return max((denied.wait_us for denied in self._denied.values()), default=0)

    def _back_off_us(self) -> int:
        """Apart from whoever tries for the same peers, and longer each time while those are another's."""
        rank = sorted(self._claim.peers).index(self._claim.coordinator)
        shortest_us = (1 + rank) * self._policy.back_off_us
        return max(shortest_us, min(self._promised_us, shortest_us << self._attempts))

    def _give_up(self) -> tuple[Effect, ...]:
        needed, asked = quorum(len(self._claim.peers)), len(self._claim.peers)
        text = f"{len(self._granted)} of {asked} peers granted the claim, {needed} are needed"
        refused = next((denied.code for denied in self._denied.values() if denied.code in _NO_USE), None)
        if refused is not None:
            return self._lose(refused, text)
        leased = len(self._leased)
        if leased:
            text = (
                f"{leased} of {asked} peers have promised it to a run of another coordinator, which may be serving it"
            )
            return self._lose(ErrorCode.MODEL_LEASED, text)
        if self._denied:
            return self._lose(ErrorCode.TERM_STALE, text)
        return self._lose(ErrorCode.QUORUM_LOST, text)

    # --- holding -----------------------------------------------------------------
    def _on_renewal(self) -> tuple[Effect, ...]:
        if self._has_quorum:
            self._valid_until = max(self._valid_until, self._lease_end())
        fenced = sum(denied.code in (ErrorCode.TERM_STALE, ErrorCode.TERM_CONFLICT) for denied in self._denied.values())
        peers = len(self._claim.peers)
        if peers - fenced < quorum(peers):
            return self._lose(ErrorCode.TERM_STALE, f"{fenced} of {peers} peers have granted a later claim")
        return ()

    def _on_serves(self, now: Micros) -> tuple[Effect, ...]:
        """Told at once: from now on the list has successors, who must know before the coordinator may die."""
        self._claim = replace(self._claim, is_serving=True)
        return self._ask(now) if self._phase is ClaimPhase.HELD else ()

    def _on_withdrawn(self, is_over: bool) -> tuple[Effect, ...]:
        has_asked = self._phase is not ClaimPhase.IDLE
        self._phase = ClaimPhase.OVER
        return self._release_all(is_over) if has_asked else ()

    def _release_all(self, is_over: bool = False) -> tuple[Effect, ...]:
        """Also to those that did not answer: the question may have reached them."""
        return tuple(ReleaseClaim(peer, self._claim, is_over) for peer in self._claim.peers)

    def _lose(self, code: ErrorCode, text: str) -> tuple[Effect, ...]:
        self._phase = ClaimPhase.OVER
        ungranted = tuple(peer for peer in self._claim.peers if peer not in self._granted)
        return (ClaimLost(code, text, ungranted, self._leased), *self._release_all())

    # --- time --------------------------------------------------------------------
    def _on_deadline(self, now: Micros) -> tuple[Effect, ...]:
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return ()
        if self._phase is ClaimPhase.ASKING:
            return self._settle(now)
        if self._phase is ClaimPhase.HELD and self._claim.is_serving and self._known_term > self._claim.term:
            self._raise_term()  # a peer tried to take the run over, and has to be caught up with
        if self._phase is ClaimPhase.WAITING:
            self._raise_term()
            self._phase = ClaimPhase.ASKING
        return self._ask(now)
