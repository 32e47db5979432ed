"""Peers behind real NATs: who ends up relayed and who direct, what is served meanwhile, and a relay that restarts."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY_LAYERS
from tests.e2e.measure_reach import FIRST_PORT, IDLE, LabPeers, connect_pair, fetch, restart_relay, status_of
from tests.e2e.nat_lab import RELAY, RELAY_HOST, Nat, host_in, nat_lab, set_nat, why_not
from tests.e2e.peers import NodeProcess
from tests.fakes.tiny_gguf import TinyShape, tiny_llama

CONNECTED_WITHIN_S = 5.0
LOADED_MACHINE_S = 5.0
"""On top, where other tests take the processors."""
RESTARTED_WITHIN_S = 40.0

STAYS_RELAYED = {
    frozenset({Nat.SYMMETRIC}),
    frozenset({Nat.SYMMETRIC, Nat.PORT_RESTRICTED}),
}
"""Neither end knows the port that the other's router will let something in on."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPeers]:
    """The namespaces, and nodes in them."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    peers = LabPeers(tmp_path_factory.mktemp("lab"))
    with nat_lab():
        try:
            yield peers
            peers.stop_all()
        finally:
            peers.clean_up()


@pytest.fixture(scope="module")
def relay(lab: LabPeers) -> NodeProcess:
    """A public node that founded a mesh."""
    return lab.start_in(RELAY, "relay", *IDLE)


@pytest.mark.parametrize(
    ("number", "kinds"),
    list(enumerate(itertools.combinations_with_replacement(Nat, 2))),
    ids=[f"{one.value} and {other.value}" for one, other in itertools.combinations_with_replacement(Nat, 2)],
)
def test_two_nats(lab: LabPeers, relay: NodeProcess, number: int, kinds: tuple[Nat, Nat]) -> None:
    outcome = connect_pair(lab, relay, kinds, number)
    assert outcome.connected_s < CONNECTED_WITHIN_S + LOADED_MACHINE_S
    assert (outcome.upgraded_s is None) == (frozenset(kinds) in STAYS_RELAYED)


@pytest.mark.parametrize("stages", [1, 2], ids=["whole", "in stages"])
def test_a_relayed_peer_serves_a_model(lab: LabPeers, relay: NodeProcess, tmp_path: Path, stages: int) -> None:
    for home in "ab":
        set_nat(home, Nat.SYMMETRIC)
    model = tmp_path / f"tiny{stages}.gguf"
    model.write_bytes(tiny_llama(TinyShape(layers=TINY_LAYERS), seed=stages))
    join = ("--join", relay.invite, "--discovery", "none")
    asking = lab.start_in(host_in("b"), f"asking{stages}", *join, "--on-demand", "off")
    split = ("--model", str(model), "--ctx-size", "256", *(("--split", str(stages)) if stages > 1 else ()))
    serving = lab.start_in(host_in("a"), f"serving{stages}", *join, *split)
    placed = serving.wait_for("pipeline_ready")
    assert len({stage["peer_id"] for stage in placed["stages"]}) == stages
    asking.wait_for("ready", where=lambda event: model.stem in event["models"])
    body = {"model": model.stem, "prompt": [1, 5, 9], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    answers = [
        fetch(host_in(home), f"{node.api_url}/v1/completions", body=body)["choices"][0]["token_ids"]
        for home, node in (("a", serving), ("b", asking))
    ]
    assert len(answers[0]) == 8
    assert answers[0] == answers[1]
    assert status_of(asking, host_in("b"))["reach"]["paths"] == {"direct": 1, "relayed": 1}
    serving.stop()
    asking.stop()


def test_a_founder_behind_a_nat_is_joined_through_a_relay_of_strangers(lab: LabPeers, relay: NodeProcess) -> None:
    for home in "ab":
        set_nat(home, Nat.SYMMETRIC)
    named = f"/ip4/{RELAY_HOST}/tcp/{FIRST_PORT}/p2p/{relay.peer_id}"
    hidden = lab.start_in(host_in("a"), "hidden", "--relay", named, *IDLE)
    hidden.wait_for("relays_changed", where=lambda event: event["count"] == 1)
    invite = hidden.wait_for("invite", where=lambda event: event["invite"] != hidden.invite)["invite"]
    joined = lab.start_in(host_in("b"), "joined", "--join", invite, *IDLE)
    joined.wait_for("joined")
    assert [peer["peer_id"] for peer in status_of(joined, host_in("b"))["peers"]] == [hidden.peer_id]
    assert relay.find("peer_joined", where=lambda event: event["peer_id"] == hidden.peer_id) is None
    joined.stop()
    hidden.stop()


def test_the_only_relay_comes_back_and_nobody_does_anything(lab: LabPeers, relay: NodeProcess) -> None:
    assert restart_relay(lab, relay) < RESTARTED_WITHIN_S
