"""``--relay``, ``--relay-service`` and ``--relay-limit``."""

import pytest

from p2pmesh.app.relay_options import read_reach
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.quantities import GIB
from p2pmesh.core.relaying import ReachSettings, RelayService
from tests.fakes.identity import fake_identity

RELAY = f"/ip4/203.0.113.7/tcp/4001/p2p/{fake_identity('relay').peer_id}"


def test_nothing_said_is_the_default() -> None:
    assert read_reach([], "auto", []) == ReachSettings()


def test_what_is_said_counts() -> None:
    settings = read_reach([RELAY], "on", ["bytes=8GiB", "circuits=4", "stranger-seconds=30"])
    assert settings.relays == (RELAY,)
    assert settings.service is RelayService.ON
    assert (settings.limits.circuit_bytes, settings.limits.circuits, settings.limits.stranger_circuit_s) == (
        8 * GIB,
        4,
        30,
    )


@pytest.mark.parametrize(
    "relay", ["", "nonsense", "/ip4/203.0.113.7/tcp/4001", RELAY.replace("tcp", "udp"), f"{RELAY}/p2p-circuit"]
)
def test_a_relay_needs_an_address_and_a_peer_id(relay: str) -> None:
    with pytest.raises(ConfigError) as failure:
        read_reach([relay], "auto", [])
    assert failure.value.code == ErrorCode.ADDRESS_INVALID
    assert "--relay" in failure.value.message


@pytest.mark.parametrize(
    "limit", ["", "bytes", "bytes=", "bytes=much", "circuits=0", "circuits=-1", "speed=4", "circuits=2.5"]
)
def test_a_limit_that_is_none(limit: str) -> None:
    with pytest.raises(ConfigError) as failure:
        read_reach([], "auto", [limit])
    assert failure.value.code == ErrorCode.CONFIG_INVALID
    assert "--relay-limit" in failure.value.message


def test_no_more_relays_than_are_kept_track_of() -> None:
    with pytest.raises(ConfigError):
        read_reach([RELAY] * 9, "auto", [])
