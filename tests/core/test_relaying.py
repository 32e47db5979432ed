"""What a relay gives: to members room, to strangers what a hello takes."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.relaying import Circuit, Place, RelayLedger, RelayLimits, RelayRefusal

A, B, C, D = (PeerId(name) for name in "abcd")
LIMITS = RelayLimits(
    reservations=2,
    circuits=3,
    circuits_per_peer=2,
    stranger_reservations=1,
    stranger_circuits=2,
    stranger_circuits_per_network=1,
)


def ledger(*places: PeerId) -> RelayLedger:
    found = RelayLedger(LIMITS)
    for peer in places:
        assert isinstance(found.reserve(peer, "n", Micros(0), is_member=True), Place)
    return found


def test_a_place_lasts_as_long_as_said_and_can_be_had_again() -> None:
    relay = ledger(A)
    end = LIMITS.reservation_s * MICROS_PER_SECOND
    assert relay.holds_place(A, Micros(end - 1))
    assert not relay.holds_place(A, Micros(end))
    relay.reserve(A, "n", Micros(end - 1), is_member=True)
    assert relay.place_count(Micros(end)) == 1


def test_members_take_the_places_of_strangers_and_not_the_other_way_round() -> None:
    relay = ledger(A)
    assert isinstance(relay.reserve(B, "n", Micros(0), is_member=False), Place)
    assert relay.reserve(C, "n", Micros(0), is_member=False) is RelayRefusal.FULL
    assert isinstance(relay.reserve(C, "n", Micros(0), is_member=True), Place)
    assert not relay.holds_place(B, Micros(0))
    assert relay.reserve(D, "n", Micros(0), is_member=True) is RelayRefusal.FULL


def test_one_network_does_not_take_all_places_of_strangers() -> None:
    relay = RelayLedger(RelayLimits(stranger_reservations=3, stranger_reservations_per_network=2))
    assert isinstance(relay.reserve(A, "n", Micros(0), is_member=False), Place)
    assert isinstance(relay.reserve(B, "n", Micros(0), is_member=False), Place)
    assert relay.reserve(C, "n", Micros(0), is_member=False) is RelayRefusal.FULL
    assert isinstance(relay.reserve(B, "n", Micros(1), is_member=False), Place)  # its own, for longer
    assert isinstance(relay.reserve(C, "m", Micros(1), is_member=False), Place)


def test_a_stranger_that_has_become_a_member_leaves_its_place_to_others() -> None:
    relay = RelayLedger(RelayLimits(stranger_reservations=1))
    relay.reserve(A, "n", Micros(0), is_member=False)
    relay.count_members(lambda peer: peer == A)
    assert isinstance(relay.reserve(B, "n", Micros(0), is_member=False), Place)
    assert relay.holds_place(A, Micros(0))


def test_nobody_is_led_to_who_keeps_no_place() -> None:
    relay = ledger(A)
    refused = relay.open_circuit(A, B, "n", Micros(0), is_of_members=True)
    assert refused is RelayRefusal.NO_RESERVATION
    relay.forget(A)
    assert relay.open_circuit(B, A, "n", Micros(0), is_of_members=True) is RelayRefusal.NO_RESERVATION


def test_a_strangers_circuit_takes_a_hello_and_no_model() -> None:
    relay = ledger(A)
    circuit = relay.open_circuit(B, A, "n", Micros(0), is_of_members=False)
    assert isinstance(circuit, Circuit)
    assert circuit.most_bytes == LIMITS.stranger_circuit_bytes
    assert circuit.ends_at == LIMITS.stranger_circuit_s * MICROS_PER_SECOND
    assert relay.open_circuit(C, A, "n", Micros(0), is_of_members=False) is RelayRefusal.FULL  # of one network
    assert isinstance(relay.open_circuit(C, A, "other", Micros(0), is_of_members=False), Circuit)
    assert relay.open_circuit(D, A, "third", Micros(0), is_of_members=False) is RelayRefusal.FULL


def test_a_circuit_grows_once_both_ends_are_members() -> None:
    relay = ledger(A)
    circuit = relay.open_circuit(B, A, "n", Micros(0), is_of_members=False)
    assert isinstance(circuit, Circuit)
    longer = relay.extend(circuit, Micros(5))
    assert longer is not None
    assert longer.most_bytes == LIMITS.circuit_bytes
    assert relay.extend(longer, Micros(6)) is None
    assert relay.circuit_count == 1
    relay.close_circuit(circuit)
    assert relay.circuit_count == 0
    assert relay.extend(circuit, Micros(7)) is None


def test_one_peer_has_only_so_many_circuits() -> None:
    relay = ledger(A, B)
    for _ in range(2):
        assert isinstance(relay.open_circuit(C, A, "n", Micros(0), is_of_members=True), Circuit)
    assert relay.open_circuit(C, B, "n", Micros(0), is_of_members=True) is RelayRefusal.FULL
    assert C in relay.users(Micros(0))
    assert D not in relay.users(Micros(0))
    assert isinstance(relay.open_circuit(D, B, "n", Micros(0), is_of_members=True), Circuit)
    assert relay.open_circuit(B, A, "n", Micros(0), is_of_members=True) is RelayRefusal.FULL  # over all


PEERS = [PeerId(f"p{number}") for number in range(5)]


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = RelayLedger(LIMITS)
        self.now = Micros(0)
        self.open: list[Circuit] = []

    @rule(passed=st.integers(0, 4_000_000_000))
    def wait(self, passed: int) -> None:
        self.now = Micros(self.now + passed)

    @rule(peer=st.sampled_from(PEERS), is_member=st.booleans())
    def reserve(self, peer: PeerId, is_member: bool) -> None:
        self.ledger.reserve(peer, "n", self.now, is_member=is_member)

    @rule(source=st.sampled_from(PEERS), to=st.sampled_from(PEERS), is_of_members=st.booleans())
    def connect(self, source: PeerId, to: PeerId, is_of_members: bool) -> None:
        could = self.ledger.holds_place(to, self.now)
        found = self.ledger.open_circuit(source, to, "n", self.now, is_of_members=is_of_members)
        assert could or found is RelayRefusal.NO_RESERVATION
        if isinstance(found, Circuit):
            self.open.append(found)

    @rule(peer=st.sampled_from(PEERS))
    def forget(self, peer: PeerId) -> None:
        self.ledger.forget(peer)

    @rule(which=st.integers(0, 9))
    def close(self, which: int) -> None:
        if which < len(self.open):
            self.ledger.close_circuit(self.open.pop(which))

    @invariant()
    def bounded(self) -> None:
        assert self.ledger.place_count(self.now) <= LIMITS.reservations
        assert self.ledger.circuit_count == len(self.open) <= LIMITS.circuits
        assert sum(not circuit.is_of_members for circuit in self.open) <= LIMITS.stranger_circuits


TestAnyOrder = AnyOrder.TestCase
