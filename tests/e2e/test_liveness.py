"""Who dies, leaves or is merely slow, among real processes on loopback; the bounds are those of the protocol."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TINY
from tests.e2e.peers import NodeProcess, Peers, wait_until

KILLED_BOUND_S = 20.0
LEFT_BOUND_S = 2.0
STOPPED_S = 4.0
SEEN_S = 60.0
HEALTH_EVENTS = ("peer_suspected", "peer_failed", "peer_left", "not_routable")


def models(node: NodeProcess) -> list[str]:
    """What a client of this node may ask for."""
    with node.client() as client:
        return [entry["id"] for entry in client.get("/v1/models").json()["data"]]


def shown(node: NodeProcess, peer: NodeProcess) -> dict[str, Any] | None:
    """What a node's status says of a peer that counts."""
    return next((entry for entry in node.status()["peers"] if entry["peer_id"] == peer.peer_id), None)


def overlay_of(peers: Peers, model: Path) -> tuple[list[NodeProcess], NodeProcess]:
    """Four nodes that only route, and one that serves a model; all of them see it."""
    hub = peers.found("hub", "--max-memory", "0")
    others = [hub, *(peers.join(f"router-{n}", hub.invite, "--max-memory", "0") for n in range(3))]
    server = peers.join("server", hub.invite, "--model", str(model))
    for node in others:
        node.wait_for("ready")
        assert TINY in models(node)
    return others, server


@pytest.fixture
def overlay(peers: Peers, tiny_model: Path) -> tuple[list[NodeProcess], NodeProcess]:
    return overlay_of(peers, tiny_model)


def test_a_killed_peer_is_gone_from_every_list_within_the_bound(
    overlay: tuple[list[NodeProcess], NodeProcess],
) -> None:
    others, server = overlay
    marks = [node.mark() for node in others]
    killed_at = time.monotonic()
    server.kill()
    for node, mark in zip(others, marks, strict=True):
        left_s = max(0.1, KILLED_BOUND_S - (time.monotonic() - killed_at))
        failed = node.wait_for("peer_failed", after=mark, timeout_s=left_s)
        assert (failed["peer_id"], failed["name"]) == (server.peer_id, "server")
        assert models(node) == []
        assert shown(node, server) is None
        assert [gone["health"] for gone in node.status()["gone_peers"]] == ["failed"]
    for node, mark in zip(others, marks, strict=True):
        others_blamed = [e for e in node.events[mark:] if e["event"] in HEALTH_EVENTS and "peer_id" in e]
        assert {e["peer_id"] for e in others_blamed} == {server.peer_id}


def test_a_killed_newcomer_is_given_up_by_all(peers: Peers) -> None:
    hub = peers.found("hub", "--max-memory", "0")
    others = [hub, *(peers.join(f"router-{n}", hub.invite, "--max-memory", "0") for n in range(3))]
    newcomer = peers.join("newcomer", hub.invite, "--max-memory", "0")
    for node in others:  # heard of is enough: those that have not met it depend on reports
        assert wait_until(lambda node=node: shown(node, newcomer) is not None, SEEN_S)  # type: ignore[misc]
    killed_at = time.monotonic()
    newcomer.kill()
    for node in others:
        left_s = max(0.1, KILLED_BOUND_S - (time.monotonic() - killed_at))
        assert node.wait_for("peer_failed", timeout_s=left_s)["peer_id"] == newcomer.peer_id


def test_a_peer_that_is_told_to_stop_is_gone_at_once(overlay: tuple[list[NodeProcess], NodeProcess]) -> None:
    others, server = overlay
    marks = [node.mark() for node in others]
    told_at = time.monotonic()
    server.send_signal(signal.SIGTERM)
    for node, mark in zip(others, marks, strict=True):
        left_s = max(0.1, LEFT_BOUND_S - (time.monotonic() - told_at))
        node.wait_for("peer_left", after=mark, timeout_s=left_s)
        assert models(node) == []
    assert server.wait_ended() == 0
    for node, mark in zip(others, marks, strict=True):
        assert node.find("peer_suspected", after=mark) is None
        assert [gone["health"] for gone in node.status()["gone_peers"]] == ["left"]


def test_a_peer_that_stands_still_for_some_seconds_is_never_given_up(
    overlay: tuple[list[NodeProcess], NodeProcess],
) -> None:
    others, server = overlay
    marks = [node.mark() for node in others]
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        assert not wait_until(lambda: any(TINY not in models(node) for node in others), STOPPED_S)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    # It has been asked since, and nothing was held against it.
    for node in others:
        assert wait_until(lambda node=node: (shown(node, server) or {}).get("last_heard_s", 99) <= 5, SEEN_S)  # type: ignore[misc]
    for node, mark in zip(others, marks, strict=True):
        assert node.find("peer_failed", after=mark) is None
        assert node.find("not_routable", after=mark) is None
        assert TINY in models(node)
        assert (shown(node, server) or {})["health"] == "alive"
