"""What is dialled, and what is announced."""

import socket

import pytest
from multiaddr import Multiaddr

from p2pmesh.adapters.p2p.addresses import dialable, every_interface, parse_tcp_address
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_ADDRESS_BYTES, MAX_ADDRESSES
from tests.fakes.identity import fake_identity

PEER = fake_identity("peer").peer_id
OTHER = fake_identity("other").peer_id


def test_parts_of_an_address() -> None:
    address = parse_tcp_address(f"/ip6/::1/tcp/4001/p2p/{PEER}")
    assert (address.protocol, address.host, address.port, address.peer) == ("ip6", "::1", 4001, PEER)
    assert parse_tcp_address("/dns4/example.org/tcp/1").peer is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "127.0.0.1:4001",
        "/ip4/127.0.0.1",
        "/ip4/127.0.0.1/tcp",
        "/ip4/127.0.0.1/tcp/65536",
        "/ip4/127.0.0.1/tcp/-1",
        "/ip4/1.2.3/tcp/1",
        "/ip4/127.0.0.1/udp/1/quic-v1",
        "/ip4/127.0.0.1/tcp/1/ws",
        "/ip4/127.0.0.1/tcp/1/p2p/garbage",
        f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit",
        "/ip4/127.0.0.1/tcp/1\n",
        "\x00",
        "/unix/tmp/socket",
        "/dns4/" + "a" * MAX_ADDRESS_BYTES + "/tcp/1",
    ],
)
def test_what_cannot_be_carried_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse_tcp_address(text)
    assert failure.value.code == ErrorCode.ADDRESS_INVALID
    assert "\n" not in failure.value.message
    assert len(failure.value.message) < 300 + MAX_ADDRESS_BYTES


def test_addresses_of_another_peer_and_repetitions_are_left_out() -> None:
    texts = (
        "/ip4/1.1.1.1/tcp/1",
        f"/ip4/1.1.1.1/tcp/1/p2p/{PEER}",
        f"/ip4/2.2.2.2/tcp/2/p2p/{OTHER}",
        "garbage",
        "/ip4/3.3.3.3/tcp/0",
    )
    assert dialable(PEER, texts) == (Multiaddr("/ip4/1.1.1.1/tcp/1"),)


def test_nothing_usable_says_why() -> None:
    with pytest.raises(ConfigError, match="garbage"):
        dialable(PEER, ("garbage",))
    assert dialable(PEER, ()) == ()
    assert dialable(PEER, (f"/ip4/2.2.2.2/tcp/2/p2p/{OTHER}",)) == ()


def test_a_peer_with_endless_addresses_has_only_so_many() -> None:
    texts = tuple(f"/ip4/10.0.{n // 250}.{n % 250}/tcp/1" for n in range(MAX_ADDRESSES * 3))
    assert len(dialable(PEER, texts)) == MAX_ADDRESSES


def test_every_interface_is_one_port_in_each_address_family_there_is() -> None:
    addresses = [parse_tcp_address(text) for text in every_interface()]
    assert {address.host for address in addresses} <= {"0.0.0.0", "::"}
    assert len(addresses) >= 1
    assert len({address.port for address in addresses}) == 1
    assert addresses[0].port > 0


def test_a_port_is_taken_again_unless_another_has_it() -> None:
    port = parse_tcp_address(every_interface()[0]).port
    assert {parse_tcp_address(text).port for text in every_interface(port)} == {port}
    with socket.create_server(("0.0.0.0", 0)) as other:
        taken = other.getsockname()[1]
        assert taken not in {parse_tcp_address(text).port for text in every_interface(taken)}
