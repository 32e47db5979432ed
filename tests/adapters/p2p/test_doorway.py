"""Connections without an identity: who gives way to whom, and for how long anyone may stay."""

import trio
from libp2p.peer.id import ID
from trio.testing import MockClock

from p2pmesh.adapters.p2p.doorway import Doorway, DoorwayLimits, Gate, is_loopback, source_of

LIMITS = DoorwayLimits(max_handshakes=6, max_handshakes_per_source=3, handshakes_per_s=1.0, burst=4, max_sources=3)
FLOOD, MEMBER, HERE = "192.0.2.1", "198.51.100.7", "127.0.0.1"


def doorway(*spared: str) -> Doorway:
    return Doorway(lambda source: source in spared or is_loopback(source), LIMITS)


async def test_a_source_that_floods_crowds_out_itself_oldest_first() -> None:
    door = doorway(FLOOD, MEMBER)
    visits = [door.enter(n, FLOOD) for n in range(6)]
    member = door.enter("member", MEMBER)
    assert member is not None
    assert not member.scope.cancel_called
    assert [visit.scope.cancel_called for visit in visits if visit] == [True] + [False] * 5
    for n in range(100, 200):
        door.enter(n, FLOOD)
    assert not member.scope.cancel_called
    assert len(door) == LIMITS.max_handshakes


async def test_a_source_that_is_not_spared_has_a_bound_of_its_own() -> None:
    door = doorway()
    visits = [door.enter(n, FLOOD) for n in range(4)]
    assert len(door) == LIMITS.max_handshakes_per_source
    assert [visit.scope.cancel_called for visit in visits if visit] == [True, False, False, False]


async def test_the_rate_of_a_source_is_bounded_and_comes_back(autojump_clock: MockClock) -> None:
    door = doorway(MEMBER)
    assert [door.enter(n, FLOOD) is not None for n in range(6)] == [True] * 4 + [False] * 2
    assert all(door.enter(("member", n), MEMBER) for n in range(50))
    assert all(door.enter(("here", n), HERE) for n in range(50))
    await trio.sleep(2.5)
    assert [door.enter(("later", n), FLOOD) is not None for n in range(3)] == [True, True, False]


async def test_the_memory_of_rates_is_bounded(autojump_clock: MockClock) -> None:
    door = doorway()
    for n in range(1000):
        assert door.enter(n, f"203.0.113.{n}") is not None
    assert len(door._rates) == LIMITS.max_sources
    assert len(door) == LIMITS.max_handshakes


async def test_a_handshake_has_a_deadline_until_it_is_done(autojump_clock: MockClock) -> None:
    door = doorway()
    slow = door.enter("slow", FLOOD)
    assert slow is not None
    with slow.scope:
        await trio.sleep_forever()
    assert slow.scope.cancelled_caught
    quick = door.enter("quick", FLOOD)
    assert quick is not None
    with quick.scope:
        door.leave("quick")
        await trio.sleep(3600)
    assert not quick.scope.cancelled_caught
    door.leave("slow")
    door.leave("slow")
    assert len(door) == 0


def test_sources_are_addresses_and_ip6_networks() -> None:
    assert source_of(("192.0.2.1", 5)) == "192.0.2.1"
    assert source_of(("::ffff:192.0.2.1", 5)) == "192.0.2.1"
    assert source_of(("2001:db8::1", 5)) == source_of(("2001:db8::ffff:2", 6)) != source_of(("2001:db8:0:1::1", 5))
    assert source_of(("fe80::1%eth0", 5)).startswith("fe80::")
    assert source_of(("::1", 5)) == "::1"
    assert source_of(None) == source_of(("not an address", 1)) == "unknown"
    assert is_loopback("127.1.2.3")
    assert is_loopback("::1")
    assert not is_loopback("192.0.2.1")


def test_sources_of_members_are_spared_while_they_are_connected() -> None:
    gate = Gate()
    peer = ID(b"peer")
    gate.admit(peer, frozenset({MEMBER}))
    assert gate.is_admitted(peer)
    assert gate.is_spared(MEMBER)
    assert not gate.is_spared(FLOOD)
    gate.forget(peer)
    assert not gate.is_spared(MEMBER)
    assert gate.is_spared(HERE)
