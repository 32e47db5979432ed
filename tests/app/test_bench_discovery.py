"""What ``bench discovery`` lists as dead, and how it tells what it measured."""

import socket
from contextlib import ExitStack

import pytest

from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.app.bench_discovery import (
    DiscoveryRound,
    _dead_address,
    _dead_content,
    _report,
    describe_discovery,
)
from p2pmesh.app.bench_options import BenchDiscoveryOptions
from p2pmesh.base.errors import ConfigError
from p2pmesh.wire.invite import decode_invite


def test_a_third_of_the_dead_refuse_and_the_others_say_nothing() -> None:
    with ExitStack() as sockets:
        addresses = [_dead_address(number, sockets) for number in range(6)]
        refused = 0
        for address in addresses:
            with socket.socket() as probe:
                probe.settimeout(5)
                refused += bool(probe.connect_ex(("127.0.0.1", int(address.rpartition("/")[2]))))
        assert refused == 2


def test_a_dead_pool_is_listed_as_a_good_one_would_be() -> None:
    content = _dead_content("/ip4/127.0.0.1/tcp/1")
    invite = decode_invite(content.invite_token, Ed25519Verifier().is_signature_of)
    assert invite.requirements.is_public
    assert (content.mesh_id, invite.addresses) == (invite.mesh_id, ("/ip4/127.0.0.1/tcp/1",))


@pytest.mark.parametrize(("worst_s", "verdict"), [(9.0, "met"), (11.0, "MISSED")])
def test_the_worst_round_decides(worst_s: float, verdict: str) -> None:
    rounds = [DiscoveryRound(1.0, 2.0, joined_s, 900, 5) for joined_s in (3.0, worst_s, 4.0)]
    report = _report(BenchDiscoveryOptions(), rounds)
    assert (report["median_joined_s"], report["is_met"]) == (4.0, verdict == "met")
    assert describe_discovery(report).endswith(f"the bar of 10 s is {verdict}")


@pytest.mark.parametrize("given", [{"pools": 0}, {"dead": 20}, {"rounds": 0}])
def test_what_cannot_be_measured_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BenchDiscoveryOptions(**given)
