"""Five hundred hostile listings at real relays, and one pool: which is joined, what is told, and who is dialled."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.wire.invite import LISTED_LIFE_MS, Invite, encode_invite
from p2pmesh.wire.listing import KIND, ListingContent, encode_content, listing_tags
from p2pmesh.wire.requirements import MeshRequirements
from tests.e2e.namespaces import Machine, clean_up, open_machines, require_namespaces
from tests.e2e.peers import START_S, NodeProcess
from tests.wire.keys import TestKey

SERVER, JOINER, ROUTER = "93.184.215.10", "93.184.215.11", "192.168.1.1"
AWAY = "/ip4/1.{}.{}.7/tcp/4001"
"""Somewhere that never answers."""
HOSTILE = 500
MAX_RESIDENT_MIB = 400
TOLD = frozenset(
    {
        "content_malformed", "dated_ahead", "event_too_large", "expired", "invite_malformed", "life_too_long",
        "mesh_mismatch", "no_address", "not_public", "signature_invalid",
    }
)  # fmt: skip
_LISTEN = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 4001), backlog=64)
print("ready", flush=True)
while True:
    print(listener.accept()[1][0], flush=True)
"""


def hostile_texts(now_s: int) -> list[str]:
    """Signed events of 17 kinds in turn, the newest first, as a relay gives them."""
    texts = [text for number in range(HOSTILE) for text in hostile(number, now_s)][:HOSTILE]
    return sorted(texts, key=lambda text: -json.loads(text)["created_at"])


def hostile(number: int, now_s: int) -> tuple[str, ...]:
    """One, or of a replay the newer and the older."""
    kind, key = number % 17, PublisherKey.fresh()
    content = content_of(kind, number, now_s)
    times = {10: (-500, -380), 11: (86_400, 86_520), 12: (0, 10**6)}
    created, expires = times.get(kind, (-(number % 20), 100))
    text = signed(key, content, now_s + created, now_s + expires)
    if kind == 13:
        return (json.dumps(json.loads(text) | {"content": content.replace("w0", "w1")}),)
    if kind == 14:
        return (json.dumps(json.loads(text) | {"sig": json.loads(text)["sig"][::-1]}),)
    if kind == 15:
        return (text, signed(key, content, now_s - 60, now_s + 60))
    return (text,)


def content_of(kind: int, number: int, now_s: int) -> str:
    """What kinds up to 9 get wrong; what the others say is well-formed, and leads nowhere."""
    away = AWAY.format(number // 250, number % 250)
    boast = listing(number, now_s, (away,))
    plain = json.loads(encode_content(boast))
    addresses = {
        5: ("/dns4/router.lan/tcp/4001",), 6: (f"/ip4/{ROUTER}/tcp/4001", "/ip4/10.0.0.1/tcp/4001"),
        7: ("/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/4001"), 8: (away, f"/ip4/{ROUTER}/tcp/4001"),
    }  # fmt: skip
    if kind in addresses:
        return encode_content(listing(number, now_s, addresses[kind]))
    if kind == 3:
        return encode_content(listing(number, now_s, (away,), is_public=False))
    changes: dict[int, dict[str, Any]] = {
        1: {"region": "x" * 20_000}, 2: {"invite_token": boast.invite_token[:-9]}, 4: {"name": "another"},
        9: {"serving": ["m"] * 3000},
    }  # fmt: skip
    return "{" * 500 if kind == 0 else json.dumps(plain | changes.get(kind, {}))


def signed(key: PublisherKey, content: str, created_s: int, expires_s: int) -> str:
    return key.sign(KIND, content, listing_tags(expires_s), created_s)[1]


def listing(number: int, now_s: int, addresses: tuple[str, ...], *, is_public: bool = True) -> ListingContent:
    """It claims as much as a listing may."""
    key = TestKey(f"hostile {number}")
    terms = MeshRequirements(key.public_key, is_public=is_public)
    invite = Invite(number.to_bytes(16, "big"), terms, now_s * 1000, now_s * 1000 + LISTED_LIFE_MS, addresses)
    serving, wanted = tuple(f"m{n}" for n in range(64)), tuple(f"w{n}" for n in range(16))
    line = encode_invite(invite, key.public_key, key.sign)
    return ListingContent(line, serving, 2**50, 9999, invite.mesh_id, 1, wanted)


@contextmanager
def in_machine(machine: Machine, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A Python program on a machine, until the end."""
    command = ["ip", "netns", "exec", machine.name, sys.executable, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def listening(machine: Machine) -> Iterator[list[str]]:
    """Who came to port 4001 of a machine, by any of its addresses."""
    came: list[str] = []
    with in_machine(machine, "-c", _LISTEN) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        reader = threading.Thread(target=lambda: came.extend(process.stdout or ()), daemon=True)
        reader.start()
        yield came


def peak_mib(node: NodeProcess) -> float:
    """The most that a node ever held in memory."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def told_of(node: NodeProcess) -> list[dict[str, Any]]:
    return [event for event in node.events if event["event"] == "listings_rejected"]


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    require_namespaces()
    with open_machines(3) as made:
        made[0].address(f"{SERVER}/24")
        made[1].address(f"{JOINER}/24", "192.168.1.2/24")
        made[1].ip("route", "add", "default", "via", SERVER)
        made[2].address(f"{ROUTER}/24")
        yield made


@pytest.mark.slow
def test_the_one_good_pool_is_joined_and_nothing_private_dialled(
    machines: list[Machine], tmp_path: Path, tiny_model: Path
) -> None:
    server, home, router = machines
    file = tmp_path / "events.json"
    file.write_text(json.dumps(hostile_texts(int(time.time()))))
    joiner = publisher = None
    with in_machine(server, "-m", "tests.e2e.hostile_relays", SERVER, str(file)) as relays:
        try:
            assert relays.stdout is not None
            honest, liar, taken = relays.stdout.readline().split()
            assert int(taken) > HOSTILE // 2
            given = ("--publish", "--nostr-relay", honest, "--model", str(tiny_model))
            publisher = server.start(tmp_path / "pool", *given)
            mesh_id = publisher.wait_for("pool_listed")["mesh_id"]
            with listening(router) as at_router, listening(home) as at_home, home.counting() as sent:
                given = ("--auto", "--max-memory", "0", "--nostr-relay", honest, "--nostr-relay", liar)
                joiner = home.start(tmp_path / "joiner", *given)
                assert joiner.wait_for("pool_joined", timeout_s=START_S)["mesh_id"] == mesh_id
                joiner.wait_for("ready")
            assert (at_router, at_home) == ([], [])
            assert not [one for one in sent if ip_address(one[1]).is_private and not ip_address(one[1]).is_multicast]
            assert [one for one in sent if one[1].startswith("1.")]
            counts = Counter((event["reason"], event["publisher"]) for event in told_of(joiner))
            assert {reason for reason, _ in counts} >= TOLD
            assert set(counts.values()) == {1}
            assert peak_mib(joiner) < MAX_RESIDENT_MIB
            joiner.stop()
            publisher.stop()
        finally:
            for node in (joiner, publisher):
                if node is not None:
                    clean_up(node)
