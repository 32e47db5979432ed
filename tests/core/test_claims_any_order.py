"""Claims under lost, late and doubled messages, partitions, restarts and clocks that run apart.

Each peer has a ``Grantor`` (its kept promises survive a restart) and may have a ``Claimant``, both on its own clock.
All want one model with lists of all the peers, which is where two coordinators would meet.
"""

from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import claims, grants
from p2pmesh.core.claims import Claim, Claimant, ClaimPhase, ClaimPolicy

POLICY = ClaimPolicy(1000, 300, 100, 200, 50, 4000, 600, 10, 5000)
FASTEST_PERMILLE, SLOWEST_PERMILLE = 1045, 955
"""Within what a tenth of the lease makes up for."""
Answer = tuple[Claimant, claims.Event]
"""On the stream of the question, so it finds the claimant that asked, or nobody."""
Message = tuple[PeerId, PeerId, claims.AskClaim | claims.ReleaseClaim | Answer]


@dataclass
class Peer:
    """One peer: its clock, its promises, what it claims."""

    name: PeerId
    permille: int
    started_at: int = 0
    kept: tuple[grants.KeptGrant, ...] = ()
    unsaved: tuple[grants.KeptGrant, ...] | None = None
    """After a release: nobody waits for that to be on disk, and a crash may come first."""
    claimant: Claimant | None = None
    runs: int = 0
    grantor: grants.Grantor = field(init=False)

    def __post_init__(self) -> None:
        self.restart(0)

    def clock(self, real: int) -> Micros:
        return Micros((real - self.started_at) * self.permille // 1000)

    def restart(self, real: int) -> None:
        """A monotonic clock begins anew with its process."""
        self.started_at = real
        self.claimant = self.unsaved = None
        self.grantor = grants.Grantor(self.name, POLICY, self.kept)


class World:
    """Peers and the messages between them; ``deliver`` and ``lose`` take any of those on their way."""

    def __init__(self, permilles: list[int]) -> None:
        self.real = 0
        self.peers = {PeerId(f"p{i}"): Peer(PeerId(f"p{i}"), permille) for i, permille in enumerate(permilles)}
        self.under_way: list[Message] = []
        self.cut: frozenset[frozenset[PeerId]] = frozenset()

    def claim(self, name: PeerId) -> None:
        peer = self.peers[name]
        if peer.claimant is not None and peer.claimant.phase is not ClaimPhase.OVER:
            return
        promised = peer.grantor.promised("m")
        peer.runs += 1
        others = tuple(other for other in self.peers if other != name)
        run_id = f"{name}-{peer.runs}-{peer.started_at}".encode()
        term = promised.term + 1 if promised else 1
        peer.claimant = Claimant(Claim("m", run_id, term, (name, *others), POLICY.lease_us), POLICY)
        self.tell(peer, claims.ClaimWanted())

    def tell(self, peer: Peer, event: claims.Event) -> None:
        if peer.claimant is None:
            return
        for effect in peer.claimant.handle(event, peer.clock(self.real)):
            if isinstance(effect, claims.AskClaim | claims.ReleaseClaim):
                self.under_way.append((peer.name, effect.peer, effect))
        del self.under_way[:-60]

    def deliver(self, message: Message) -> None:
        source, target, content = message
        if frozenset((source, target)) in self.cut:
            return
        peer = self.peers[target]
        match content:
            case claims.AskClaim(claim=claim, round=number):
                self._grant(peer, source, claim, number)
            case claims.ReleaseClaim(claim=claim, is_over=is_over):
                released = grants.ClaimReleased(source, claim.model, claim.run_id, claim.term, is_over)
                for effect in peer.grantor.handle(released, peer.clock(self.real)):
                    if isinstance(effect, grants.KeepGrant):
                        peer.unsaved = effect.grants
            case (asker, event):
                if peer.claimant is asker:
                    self.tell(peer, event)

    def _grant(self, peer: Peer, source: PeerId, claim: Claim, number: int) -> None:
        asker = self.peers[source].claimant
        for effect in peer.grantor.handle(grants.ClaimAsked(source, claim), peer.clock(self.real)):
            match effect:
                case grants.KeepGrant(kept):
                    peer.kept, peer.unsaved = kept, None
                case grants.Grant():
                    self._answer(peer, source, asker, claim, claims.PeerGranted(peer.name, number))
                case grants.Deny(code, _, term, wait_us):
                    denied = claims.PeerDenied(peer.name, number, code, term, wait_us)
                    self._answer(peer, source, asker, claim, denied)

    def _answer(self, peer: Peer, source: PeerId, asker: Claimant | None, claim: Claim, event: claims.Event) -> None:
        if asker is not None and asker.claim.run_id == claim.run_id:
            self.under_way.append((peer.name, source, (asker, event)))

    def pass_time(self, micros: int) -> None:
        """Machines are woken at their deadlines, in order."""
        until = self.real + micros
        while True:
            due = min((at for peer in self.peers.values() if (at := self._due(peer)) is not None), default=until + 1)
            if due > until:
                break
            self.real = max(self.real, due)
            for peer in self.peers.values():
                self.tell(peer, claims.DeadlinePassed())
                peer.grantor.handle(grants.DeadlinePassed(), peer.clock(self.real))
        self.real = until

    def _due(self, peer: Peer) -> int | None:
        own = [peer.grantor.deadline(), peer.claimant.deadline() if peer.claimant else None]
        times = [at for at in own if at is not None]
        if not times:
            return None
        return peer.started_at + max(1, (min(times) * 1000 + peer.permille - 1) // peer.permille)

    def holders(self) -> list[Peer]:
        """Those who, by their own clocks, may act as coordinators now."""
        return [p for p in self.peers.values() if p.claimant and p.claimant.is_valid(p.clock(self.real))]

    def settle(self, micros: int) -> None:
        """Time passes with a network that delivers at once."""
        until = self.real + micros
        while self.real < until:
            while self.under_way:
                self.deliver(self.under_way.pop(0))
            self.pass_time(10)


CLOCKS = st.integers(SLOWEST_PERMILLE, FASTEST_PERMILLE)


class ClaimsMachine(RuleBasedStateMachine):
    world: World

    @initialize(permilles=st.lists(CLOCKS, min_size=1, max_size=5))
    def begin(self, permilles: list[int]) -> None:
        self.world = World(permilles)

    def _peer(self, number: int) -> Peer:
        names = sorted(self.world.peers)
        return self.world.peers[names[number % len(names)]]

    @rule(number=st.integers(0, 4))
    def claim(self, number: int) -> None:
        self.world.claim(self._peer(number).name)

    @rule(
        number=st.integers(0, 4),
        event=st.sampled_from([claims.RunServes(), claims.ClaimWithdrawn(True), claims.ClaimWithdrawn(False)]),
    )
    def say(self, number: int, event: claims.Event) -> None:
        self.world.tell(self._peer(number), event)

    @precondition(lambda self: self.world.under_way)
    @rule(pick=st.integers(0, 59), fate=st.sampled_from(["deliver", "deliver", "deliver", "double", "lose"]))
    def take_message(self, pick: int, fate: str) -> None:
        under_way = self.world.under_way
        message = under_way[pick % len(under_way)]
        if fate != "double":
            under_way.remove(message)
        if fate != "lose":
            self.world.deliver(message)

    @precondition(lambda self: self.world.under_way)
    @rule(count=st.integers(1, 12))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.world.under_way))):
            self.world.deliver(self.world.under_way.pop(0))

    @rule(micros=st.integers(1, 1500))
    def wait(self, micros: int) -> None:
        self.world.pass_time(micros)

    @rule(number=st.integers(0, 4))
    def save(self, number: int) -> None:
        peer = self._peer(number)
        peer.kept, peer.unsaved = peer.unsaved or peer.kept, None

    @rule(number=st.integers(0, 4))
    def restart(self, number: int) -> None:
        self._peer(number).restart(self.world.real)

    @rule(sides=st.lists(st.booleans(), min_size=5, max_size=5))
    def part(self, sides: list[bool]) -> None:
        """All on one side is a whole network again."""
        side = dict(zip(sorted(self.world.peers), sides, strict=False))
        pairs = combinations(side, 2)
        self.world.cut = frozenset(frozenset(pair) for pair in pairs if side[pair[0]] != side[pair[1]])

    @invariant()
    def never_two_coordinators(self) -> None:
        if hasattr(self, "world"):
            assert len(self.world.holders()) <= 1

    @invariant()
    def promises_are_kept(self) -> None:
        """Whoever holds a claim still has a quorum of live promises."""
        if not hasattr(self, "world"):
            return
        for holder in self.world.holders():
            assert holder.claimant is not None
            held = holder.claimant.claim
            leases = [p.grantor.leased_to("m", p.clock(self.world.real)) for p in self.world.peers.values()]
            to_it = sum(lease is not None and lease.run_id == held.run_id for lease in leases)
            assert to_it >= claims.quorum(len(held.peers))


TestClaims = ClaimsMachine.TestCase
TestClaims.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


# --- progress -----------------------------------------------------------------
def parted(world: World, *side: str) -> None:
    pairs = combinations(sorted(world.peers), 2)
    world.cut = frozenset(frozenset(pair) for pair in pairs if (pair[0] in side) != (pair[1] in side))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_of_peers_that_all_claim_at_once_one_gets_it(count: int) -> None:
    world = World([1000] * count)
    for name in world.peers:
        world.claim(name)
    world.settle(3000)
    assert len(world.holders()) == 1


@pytest.mark.parametrize(("count", "side"), [(3, ("p0",)), (5, ("p0", "p1")), (4, ("p0",))])
def test_the_side_with_a_majority_goes_on_and_the_other_stands_still(count: int, side: tuple[str, ...]) -> None:
    world = World([1000] * count)
    world.claim(PeerId("p0"))
    world.settle(100)
    assert [peer.name for peer in world.holders()] == ["p0"]
    parted(world, *side)
    for _ in range(30):
        for name in world.peers:
            world.claim(name)
        world.settle(200)
        assert not {peer.name for peer in world.holders()} & set(side) or world.real < 1100
    (holder,) = world.holders()
    assert holder.name not in side
    parted(world)
    for _ in range(20):
        world.claim(PeerId("p0"))
        world.settle(200)
    assert [peer.name for peer in world.holders()] == [holder.name]


def test_a_slow_clock_gives_up_before_fast_ones_promise_otherwise() -> None:
    world = World([SLOWEST_PERMILLE, FASTEST_PERMILLE, FASTEST_PERMILLE])
    world.claim(PeerId("p0"))
    world.settle(20)
    assert [peer.name for peer in world.holders()] == ["p0"]
    parted(world, "p0")
    held_by = set()
    hasty = world.peers[PeerId("p1")]
    while world.real < 3000:
        if hasty.claimant is None or not hasty.claimant.is_valid(hasty.clock(world.real)):
            hasty.claimant = None  # it does not wait between its attempts
        world.claim(hasty.name)
        world.tell(hasty, claims.PeerSilent(PeerId("p0"), 1))
        world.settle(10)
        holders = [peer.name for peer in world.holders()]
        assert len(holders) <= 1
        held_by.update(holders)
    assert held_by == {"p0", "p1"}


def test_halves_of_an_even_list_both_stand_still() -> None:
    """With a list of two that is every loss; a claim with a new list must help (``protocols/coordination.md``)."""
    world = World([1000] * 4)
    parted(world, "p0", "p1")
    for _ in range(30):
        for name in world.peers:
            world.claim(name)
        world.settle(200)
        assert world.holders() == []


def test_a_coordinator_that_comes_back_with_an_old_lease_is_refused() -> None:
    world = World([1000] * 3)
    world.claim(PeerId("p0"))
    world.settle(100)
    old = world.peers[PeerId("p0")].claimant
    assert old is not None
    world.cut = frozenset(frozenset(("p0", other)) for other in ("p1", "p2"))
    for peer in ("p1", "p2"):
        world.peers[PeerId(peer)].grantor.handle(grants.DeadlinePassed(), Micros(0))
    world.settle(2000)
    world.claim(PeerId("p1"))
    world.settle(1000)
    world.cut = frozenset()
    answer = world.peers[PeerId("p1")].grantor.handle(
        grants.ClaimAsked(PeerId("p0"), old.claim), world.peers[PeerId("p1")].clock(world.real)
    )[-1]
    assert isinstance(answer, grants.Deny)
    assert answer.term > old.claim.term
