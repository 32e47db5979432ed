"""A malformed multiaddr is pointed at, character and all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmesh.core.address_text import find_address_fault
from tests.fakes.identity import fake_identity

PEER = fake_identity("peer").peer_id


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/0.0.0.0/tcp/0",
        "/ip6/::/tcp/4001",
        "/dns4/example.org/tcp/1",
        "/dns/a_b.example./tcp/1",
        f"/ip4/8.8.4.4/tcp/4001/p2p/{PEER}",
        f"/ip4/8.8.4.4/tcp/4001/p2p/{PEER}/p2p-circuit",
        f"/ip4/8.8.4.4/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
    ],
)
def test_what_can_be_used_has_no_fault(text: str) -> None:
    assert find_address_fault(text) is None


@pytest.mark.parametrize(
    ("text", "wrong", "reason"),
    [
        ("/ip4/300.1.1.1/tcp/1", "300.1.1.1", "is no IPv4 address"),
        ("/ip4/1.2.3/tcp/1", "1.2.3", "is no IPv4 address"),
        ("/ip4/::1/tcp/1", "::1", "is no IPv4 address"),
        ("/ip6/10.0.0.1/tcp/1", "10.0.0.1", "is no IPv6 address"),
        ("/dns4/a b/tcp/1", " ", "blank"),
        ("/dns4/-/tcp/1", "-", "is no host name"),
        ("/ip4/1.2.3.4/tcp/99999", "99999", "is no port"),
        ("/ip4/1.2.3.4/tcp/http", "http", "is no port"),
        ("/ip4/1.2.3.4/tcp/-1", "-1", "is no port"),
        ("/ip4/1.2.3.4/tcp", "p", "the port is missing"),
        ("/ip4/1.2.3.4/tcp/", "/", "the port is missing"),
        ("/ip4/1.2.3.4", "4", "write /tcp/"),
        ("/ip4/", "/", "the host is missing"),
        ("/ip4", "4", "the host is missing"),
        ("/nope/1/tcp/1", "nope", "is no protocol"),
        ("/tcp/4001", "tcp", "must begin with the host"),
        ("/ip4/1.2.3.4/udp/1/quic-v1", "udp", "over TCP alone"),
        ("/ip4/1.2.3.4//tcp/1", "", "a protocol is missing"),
        ("/ip4/1.2.3.4/tcp/1/ws", "ws", "only /p2p/"),
        ("/ip4/1.2.3.4/tcp/1/p2p/garbage", "garbage", "is no peer id"),
        ("/ip4/1.2.3.4/tcp/1/p2p", "p", "the peer id is missing"),
        ("127.0.0.1:80", "1", "must begin with"),
        ("/ip4/1.2.3.4/tcp/1\n", "\n", "cannot be seen"),
        ("", "", "it is empty"),
    ],
)
def test_the_characters_that_are_wrong(text: str, wrong: str, reason: str) -> None:
    fault = find_address_fault(text)
    assert fault is not None
    assert text[fault.start : fault.end] == wrong
    assert reason in fault.reason


def test_carets_stand_under_what_is_wrong() -> None:
    text = "/ip4/1.2.3.400/tcp/1"
    fault = find_address_fault(text)
    assert fault is not None
    assert fault.excerpt(text) == (text, "     ^^^^^^^^^")
    assert fault.excerpt("/ip4/\u202e") == ()


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"(/[a-z0-9.:]{0,6}){0,6}", fullmatch=True))
def test_a_fault_lies_within_the_text(text: str) -> None:
    fault = find_address_fault(text)
    if fault is not None:
        assert 0 <= fault.start <= fault.end
        assert fault.start <= len(text)
        assert fault.reason
