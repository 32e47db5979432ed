"""What others are told of our addresses, and in which order theirs are dialled."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.base.limits import MAX_ADDRESSES
from p2pmesh.core.addresses import InterfaceAddress, LeftOut, choose_announced, is_loopback, order_dials, why_left_out

EVERY = ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")
LO = InterfaceAddress("lo", "127.0.0.1", 8)
LO6 = InterfaceAddress("lo", "::1", 128)
LAN = InterfaceAddress("eth0", "192.168.1.20", 24)
ULA = InterfaceAddress("eth0", "fd12:3456::20", 64)
PUBLIC6 = InterfaceAddress("eth0", "2a01:4f8::20", 64)
PUBLIC = InterfaceAddress("eth1", "8.8.4.4", 24)
TAILSCALE = InterfaceAddress("tailscale0", "100.101.102.103", 32)
DOCKER = InterfaceAddress("docker0", "172.17.0.1", 16, is_bridge=True)
LINK_LOCAL = InterfaceAddress("eth0", "fe80::1", 64)


def told(*interfaces: InterfaceAddress, bound: tuple[str, ...] = EVERY) -> tuple[str, ...]:
    return choose_announced(bound, interfaces).announced


def test_every_interface_is_the_addresses_that_others_may_reach_public_ones_first() -> None:
    assert told(LO, LO6, TAILSCALE, LAN, ULA, PUBLIC6, PUBLIC, DOCKER, LINK_LOCAL) == (
        "/ip4/8.8.4.4/tcp/4001",
        "/ip6/2a01:4f8::20/tcp/4001",
        "/ip4/192.168.1.20/tcp/4001",
        "/ip6/fd12:3456::20/tcp/4001",
        "/ip4/100.101.102.103/tcp/4001",
    )


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        (LO, LeftOut.LOOPBACK),
        (LO6, LeftOut.LOOPBACK),
        (LINK_LOCAL, LeftOut.LINK_LOCAL),
        (InterfaceAddress("eth0", "169.254.7.7", 16), LeftOut.LINK_LOCAL),
        (InterfaceAddress("wlan0", "192.168.1.9", 24, is_up=False), LeftOut.DOWN),
        (DOCKER, LeftOut.INNER),
        (InterfaceAddress("br-0f9a", "172.18.0.1", 16), LeftOut.INNER),
        (InterfaceAddress("veth1234", "10.0.0.1", 24), LeftOut.INNER),
        (InterfaceAddress("virbr0", "192.168.122.1", 24), LeftOut.INNER),
        (InterfaceAddress("vEthernet (WSL)", "172.20.0.1", 20), LeftOut.INNER),
        (InterfaceAddress("mybridge", "10.9.0.1", 24, is_bridge=True), LeftOut.INNER),
        (InterfaceAddress("eth0", "2a01:4f8::99", 64, is_unsettled=True), LeftOut.UNSETTLED),
        (InterfaceAddress("eth0", "garbage", 0), LeftOut.LINK_LOCAL),
        (InterfaceAddress("ppp0", "0.0.0.0", 0), LeftOut.LINK_LOCAL),
        (InterfaceAddress("br0", "192.168.1.20", 24, is_bridge=True, has_uplink=True), None),
        (TAILSCALE, None),
        (LAN, None),
    ],
)
def test_who_is_left_out(interface: InterfaceAddress, reason: LeftOut | None) -> None:
    assert why_left_out(interface) is reason


def test_what_is_left_out_is_told_with_its_reason() -> None:
    choice = choose_announced(EVERY, (DOCKER, LAN))
    assert choice.announced == ("/ip4/192.168.1.20/tcp/4001",)
    assert [(one.address, one.interface, one.reason) for one in choice.left_out] == [
        ("/ip4/172.17.0.1/tcp/4001", "docker0", LeftOut.INNER)
    ]


@pytest.mark.parametrize(
    ("text", "leads_here"),
    [
        ("/ip4/127.0.0.1/tcp/1", True),
        ("/ip4/127.9.9.9/tcp/1/p2p/peer", True),
        ("/ip6/::1/tcp/1", True),
        ("/ip6/0:0:0:0:0:0:0:1/tcp/1", True),
        ("/ip6/::12/tcp/1", False),
        ("/ip4/12.7.0.1/tcp/1", False),
        ("/ip4/8.8.4.4/tcp/1", False),
        ("/dns4/localhost/tcp/1", False),
        ("/ip4/127.0.0.1", False),
        ("nonsense", False),
    ],
)
def test_which_addresses_lead_to_whoever_reads_them(text: str, leads_here: bool) -> None:
    assert is_loopback(text) is leads_here


def test_loopback_is_told_where_there_is_nothing_else() -> None:
    choice = choose_announced(EVERY, (LO, LO6, DOCKER))
    assert choice.announced == ("/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/4001")
    assert [one.reason for one in choice.left_out] == [LeftOut.INNER]


def test_what_the_operator_chose_is_told_whatever_it_is() -> None:
    bound = ("/ip4/127.0.0.1/tcp/5", "/ip4/172.17.0.1/tcp/5", "/dns4/a.example/tcp/5", "/ip6/fe80::1/tcp/5")
    assert set(told(LAN, DOCKER, bound=bound)) == set(bound)


def test_a_family_that_is_not_listened_on_is_not_told() -> None:
    assert told(LAN, ULA, bound=("/ip6/::/tcp/7",)) == ("/ip6/fd12:3456::20/tcp/7",)


def test_no_more_is_told_than_an_announcement_holds() -> None:
    many = [InterfaceAddress("eth0", f"10.0.{n // 200}.{n % 200 + 1}", 8) for n in range(MAX_ADDRESSES + 9)]
    choice = choose_announced(EVERY, many)
    assert len(choice.announced) == MAX_ADDRESSES
    assert [one.reason for one in choice.left_out] == [LeftOut.TOO_MANY] * 9


# --- dialling


def test_dials_go_to_our_own_networks_first_then_to_public_ones() -> None:
    addresses = (
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/172.17.0.5/tcp/1",
        "/ip4/10.77.0.1/tcp/1",
        "/dns4/a.example/tcp/1",
        "/ip4/9.9.9.9/tcp/1",
        "/ip4/192.168.1.30/tcp/1",
    )
    assert order_dials(addresses, (LO, LAN, DOCKER)) == (
        "/ip4/192.168.1.30/tcp/1",
        "/dns4/a.example/tcp/1",
        "/ip4/9.9.9.9/tcp/1",
        "/ip4/10.77.0.1/tcp/1",
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/172.17.0.5/tcp/1",
    )


def test_an_address_of_a_family_that_we_lack_comes_last() -> None:
    addresses = ("/ip6/2a01:4f8::1/tcp/1", "/ip4/9.9.9.9/tcp/1")
    assert order_dials(addresses, (LO, LO6, LINK_LOCAL, LAN))[0] == "/ip4/9.9.9.9/tcp/1"
    assert order_dials(addresses, (LO, ULA, LAN))[0] == "/ip4/9.9.9.9/tcp/1"
    assert order_dials(addresses, (LO, PUBLIC6, LAN)) == addresses


def test_where_we_listen_ourselves_nobody_else_is() -> None:
    own = ("/ip4/172.17.0.1/tcp/4001", "/ip4/192.168.1.20/tcp/4001")
    theirs = ("/ip4/172.17.0.1/tcp/4001/p2p/X", "/ip4/172.17.0.1/tcp/4002", "/ip4/192.168.1.30/tcp/4001")
    assert order_dials(theirs, (LAN, DOCKER), own) == ("/ip4/192.168.1.30/tcp/4001", "/ip4/172.17.0.1/tcp/4002")


def test_what_cannot_be_read_is_dialled_as_a_name_is() -> None:
    assert order_dials(("garbage", "/ip4/9.9.9.9/tcp/1"), ()) == ("garbage", "/ip4/9.9.9.9/tcp/1")


HOSTS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
INTERFACES = st.builds(
    InterfaceAddress,
    st.sampled_from(["lo", "eth0", "docker0", "br-1", "wg0"]),
    HOSTS.map(str),
    st.integers(0, 32),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@settings(deadline=None)
@given(st.lists(INTERFACES, max_size=50))
def test_each_address_is_told_or_left_out_once(interfaces: list[InterfaceAddress]) -> None:
    choice = choose_announced(EVERY, interfaces)
    assert len(choice.announced) <= MAX_ADDRESSES
    assert len(set(choice.announced)) == len(choice.announced)
    assert choice == choose_announced(EVERY, reversed(interfaces))
    assert not any("/0.0.0.0/" in text or "/::/" in text for text in choice.announced)


@settings(deadline=None)
@given(st.lists(HOSTS, max_size=20), st.lists(INTERFACES, max_size=10))
def test_ordering_loses_no_address(hosts: list[object], interfaces: list[InterfaceAddress]) -> None:
    addresses = [f"/ip{host.version}/{host}/tcp/1" for host in hosts]  # type: ignore[attr-defined]
    assert sorted(order_dials(addresses, interfaces)) == sorted(addresses)
