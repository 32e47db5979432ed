"""Links: estimates that queues do not poison, probes that stay within their budget, a matrix nobody can talk up."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import MAX_LINK_BYTES_PER_S, MAX_LINK_RTT_US
from p2pmesh.base.quantities import MIB, MICROS_PER_SECOND, Micros
from p2pmesh.core.links import (
    NO_LINKS,
    PROBE_BYTES,
    UNKNOWN_ONE_WAY_US,
    ConnectionLost,
    CrowdChanged,
    DeadlinePassed,
    LinkMatrix,
    LinkPolicy,
    LinksMachine,
    PairLink,
    ProbeAllowance,
    ProbeFailed,
    ProbeGate,
    ProbeThroughput,
    RoundTripMeasured,
    TransferTimed,
    combine_vectors,
)

A, B, C, D = (PeerId(name) for name in "ABCD")
PEERS = st.sampled_from((A, B, C, D))
SECOND = MICROS_PER_SECOND
LINKS = st.builds(PairLink, st.integers(0, 10**6), st.integers(0, 10**9), st.booleans())
VECTORS = st.dictionaries(PEERS, st.dictionaries(PEERS, LINKS).map(lambda links: tuple(links.items())))


def at(seconds: float) -> Micros:
    return Micros(int(seconds * SECOND))


def machine(*round_trips: int, is_relayed: bool = False) -> LinksMachine:
    made = LinksMachine(seed=1)
    for second, rtt_us in enumerate(round_trips):
        made.handle(RoundTripMeasured(A, rtt_us, is_relayed), at(second))
    return made


def test_nothing_measured_is_unknown() -> None:
    assert machine().estimate(A, at(0)) is None
    assert machine().deadline() is None


def test_queues_of_half_of_the_samples_do_not_reach_the_estimate() -> None:
    estimate = machine(*([10_000, 900_000] * 8)).estimate(A, at(20))
    assert estimate is not None
    assert estimate.rtt_us == 10_000
    assert estimate.jitter_us == 890_000


def test_a_link_that_became_slower_is_believed_after_a_window() -> None:
    estimate = machine(*([1_000] * 16 + [5_000] * 16)).estimate(A, at(40))
    assert estimate is not None
    assert (estimate.rtt_us, estimate.jitter_us) == (5_000, 0)


def test_a_change_of_the_path_drops_what_was_measured_and_probes_anew() -> None:
    made = machine(80_000, 80_000, is_relayed=True)
    made.handle(TransferTimed(A, MIB, SECOND), at(2))
    later = made.deadline()
    made.handle(RoundTripMeasured(A, 4_000, False), at(3))
    estimate = made.estimate(A, at(3))
    assert estimate is not None
    assert (estimate.rtt_us, estimate.is_relayed, estimate.throughput_bytes_per_s) == (4_000, False, 0)
    sooner = made.deadline()
    assert later is not None
    assert sooner is not None
    assert sooner < later


def test_one_large_transfer_outweighs_small_ones_but_not_for_ever() -> None:
    made = machine(1_000)
    for _ in range(3):
        made.handle(TransferTimed(A, PROBE_BYTES, SECOND), at(1))
    made.handle(TransferTimed(A, 100 * MIB, SECOND), at(2))
    fast = made.estimate(A, at(3))
    assert fast is not None
    assert fast.throughput_bytes_per_s == 100 * MIB
    made.handle(TransferTimed(A, PROBE_BYTES, SECOND), at(1_900))
    slow = made.estimate(A, at(1_900))
    assert slow is not None
    assert slow.throughput_bytes_per_s == PROBE_BYTES


def test_the_last_transfer_counts_however_old_it_is() -> None:
    made = machine(1_000)
    made.handle(TransferTimed(A, MIB, SECOND), at(1))
    estimate = made.estimate(A, at(100_000))
    assert estimate is not None
    assert estimate.throughput_bytes_per_s == MIB
    assert estimate.measured_at == at(1)


def test_transfers_of_no_bytes_no_time_or_an_unknown_peer_change_nothing() -> None:
    made = machine(1_000)
    before = made.estimate(A, at(1))
    for event in (TransferTimed(A, 0, 5), TransferTimed(A, 5, 0), TransferTimed(B, 5, 5), ProbeFailed(B)):
        assert made.handle(event, at(1)) == ()
    assert made.estimate(A, at(1)) == before
    assert made.estimate(B, at(1)) is None


def test_a_lost_peer_is_forgotten_and_a_full_table_measures_no_more() -> None:
    made = LinksMachine(1, LinkPolicy(capacity=2))
    for peer in (A, B, C):
        made.handle(RoundTripMeasured(peer, 5, False), at(0))
    assert made.peer_count == 2
    made.handle(ConnectionLost(A), at(1))
    made.handle(RoundTripMeasured(C, 5, False), at(1))
    assert [peer for peer, _ in made.estimates(at(1))] == [B, C]


def test_the_most_useful_links_come_first() -> None:
    made = LinksMachine(1)
    for peer, rtt_us, is_relayed in ((A, 10, True), (B, 900, False), (C, 20, False), (D, 20, False)):
        made.handle(RoundTripMeasured(peer, rtt_us, is_relayed), at(0))
    assert [peer for peer, _ in made.estimates(at(0))] == [C, D, B, A]


def test_a_busy_node_probes_nobody_and_asks_again_later() -> None:
    made = machine(1_000)
    due = made.deadline()
    assert due is not None
    assert made.handle(DeadlinePassed(is_busy=True), due) == ()
    again = made.deadline()
    assert again is not None
    assert due < again <= due + 10 * SECOND
    assert made.handle(DeadlinePassed(is_busy=False), again) == (ProbeThroughput(A),)


def probes(made: LinksMachine, until: float) -> list[tuple[int, PeerId]]:
    """Answers every probe; when each was sent, and to whom."""
    sent: list[tuple[int, PeerId]] = []
    while (due := made.deadline()) is not None and due <= at(until):
        for effect in made.handle(DeadlinePassed(is_busy=False), due):
            sent.append((due, effect.peer))
            made.handle(TransferTimed(effect.peer, PROBE_BYTES, SECOND), due)
    return sent


def test_a_small_overlay_is_probed_soon_and_each_peer_again_in_ten_minutes() -> None:
    made = LinksMachine(1)
    for peer in (A, B, C):
        made.handle(RoundTripMeasured(peer, 5, False), at(0))
    sent = probes(made, 1_000)
    assert {peer for when, peer in sent if when < at(10)} == {A, B, C}
    for peer in (A, B, C):
        first, second = [when for when, other in sent if other == peer][:2]
        assert 400 * SECOND < second - first < 800 * SECOND


def test_probes_of_a_large_overlay_stay_within_two_kib_a_second() -> None:
    made = LinksMachine(3)
    for number in range(256):
        made.handle(RoundTripMeasured(PeerId(f"peer-{number}"), 5, False), at(0))
    sent = probes(made, 36_000)
    burst = LinkPolicy().probe_burst
    assert (len(sent) - burst) * PROBE_BYTES <= 36_000 * 2048 + PROBE_BYTES
    assert len({peer for _, peer in sent}) > 200  # nobody is left out for others' second turn


def test_probes_in_a_crowd_cost_less_than_a_hundred_bytes_a_second() -> None:
    made = LinksMachine(3)
    for number in range(12):
        made.handle(RoundTripMeasured(PeerId(f"peer-{number}"), 5, False), at(0))
    made.handle(CrowdChanged(is_large=True), at(0))
    sent = probes(made, 36_000)
    assert 0 < (len(sent) - 1) * PROBE_BYTES <= 36_000 * 100
    made.handle(CrowdChanged(is_large=False), at(36_000))
    assert len(probes(made, 40_000)) * PROBE_BYTES > 4_000 * 1024


def test_a_crowd_that_comes_and_goes_buys_no_probes() -> None:
    made = LinksMachine(3)
    for number in range(64):
        made.handle(RoundTripMeasured(PeerId(f"peer-{number}"), 5, False), at(0))
    count = 0
    for second in range(1_000):
        made.handle(CrowdChanged(is_large=second % 2 == 0), at(second))
        count += len(made.handle(DeadlinePassed(is_busy=False), at(second)))
    assert count <= LinkPolicy().probe_burst + 1_000 * SECOND // LinkPolicy().probe_gap_us


def test_the_gate_lets_a_burst_in_and_then_one_per_gap() -> None:
    gate = ProbeGate(ProbeAllowance(gap_us=60 * SECOND, burst=3, per_peer_us=0))
    assert [gate.admit_probe(A, at(0), is_busy=False) for _ in range(5)] == [True, True, True, False, False]
    assert not gate.admit_probe(A, at(59), is_busy=False)
    assert gate.admit_probe(A, at(60), is_busy=False)
    assert not gate.admit_probe(A, at(61), is_busy=False)


def test_the_gate_refuses_a_peer_that_comes_back_at_once_and_everybody_while_busy() -> None:
    gate = ProbeGate()
    assert not gate.admit_probe(A, at(0), is_busy=True)
    assert gate.admit_probe(A, at(0), is_busy=False)
    assert not gate.admit_probe(A, at(30), is_busy=False)
    assert gate.admit_probe(B, at(30), is_busy=False)
    assert gate.admit_probe(A, at(60), is_busy=False)


@given(st.lists(st.tuples(PEERS, st.integers(0, 10**9), st.booleans()), max_size=60))
def test_the_gate_never_gives_more_than_its_rate(asked: list[tuple[PeerId, int, bool]]) -> None:
    gate = ProbeGate(ProbeAllowance(gap_us=1000, burst=4, per_peer_us=10, capacity=2))
    now, given_at = 0, []
    for peer, wait_us, is_busy in asked:
        now += wait_us % 5000
        if gate.admit_probe(peer, Micros(now), is_busy=is_busy):
            given_at.append(now)
    for start in range(len(given_at)):
        for end in range(start, len(given_at)):
            assert end - start + 1 <= 4 + (given_at[end] - given_at[start]) // 1000


# --- the matrix -----------------------------------------------------------------
def test_the_worse_of_two_ends_counts_and_our_own_measurement_alone() -> None:
    announced = {
        A: ((B, PairLink(1_000, 500, False)), (D, PairLink(1, 10**9, False))),
        B: ((A, PairLink(7_000, 0, True)),),
    }
    matrix = combine_vectors(D, ((A, PairLink(30_000, 5, False)),), announced)
    assert matrix.between(A, B) == matrix.between(B, A) == PairLink(7_000, 500, True)
    assert matrix.between(A, D) == PairLink(30_000, 5, False)
    assert matrix.between(C, D) is None


def test_what_nobody_measured_has_a_price_and_a_ring_is_its_hops() -> None:
    matrix = LinkMatrix({(B, A): PairLink(2_000, 0, False), (B, C): PairLink(4_001, 0, False)})
    assert matrix.ring_us((A,)) == 0
    assert matrix.knows_ring((A,))
    assert matrix.knows_ring((A, B))
    assert not matrix.knows_ring((A, B, C))
    assert matrix.ring_us((A, B)) == 2_000
    assert matrix.ring_us((A, B, C)) == 1_000 + 2_000 + UNKNOWN_ONE_WAY_US
    assert NO_LINKS.ring_us((A, B)) == 2 * UNKNOWN_ONE_WAY_US


@given(st.dictionaries(PEERS, LINKS), VECTORS, st.randoms(use_true_random=False))
def test_a_matrix_is_symmetric_and_needs_no_order(own: dict, announced: dict, random) -> None:  # type: ignore[no-untyped-def, type-arg]
    matrix = combine_vectors(A, own.items(), announced)
    turned = list(announced.items())
    random.shuffle(turned)
    again = combine_vectors(A, reversed(own.items()), dict(turned))
    for one in (A, B, C, D):
        for other in (A, B, C, D):
            assert matrix.between(one, other) == matrix.between(other, one) == again.between(one, other)


@given(VECTORS)
def test_no_peer_makes_its_links_look_better_than_the_other_end_found_them(announced: dict) -> None:  # type: ignore[type-arg]
    honest = combine_vectors(D, (), {peer: vector for peer, vector in announced.items() if peer != A})
    lied = combine_vectors(D, (), announced)
    for peer in (B, C):
        before, after = honest.between(A, peer), lied.between(A, peer)
        if before is not None and peer in announced:
            assert after is not None
            assert after.rtt_us >= before.rtt_us
            assert after.is_relayed >= before.is_relayed


# --- the machine, by rules --------------------------------------------------------
class Links(RuleBasedStateMachine):
    """Any order of events: bounded, integer, probes only of peers that are there, never while busy."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = LinkPolicy(capacity=3)
        self.machine = LinksMachine(7, self.policy)
        self.now = Micros(0)
        self.paths: dict[PeerId, bool] = {}
        self.spent = 0

    @rule(peer=PEERS, rtt_us=st.integers(-5, 2**40), is_relayed=st.booleans())
    def round_trip(self, peer: PeerId, rtt_us: int, is_relayed: bool) -> None:
        self.machine.handle(RoundTripMeasured(peer, rtt_us, is_relayed), self.now)
        if self.machine.estimate(peer, self.now) is not None:
            self.paths[peer] = is_relayed

    @rule(peer=PEERS, size=st.integers(-1, 2**50), elapsed_us=st.integers(-1, 2**40))
    def transfer(self, peer: PeerId, size: int, elapsed_us: int) -> None:
        self.machine.handle(TransferTimed(peer, size, elapsed_us), self.now)

    @rule(peer=PEERS)
    def lose(self, peer: PeerId) -> None:
        self.machine.handle(ConnectionLost(peer), self.now)
        self.paths.pop(peer, None)

    @rule(is_large=st.booleans())
    def crowd(self, is_large: bool) -> None:
        self.machine.handle(CrowdChanged(is_large), self.now)

    @rule(wait_us=st.integers(0, 10**9), is_busy=st.booleans())
    def wait(self, wait_us: int, is_busy: bool) -> None:
        self.now = Micros(self.now + wait_us)
        effects = self.machine.handle(DeadlinePassed(is_busy), self.now)
        assert not (is_busy and effects)
        for effect in effects:
            assert effect.peer in self.paths
        self.spent += len(effects)
        assert self.spent <= self.policy.probe_burst + self.now // self.policy.probe_gap_us

    @invariant()
    def holds(self) -> None:
        assert self.machine.peer_count <= self.policy.capacity
        estimates = dict(self.machine.estimates(self.now))
        assert {peer: estimate.is_relayed for peer, estimate in estimates.items()} == self.paths
        for estimate in estimates.values():
            assert 0 <= estimate.rtt_us <= MAX_LINK_RTT_US
            assert 0 <= estimate.jitter_us <= MAX_LINK_RTT_US
            assert 0 <= estimate.throughput_bytes_per_s <= MAX_LINK_BYTES_PER_S
            assert estimate.measured_at <= self.now


TestLinks = Links.TestCase
