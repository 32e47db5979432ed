"""Both machines of run claims at every peer of a world, and the messages between them.

Who coordinates, who stands by and who takes over is decided by the machines alone. What a run is, how long a message
takes, and what follows when a claim is held or lost is the world's: ``ClaimsWorld`` and ``ModelsWorld``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import claims, grants
from p2pmesh.core.claims import Claim, Claimant, ClaimPolicy, quorum
from p2pmesh.sim.alarm import Alarm
from p2pmesh.sim.calendar import CALL, Calendar
from p2pmesh.sim.chance import PER_MILLION
from p2pmesh.sim.journal import Journal
from p2pmesh.sim.peer import number_of, peer_id_of


@dataclass(slots=True)
class SimRun:
    """A placement in effect: its stages, by peer number in order, and the bytes that they need where that matters."""

    run_id: bytes
    model: int
    stages: tuple[int, ...]
    needed: tuple[int, ...] = ()
    is_published: bool = False
    is_broken: bool = False


@dataclass(slots=True)
class Seat:
    """What a peer does as coordinator of one model: from its claim to the end of it."""

    claimant: Claimant
    run: SimRun
    is_takeover: bool
    alarm: Alarm = field(default_factory=Alarm)


@dataclass(slots=True)
class ClaimsPeer:
    """One peer; what is kept on its disk survives ``life`` after ``life``."""

    number: int
    rate: int
    life: int = 0
    is_up: bool = True
    started_us: int = 0
    kept: tuple[grants.KeptGrant, ...] = ()
    grantor: grants.Grantor = field(init=False)
    alarm: Alarm = field(default_factory=Alarm)
    seats: dict[int, Seat] = field(default_factory=dict)
    stages: dict[int, SimRun] = field(default_factory=dict)
    taken_until: dict[tuple[int, int], int] = field(default_factory=dict)

    def clock(self, now_us: int) -> Micros:
        """What its own monotonic clock shows."""
        return Micros((now_us - self.started_us) * self.rate // PER_MILLION)

    def real(self, local_us: int) -> int:
        """When that clock shows ``local_us``."""
        return self.started_us - -local_us * PER_MILLION // self.rate + 1


class ClaimsListener(Protocol):
    """The world around the machines."""

    def way_us(self, source: int, target: int) -> int | None:
        """How long a message takes from now on; None if it is lost."""

    def is_reached(self, source: int, target: int) -> bool:
        """Whether nothing lies between two peers."""

    def room_for(self, run: SimRun, number: int) -> tuple[int, int]:
        """Bytes that a peer's stage of a run needs, and those that it may take there."""

    def on_run_moved(self, peer: ClaimsPeer, old: Claim) -> None:
        """The stage of a run at a peer is nobody's any more."""

    def on_held(self, peer: ClaimsPeer, seat: Seat, absent: tuple[PeerId, ...]) -> None:
        """A coordinator holds its claim."""

    def on_lost(self, peer: ClaimsPeer, seat: Seat, ungranted: tuple[PeerId, ...]) -> None:
        """It did not get it, or has it no longer."""


def digest_of(model: int) -> str:
    """What a model is called in claims."""
    return f"{model:064x}"


class ClaimPeers:
    """The peers of a world with their grantors and claimants."""

    def __init__(self, world: ClaimsListener, calendar: Calendar, journal: Journal, policy: ClaimPolicy) -> None:
        self.policy = policy
        self.peers: list[ClaimsPeer] = []
        self._world = world
        self._calendar = calendar
        self._journal = journal
        self._seated: dict[int, dict[int, ClaimsPeer]] = {}

    def add(self, rate: int) -> ClaimsPeer:
        """A peer whose clock runs at ``rate`` per million."""
        peer = ClaimsPeer(len(self.peers), rate)
        peer.grantor = grants.Grantor(peer_id_of(peer.number), self.policy)
        self.peers.append(peer)
        return peer

    def restart(self, peer: ClaimsPeer) -> None:
        """A peer that was down is back, with what it kept on disk."""
        peer.is_up = True
        peer.started_us = self._calendar.now_us
        peer.alarm = Alarm()
        peer.grantor = grants.Grantor(peer_id_of(peer.number), self.policy, peer.kept)

    def stop(self, peer: ClaimsPeer) -> None:
        """A peer is gone, with all that it did."""
        peer.is_up = False
        peer.life += 1
        for model in peer.seats:
            del self._seated[model][peer.number]
        peer.stages.clear()
        peer.seats.clear()
        peer.taken_until.clear()

    @property
    def now_us(self) -> int:
        """The time in the world."""
        return self._calendar.now_us

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Does something after a while."""
        self._calendar.put(self._calendar.now_us + delay_us, CALL, 0, action)

    # --- messages ----------------------------------------------------------------
    def send(self, source: ClaimsPeer, target: int, action: Callable[[ClaimsPeer], None]) -> None:
        """To the life that the target has when it arrives; one's own messages are never lost."""
        delay_us = 0 if source.number == target else self._world.way_us(source.number, target)
        if delay_us is not None:
            self.later(delay_us, partial(self._arrive, source.number, target, action))

    def _arrive(self, source: int, target: int, action: Callable[[ClaimsPeer], None]) -> None:
        peer = self.peers[target]
        if peer.is_up and self._world.is_reached(source, target):
            action(peer)

    # --- the grantor of a peer -----------------------------------------------------
    def grant(self, peer: ClaimsPeer, event: grants.Event) -> grants.Grant | grants.Deny | None:
        """One event, with all effects but the answer."""
        now = self._calendar.now_us
        effects = peer.grantor.handle(event, peer.clock(now))
        self._journal.note(Micros(now), f"{peer.number} grants", event, effects)
        answer = None
        for effect in effects:
            match effect:
                case grants.KeepGrant(kept):
                    peer.kept = kept
                case grants.ClaimMoved(old, new):
                    if old.run_id != new.run_id:
                        self._world.on_run_moved(peer, old)
                case grants.RunReleased(claim):
                    self._world.on_run_moved(peer, claim)
                case grants.SuccessionDue(claim):
                    self.later(0, partial(self._succeed, peer, peer.life, claim))
                case _:
                    answer = effect
        due = peer.grantor.deadline()
        if due is not None:
            ring = partial(self._wake_grantor, peer, peer.life)
            peer.alarm.set_at(self._calendar, peer.real(due), ring)
        return answer

    def _wake_grantor(self, peer: ClaimsPeer, life: int) -> None:
        if peer.is_up and peer.life == life:
            self.grant(peer, grants.DeadlinePassed())

    def is_promised(self, peer: ClaimsPeer, model: int) -> bool:
        """Whether a peer has to stand by: the model is another's, or a run of it is kept here."""
        digest = digest_of(model)
        promised = peer.grantor.promised(digest)
        if promised is None:
            return False
        is_leased = peer.grantor.leased_to(digest, peer.clock(self._calendar.now_us)) is not None
        return is_leased or peer.grantor.is_kept(digest, promised.run_id)

    def end_stage(self, peer: ClaimsPeer, run: SimRun) -> None:
        """The stage of a run at a peer is gone."""
        if peer.stages.get(run.model) is run:
            del peer.stages[run.model]
            self.grant(peer, grants.StageEnded(digest_of(run.model), run.run_id))

    def is_whole(self, run: SimRun) -> bool:
        """Whether all stages are there, and reach each other."""
        return all(
            self.peers[number].is_up
            and self.peers[number].stages.get(run.model) is run
            and self._world.is_reached(number, run.stages[0])
            for number in run.stages
        )

    # --- coordinating ----------------------------------------------------------------
    def _succeed(self, peer: ClaimsPeer, life: int, claim: Claim) -> None:
        """The next of a list whose coordinator is silent takes its run over, if the stage is there."""
        model = int(claim.model, 16)
        if not peer.is_up or peer.life != life or model in peer.seats:
            return
        run = peer.stages.get(model)
        if run is None or run.run_id != claim.run_id:
            self.grant(peer, grants.StageEnded(claim.model, claim.run_id))
        else:
            self.sit(peer, run, is_takeover=True)

    def sit(self, peer: ClaimsPeer, run: SimRun, *, is_takeover: bool) -> Seat:
        """A peer claims a run."""
        digest = digest_of(run.model)
        promised = peer.grantor.promised(digest)
        term = promised.term + 1 if promised is not None else 1
        others = (number for number in run.stages if number != peer.number)
        peers = tuple(map(peer_id_of, (peer.number, *others)))
        claim = Claim(digest, run.run_id, term, peers, self.policy.lease_us, is_serving=is_takeover)
        policy = replace(self.policy, claiming_us=self.policy.takeover_us) if is_takeover else self.policy
        seat = peer.seats[run.model] = Seat(Claimant(claim, policy, is_takeover=is_takeover), run, is_takeover)
        self._seated.setdefault(run.model, {})[peer.number] = peer
        self.feed(peer, seat, claims.ClaimWanted())
        return seat

    def stand_up(self, peer: ClaimsPeer, seat: Seat) -> None:
        """It coordinates the model no more."""
        if peer.seats.get(seat.run.model) is seat:
            del peer.seats[seat.run.model]
            del self._seated[seat.run.model][peer.number]

    def is_seated(self, peer: ClaimsPeer, seat: Seat) -> bool:
        """Whether a peer is up and coordinates still."""
        return peer.is_up and peer.seats.get(seat.run.model) is seat

    def feed(self, peer: ClaimsPeer, seat: Seat, event: claims.Event) -> None:
        """One event of a claimant."""
        if not self.is_seated(peer, seat):
            return
        now = self._calendar.now_us
        effects = seat.claimant.handle(event, peer.clock(now))
        self._journal.note(Micros(now), f"{peer.number} claims", event, effects)
        for effect in effects:
            self._perform(peer, seat, effect)
        due = seat.claimant.deadline()
        if due is not None:
            wake = partial(self.feed, peer, seat, claims.DeadlinePassed())
            seat.alarm.set_at(self._calendar, peer.real(due), wake)

    def _perform(self, peer: ClaimsPeer, seat: Seat, effect: claims.Effect) -> None:
        match effect:
            case claims.AskClaim(to, claim, number):
                ask = partial(self._answer, peer=peer, seat=seat, claim=claim, number=number)
                self.send(peer, number_of(to), ask)
            case claims.ReleaseClaim(to, claim, is_over):
                event = grants.ClaimReleased(claim.coordinator, claim.model, claim.run_id, claim.term, is_over)
                self.send(peer, number_of(to), partial(self._hear_release, event=event))
            case claims.ClaimHeld(_, absent):
                self._world.on_held(peer, seat, absent)
            case claims.ClaimLost(_, _, ungranted):
                self._world.on_lost(peer, seat, ungranted)

    def _hear_release(self, asked: ClaimsPeer, event: grants.ClaimReleased) -> None:
        self.grant(asked, event)

    def _answer(self, asked: ClaimsPeer, peer: ClaimsPeer, seat: Seat, claim: Claim, number: int) -> None:
        event: claims.Event
        question = grants.ClaimAsked(claim.coordinator, claim, *self._world.room_for(seat.run, asked.number))
        match self.grant(asked, question):
            case grants.Deny(code, _, term, wait_us):
                event = claims.PeerDenied(peer_id_of(asked.number), number, code, term, wait_us)
            case _:
                event = claims.PeerGranted(peer_id_of(asked.number), number)
        self.send(asked, peer.number, lambda to: self.feed(to, seat, event))

    # --- what must hold ------------------------------------------------------------------
    def find_conflicts(self, model: int) -> list[str]:
        """Of claims of a model that are held, each has a quorum of its own, and no list stands twice."""
        now, found = self._calendar.now_us, []
        seats = [(peer, peer.seats[model]) for peer in self._seated.get(model, {}).values()]
        held = [seat.claimant.claim for peer, seat in seats if seat.claimant.is_valid(peer.clock(now))]
        for claim in held:
            promised = sum(self._has_promised(number_of(peer), claim) for peer in claim.peers)
            if promised < quorum(len(claim.peers)):
                found.append(f"{now} us: model {model}, term {claim.term} is held without a quorum")
        if len({frozenset(claim.peers) for claim in held}) < len(held):
            found.append(f"{now} us: model {model} is held twice by one list")
        return found

    def _has_promised(self, number: int, claim: Claim) -> bool:
        """A peer that is down keeps its promise on disk."""
        peer = self.peers[number]
        if not peer.is_up:
            return any(kept.model == claim.model and kept.run_id == claim.run_id for kept in peer.kept)
        leased = peer.grantor.leased_to(claim.model, peer.clock(self._calendar.now_us))
        return leased is not None and (leased.run_id, leased.term) == (claim.run_id, claim.term)
