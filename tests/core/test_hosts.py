"""Who announces the same host, and how many of them a view takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.core.hosts import HostBound, HostPolicy, hosts_of

POLICY = HostPolicy(peers_per_host=2, holds_from=3)
HERE, THERE = hosts_of(["/ip4/203.0.114.7/tcp/1"]), hosts_of(["/ip4/8.8.8.8/tcp/1"])
NAMES = st.sampled_from([PeerId(name) for name in "abcdefgh"])
HOSTS = st.frozensets(st.sampled_from(["8.8.8.8", "9.9.9.9", "1.1.1.1"]), max_size=2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/2/p2p/x"),
        ("/ip6/2a00:1450:4001:81b::200e/tcp/1", "/ip6/2a00:1450:4001:081b:ffff::1/tcp/1"),
        ("/ip6/::ffff:8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/1"),
    ],
)
def test_addresses_of_one_host(one: str, other: str) -> None:
    assert hosts_of([one]) == hosts_of([other]) != frozenset()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.9/tcp/1"),
        ("/ip6/2a00:1450:4001:81b::1/tcp/1", "/ip6/2a00:1450:4001:81c::1/tcp/1"),
    ],
)
def test_addresses_of_two_hosts(one: str, other: str) -> None:
    assert len(hosts_of([one, other])) == 2


@pytest.mark.parametrize(
    "address",
    ["/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip6/::1/tcp/1", "/ip6/fe80::1/tcp/1",
     "/dns4/example.org/tcp/1", "/ip4/300.1.1.1/tcp/1", "/ip4", "nonsense", "", "/ip6/x/tcp/1", "/ip4//tcp"],
)  # fmt: skip
def test_what_names_no_public_host(address: str) -> None:
    assert hosts_of([address]) == frozenset()


def test_a_large_view_takes_so_many_of_one_host_and_any_number_of_others() -> None:
    bound = HostBound(POLICY)
    for name in "abc":
        assert bound.admits(PeerId(name), HERE)  # small as yet
        bound.note(PeerId(name), HERE)
    assert not bound.admits(PeerId("d"), HERE)
    assert not bound.admits(PeerId("d"), HERE | THERE)
    assert bound.admits(PeerId("d"), THERE)
    assert bound.admits(PeerId("d"), frozenset())
    bound.forget(PeerId("a"))
    bound.note(PeerId("x"), THERE)
    assert not bound.admits(PeerId("d"), HERE)
    bound.forget(PeerId("b"))
    bound.note(PeerId("y"), THERE)
    assert bound.admits(PeerId("d"), HERE)


def test_who_is_in_view_may_say_the_same_again_but_not_move_to_a_crowded_host() -> None:
    bound = HostBound(POLICY)
    for name, hosts in (("a", HERE), ("b", HERE), ("c", THERE)):
        bound.note(PeerId(name), hosts)
    assert bound.admits(PeerId("a"), HERE)
    assert not bound.admits(PeerId("c"), HERE)


@given(st.lists(st.tuples(NAMES, st.none() | HOSTS), max_size=60))
def test_counts_are_those_of_the_peers_that_are_noted(steps: list[tuple[PeerId, frozenset[str] | None]]) -> None:
    bound, noted = HostBound(POLICY), dict[PeerId, frozenset[str]]()
    for peer, hosts in steps:
        if hosts is None:
            bound.forget(peer)
            noted.pop(peer, None)
        elif bound.admits(peer, hosts):
            bound.note(peer, hosts)
            noted[peer] = hosts
        others = [held for other, held in noted.items() if other != peer]
        for host in ("8.8.8.8", "9.9.9.9"):
            is_free = len(noted) < POLICY.holds_from or sum(host in held for held in others) < POLICY.peers_per_host
            assert bound.admits(peer, frozenset([host])) is is_free
