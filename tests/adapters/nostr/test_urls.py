"""Relays as they are written."""

import pytest

from p2pmesh.adapters.nostr.urls import checked_relays, is_of_own_network
from p2pmesh.base.errors import ConfigError, ErrorCode


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("wss://relay.example.org", "wss://relay.example.org"),
        ("WSS://Relay.Example.org:443/", "wss://relay.example.org"),
        ("ws://127.0.0.1:7777", "ws://127.0.0.1:7777"),
        ("ws://localhost:80/nostr/", "ws://localhost/nostr"),
        ("wss://[2001:db8::1]:8443/a/b", "wss://[2001:db8::1]:8443/a/b"),
    ],
)
def test_a_relay_is_taken_in_one_form(written: str, url: str) -> None:
    assert checked_relays([written, url]) == (url,)


@pytest.mark.parametrize(
    "written",
    [
        "", "relay.example.org", "https://relay.example.org", "wss://", "wss:///path", "wss://host:0", "wss://host:99999",
        "wss://host:port", "wss://user:secret@host", "wss://host/?a=b", "wss://host/#a", "wss://ho st", "wss://hö.st",
        "wss://host\n", "wss://" + "h" * 300, "wss://[::1", "wss://host..example", "wss://" + "h" * 64 + ".example",
    ],
)  # fmt: skip
def test_what_is_no_relay_is_told_in_one_line(written: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked_relays([written], "--relay")
    assert error.value.code is ErrorCode.ADDRESS_INVALID
    assert error.value.message.startswith("--relay")
    assert "\n" not in error.value.message
    assert "wss://relay.example.org" in error.value.message


def test_at_most_16_relays_are_used() -> None:
    with pytest.raises(ConfigError, match="at most 16"):
        checked_relays(f"wss://relay-{number}.example" for number in range(17))


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("ws://127.0.0.1:7777", True), ("ws://localhost", True), ("ws://192.168.1.5", True), ("ws://[fd00::1]:1", True),
        ("wss://1.1.1.1", False), ("wss://relay.example.org", False), ("wss://localhost.example.org", False),
    ],
)  # fmt: skip
def test_relays_of_ones_own_network_are_known_by_their_address(url: str, is_own: bool) -> None:
    assert is_of_own_network(url) is is_own
