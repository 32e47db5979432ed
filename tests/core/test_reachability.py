"""Whether others can dial us: votes of networks, NAT kinds, whom to ask."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.reachability import (
    AskWitness,
    DeadlinePassed,
    DialBack,
    Effect,
    NatKind,
    Observed,
    OwnHostsChanged,
    Reachability,
    ReachabilityMachine,
    ReachabilityPolicy,
    VerdictChanged,
    Witness,
    WitnessAnswered,
    WitnessesChanged,
    network_of,
)

A, B, C, D = (Witness(PeerId(name), network) for name, network in (("a", "n1"), ("b", "n2"), ("c", "n3"), ("d", "n1")))
OURS, NAT = "192.168.1.2", "203.0.113.7"
HERE = f"/ip4/{NAT}/tcp/4001"
POLICY = ReachabilityPolicy(at_once=4, ask_again_us=1000, declined_again_us=100, answer_life_us=5000)


def asked(*witnesses: Witness) -> ReachabilityMachine:
    machine = ReachabilityMachine(POLICY)
    machine.handle(OwnHostsChanged(frozenset({OURS})), Micros(0))
    machine.handle(WitnessesChanged(witnesses), Micros(0))
    return machine


def answer(machine: ReachabilityMachine, witness: Witness, outcome: DialBack, at: int = 1) -> tuple[Effect, ...]:
    return machine.handle(WitnessAnswered(witness, outcome, HERE if outcome is DialBack.REACHED else ""), Micros(at))


def see(machine: ReachabilityMachine, witness: Witness, host: str, port: int, local_port: int, at: int = 1) -> None:
    machine.handle(Observed(witness, host, port, local_port), Micros(at))


def test_two_networks_that_reach_us_make_us_public() -> None:
    machine = asked(A, B)
    answer(machine, A, DialBack.REACHED)
    assert machine.verdict is Reachability.UNKNOWN
    assert VerdictChanged() in answer(machine, B, DialBack.REACHED)
    assert machine.verdict is Reachability.PUBLIC
    assert machine.confirmed_addresses == (HERE,)
    assert not machine.needs_relay


def test_two_networks_that_cannot_make_us_private_and_in_need_of_a_relay() -> None:
    machine = asked(A, B)
    answer(machine, A, DialBack.FAILED)
    assert machine.needs_relay  # in doubt already
    answer(machine, B, DialBack.FAILED)
    assert machine.verdict is Reachability.PRIVATE
    assert machine.witness_counts() == (0, 2)


@pytest.mark.parametrize("lie", [DialBack.REACHED, DialBack.FAILED])
def test_no_single_liar_decides(lie: DialBack) -> None:
    truth = DialBack.FAILED if lie is DialBack.REACHED else DialBack.REACHED
    machine = asked(A, B, C)
    answer(machine, A, lie)
    answer(machine, B, truth)
    assert machine.verdict is Reachability.UNKNOWN
    answer(machine, C, truth)
    assert machine.verdict is (Reachability.PRIVATE if truth is DialBack.FAILED else Reachability.PUBLIC)


def test_many_names_on_one_network_have_one_vote() -> None:
    machine = asked(A, D)
    answer(machine, A, DialBack.REACHED)
    answer(machine, D, DialBack.REACHED)
    assert machine.verdict is Reachability.UNKNOWN
    assert machine.confirmed_addresses == ()


def test_nobody_is_heard_who_was_not_asked() -> None:
    machine = asked(A)
    answer(machine, B, DialBack.FAILED)
    answer(machine, C, DialBack.FAILED)
    assert machine.verdict is Reachability.UNKNOWN
    assert not machine.needs_relay


def test_a_witness_is_asked_once_and_again_later() -> None:
    machine = ReachabilityMachine(POLICY)
    assert machine.handle(WitnessesChanged((A,)), Micros(0)) == (AskWitness(A),)
    assert machine.handle(WitnessesChanged((A,)), Micros(1)) == ()
    answer(machine, A, DialBack.REACHED, at=2)
    assert machine.deadline() == 1002
    assert machine.handle(WitnessesChanged(()), Micros(3)) == ()
    assert machine.handle(WitnessesChanged((A,)), Micros(4)) == ()  # it comes back, and is asked no sooner for it
    assert machine.handle(DeadlinePassed(), Micros(1002)) == (AskWitness(A),)


def test_who_declines_has_no_vote_and_is_asked_sooner() -> None:
    machine = asked(A)
    answer(machine, A, DialBack.DECLINED, at=2)
    assert machine.witness_counts() == (0, 0)
    assert machine.handle(DeadlinePassed(), Micros(102)) == (AskWitness(A),)


def test_networks_that_have_not_voted_are_asked_first() -> None:
    machine = ReachabilityMachine(ReachabilityPolicy(at_once=1))
    assert machine.handle(WitnessesChanged((A, B, D)), Micros(0)) == (AskWitness(A),)
    assert AskWitness(B) in answer(machine, A, DialBack.REACHED)


def test_the_verdict_ends_with_the_answers() -> None:
    machine = asked(A, B)
    answer(machine, A, DialBack.REACHED)
    answer(machine, B, DialBack.REACHED)
    machine.handle(WitnessesChanged(()), Micros(2))
    assert machine.deadline() == 5001
    assert machine.handle(DeadlinePassed(), Micros(5001)) == (VerdictChanged(),)
    assert machine.verdict is Reachability.UNKNOWN


def test_other_interfaces_void_what_was_said() -> None:
    machine = asked(A, B)
    answer(machine, A, DialBack.FAILED)
    answer(machine, B, DialBack.FAILED)
    see(machine, A, NAT, 4001, 4001)
    effects = machine.handle(OwnHostsChanged(frozenset({"10.0.0.9"})), Micros(3))
    assert AskWitness(A) in effects
    assert AskWitness(B) in effects
    assert machine.verdict is Reachability.UNKNOWN
    assert machine.observed_hosts == ()


def test_a_container_that_starts_voids_nothing() -> None:
    machine = asked(A, B)
    answer(machine, A, DialBack.FAILED)
    answer(machine, B, DialBack.FAILED)
    bridge = frozenset({"172.18.0.1"})
    assert machine.handle(OwnHostsChanged(frozenset({OURS}) | bridge, bridge), Micros(3)) == ()
    assert machine.handle(OwnHostsChanged(frozenset({OURS})), Micros(4)) == ()
    assert machine.verdict is Reachability.PRIVATE


def test_an_answer_about_an_address_that_is_ours_no_more_counts_for_nothing() -> None:
    machine = asked(A, B)
    assert not machine.handle(OwnHostsChanged(frozenset({"10.0.0.9"})), Micros(3))  # both are being asked
    effects = (*answer(machine, A, DialBack.REACHED, at=4), *answer(machine, B, DialBack.REACHED, at=4))
    assert machine.verdict is Reachability.UNKNOWN
    assert set(effects) == {AskWitness(A), AskWitness(B)}
    answer(machine, A, DialBack.FAILED, at=5)
    answer(machine, B, DialBack.FAILED, at=5)
    assert machine.verdict is Reachability.PRIVATE


def test_an_address_of_ours_is_no_nat() -> None:
    machine = asked(A, B)
    see(machine, A, OURS, 50001, 50001)
    see(machine, B, OURS, 50002, 50002)
    assert machine.nat is NatKind.NONE
    assert not machine.needs_relay
    assert machine.observed_hosts == ()


def test_any_translation_is_worth_a_relay() -> None:
    machine = asked(A, B)
    see(machine, A, NAT, 50001, 50001)
    assert machine.needs_relay
    assert machine.nat is NatKind.UNKNOWN
    answer(machine, A, DialBack.REACHED)
    answer(machine, B, DialBack.REACHED)
    assert machine.verdict is Reachability.PUBLIC
    assert machine.needs_relay  # a filter may know the witnesses, and nobody else


def test_ports_that_stay_make_a_cone() -> None:
    machine = asked(A, B)
    see(machine, A, NAT, 50001, 50001)
    see(machine, B, NAT, 50002, 50002)
    assert machine.nat is NatKind.CONE


def test_one_port_seen_alike_makes_a_cone_and_seen_differently_a_symmetric_nat() -> None:
    cone, symmetric = asked(A, B), asked(A, B)
    for machine, second in ((cone, 31000), (symmetric, 32000)):
        see(machine, A, NAT, 31000, 4001)
        see(machine, B, NAT, second, 4001)
    assert cone.nat is NatKind.CONE
    assert cone.mapped_port(NAT, 4001) == 31000
    assert symmetric.nat is NatKind.SYMMETRIC


def test_other_ports_from_other_ports_prove_nothing() -> None:
    machine = asked(A, B)
    see(machine, A, NAT, 31000, 50001)
    see(machine, B, NAT, 32000, 50002)
    assert machine.nat is NatKind.UNKNOWN
    assert machine.mapped_port(NAT, 4001) is None


def test_networks_of_addresses() -> None:
    assert network_of("198.51.100.7") == network_of("198.51.1.1") == "198.51.0.0/16"
    assert network_of("::ffff:198.51.100.7") == "198.51.0.0/16"
    assert network_of("2001:db8:1::1") == network_of("2001:db8:2::9") == "2001:0db8::/32"
    assert [network_of(text) for text in ("127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "example", "")] == [None] * 6


PEERS = [Witness(PeerId(f"p{number}"), f"n{number % 3}") for number in range(6)]


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = ReachabilityMachine(ReachabilityPolicy(at_once=2, witnesses=4, capacity=4, ask_again_us=50))
        self.now = Micros(0)
        self.open: set[PeerId] = set()

    def tell(self, event: object) -> None:
        for effect in self.machine.handle(event, self.now):  # type: ignore[arg-type]
            if isinstance(effect, AskWitness):
                assert effect.witness.peer not in self.open, "asked twice at once"
                self.open.add(effect.witness.peer)

    @rule(passed=st.integers(0, 400))
    def wait(self, passed: int) -> None:
        self.now = Micros(self.now + passed)
        self.tell(DeadlinePassed())

    @rule(chosen=st.sets(st.sampled_from(PEERS), max_size=6))
    def change(self, chosen: set[Witness]) -> None:
        self.tell(WitnessesChanged(tuple(sorted(chosen, key=lambda one: one.peer))))

    @rule(witness=st.sampled_from(PEERS), outcome=st.sampled_from(list(DialBack)))
    def say(self, witness: Witness, outcome: DialBack) -> None:
        self.open.discard(witness.peer)
        self.tell(WitnessAnswered(witness, outcome, HERE))

    @rule(witness=st.sampled_from(PEERS), port=st.integers(1, 3), local=st.integers(1, 3))
    def see(self, witness: Witness, port: int, local: int) -> None:
        self.tell(Observed(witness, NAT, port, local))

    @invariant()
    def holds(self) -> None:
        machine = self.machine
        reached, failed = machine.witness_counts()
        assert reached + failed <= 3
        if machine.verdict is Reachability.PUBLIC:
            assert reached >= 2
        if machine.verdict is Reachability.PRIVATE:
            assert failed >= 2
        deadline = machine.deadline()
        assert deadline is None or deadline > self.now


TestAnyOrder = AnyOrder.TestCase
