"""Public pools between real nodes, over a real relay in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY
from tests.e2e.peers import Peers, tokens_of

TAKEN_OVER_S = 150.0
"""The membership knows that a peer is dead after some 20 s, and a watcher has up to 43 s before it looks again."""


@dataclass
class Relay:
    """A relay of nostr-sdk that can be killed, and comes back at the same port, knowing nothing."""

    process: "subprocess.Popen[str] | None" = None
    url: str = ""

    def start(self) -> None:
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "p2pmesh.adapters.nostr.local_relay", port]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("ws://127.0.0.1:")

    def kill(self) -> None:
        assert self.process is not None
        with self.process:
            self.process.kill()


@contextmanager
def running_relay() -> Iterator[Relay]:
    relay = Relay()
    relay.start()
    try:
        yield relay
    finally:
        relay.kill()


def test_a_node_finds_the_pool_and_is_answered(peers: Peers, tiny_model: Path) -> None:
    with running_relay() as relay:
        publisher = peers.start("publisher", "--publish", "--nostr-relay", relay.url, "--model", str(tiny_model))
        warned = publisher.wait_for("pool_warning")
        assert len(warned["lines"]) == 2
        listed = publisher.wait_for("pool_listed")
        assert publisher.events.index(warned) < publisher.events.index(listed)
        joiner = peers.start("joiner", "--auto", "--nostr-relay", relay.url, "--max-memory", "0")
        assert joiner.wait_for("pool_joined")["mesh_id"] == listed["mesh_id"]
        joiner.wait_for("ready")
        assert len(tokens_of(joiner.complete(TINY, "hello", max_tokens=4, temperature=0))) == 4
        assert joiner.find("pool_alone") is None
        publisher.stop()
        assert publisher.find("pool_unlisted", where=lambda told: told["reason"] == "leaving") is not None


@pytest.mark.slow
def test_a_node_that_found_nothing_serves_alone_and_joins_when_there_is_a_pool(peers: Peers, tiny_model: Path) -> None:
    with running_relay() as relay:
        options = ("--nostr-relay", relay.url)
        alone = peers.start("alone", "--auto", *options, "--model", str(tiny_model))
        assert alone.wait_for("pools_searched")["listed"] == 0
        alone.wait_for("pool_alone")
        alone.wait_for("ready")
        assert len(tokens_of(alone.complete(TINY, "hello", max_tokens=4, temperature=0))) == 4
        publisher = peers.start("publisher", "--publish", *options, "--model", str(tiny_model))
        mesh_id = publisher.wait_for("pool_listed")["mesh_id"]
        mark = alone.mark()
        assert alone.wait_for("pool_joined", timeout_s=TAKEN_OVER_S)["mesh_id"] == mesh_id
        alone.wait_for("ready", after=mark)
        assert len(tokens_of(alone.complete(TINY, "hello", max_tokens=4, temperature=0))) == 4


@pytest.mark.slow
def test_a_listing_outlives_its_publisher_and_its_relay(peers: Peers, tiny_model: Path) -> None:
    with running_relay() as relay:
        options = ("--nostr-relay", relay.url)
        publisher = peers.start("publisher", "--publish", *options, "--model", str(tiny_model))
        mesh_id = publisher.wait_for("pool_listed")["mesh_id"]
        member = peers.start("member", "--auto", *options, "--model", str(tiny_model))
        member.wait_for("pool_joined")
        member.wait_for("pool_watched")
        publisher.kill()
        assert member.wait_for("pool_listed", timeout_s=TAKEN_OVER_S)["mesh_id"] == mesh_id
        stranger = peers.start("stranger", "--auto", *options, "--max-memory", "0")
        assert stranger.wait_for("pool_joined")["mesh_id"] == mesh_id
        stranger.wait_for("ready")
        relay.kill()
        mark = member.mark()
        member.wait_for("pool_unlisted", timeout_s=TAKEN_OVER_S, where=lambda told: told["reason"] == "no_relay")
        assert len(tokens_of(stranger.complete(TINY, "hello", max_tokens=4, temperature=0))) == 4
        relay.start()
        assert member.wait_for("pool_listed", after=mark, timeout_s=TAKEN_OVER_S)["mesh_id"] == mesh_id
        late = peers.start("late", "--auto", *options, "--max-memory", "0")
        assert late.wait_for("pool_joined")["mesh_id"] == mesh_id
