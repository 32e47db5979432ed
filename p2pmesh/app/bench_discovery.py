"""``p2pmesh bench discovery``: how long ``up --auto`` takes to be in a pool, with most of those that are listed dead.

A relay of our own in a process, real nodes for the pools that live, and listings that are signed and whole for those
that are dead: a third of them refuse connections, the others accept them and say nothing. Each round is a new home and
a new process; its time runs from the start of the process to the event ``pool_joined``.
"""

import json
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2pmesh.adapters.clock import SystemEntropy, TrioClock
from p2pmesh.adapters.identity import Ed25519Verifier, NodeIdentity
from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings
from p2pmesh.app.bench_nodes import BenchNodes, open_nodes
from p2pmesh.app.bench_options import BenchDiscoveryOptions
from p2pmesh.app.claims import now_unix_ms
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import ID_BYTES
from p2pmesh.base.limits import PROTOCOL_GENERATION
from p2pmesh.wire.invite import LISTED_LIFE_MS, Invite, decode_invite, encode_invite
from p2pmesh.wire.listing import ListingContent
from p2pmesh.wire.requirements import MeshRequirements

BAR_S = 10.0
PUBLISH_S = 10.0
RELAY_START_S = 30.0
LIST_AGAIN_S = 50.0
"""A listing lives for two minutes."""
BOASTED_NODES = 50
"""What dead pools claim, so that they are asked first."""


@dataclass(frozen=True, slots=True)
class DiscoveryRound:
    """One ``up --auto``: to its HTTP ports, to the end of its search, and to being in a pool; seconds."""

    listening_s: float
    searched_s: float
    joined_s: float
    search_ms: int
    reached: int


def run_discovery(options: BenchDiscoveryOptions, out: TextIO) -> int:
    """Measures and prints; 0."""
    report = trio.run(measure_discovery, options, sys.stderr if options.is_json else out)
    out.write((json.dumps(report, indent=2) if options.is_json else describe_discovery(report)) + "\n")
    return 0


async def measure_discovery(options: BenchDiscoveryOptions, out: TextIO) -> dict[str, Any]:
    """Each round as ``DiscoveryRound``; ``median_joined_s``, ``worst_joined_s`` and whether the bar is met."""
    with tempfile.TemporaryDirectory(prefix="p2pmesh-bench-") as scratch, ExitStack() as sockets:
        async with _open_relay() as url, open_nodes(Path(scratch)) as nodes:
            live = [await _start_pool(nodes, number, url) for number in range(options.pools - options.dead)]
            dead = [_dead_content(_dead_address(number, sockets)) for number in range(options.dead)]
            rounds = []
            async with trio.open_nursery() as nursery:
                await nursery.start(_keep_listed, url, [*live, *dead])
                for number in range(options.rounds):
                    rounds.append(await _join(nodes, number, url))
                    print(_line(rounds[-1]), file=out, flush=True)
                nursery.cancel_scope.cancel()
    return _report(options, rounds)


@asynccontextmanager
async def _open_relay() -> AsyncIterator[str]:
    command = [sys.executable, "-m", "p2pmesh.adapters.nostr.local_relay", "0"]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = b""
        with trio.move_on_after(RELAY_START_S):
            while not line.endswith(b"\n"):
                line += bytes(await process.stdout.receive_some(256)) or b"?\n"
        if not line.startswith(b"ws://"):
            raise Refused(ErrorCode.INTERNAL, f"the local relay did not start within {RELAY_START_S:g} s")
        yield line.decode().strip()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


# --- what is listed -----------------------------------------------------------------
async def _start_pool(nodes: BenchNodes, number: int, url: str) -> ListingContent:
    node = await nodes.start(f"pool-{number}", "--publish", "--nostr-relay", url)
    return _content(str((await node.wait_for("invite"))["invite"]), 1)


def _dead_address(number: int, sockets: ExitStack) -> str:
    """A third of them refuses at once; the others take the connection, and that is all."""
    bound = sockets.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))
    if number % 3:
        bound.listen(64)
    return f"/ip4/127.0.0.1/tcp/{bound.getsockname()[1]}"


def _dead_content(address: str) -> ListingContent:
    founder = NodeIdentity(Ed25519PrivateKey.generate())
    terms = MeshRequirements(founder.public_key, is_public=True)
    now = now_unix_ms()
    invite = Invite(secrets.token_bytes(ID_BYTES), terms, now, now + LISTED_LIFE_MS, (address,))
    return _content(encode_invite(invite, founder.public_key, founder.sign), BOASTED_NODES)


def _content(line: str, nodes: int) -> ListingContent:
    mesh_id = decode_invite(line, Ed25519Verifier().is_signature_of).mesh_id
    serving = () if nodes == 1 else ("a-model", "another")
    return ListingContent(line, serving, 0, nodes, mesh_id, PROTOCOL_GENERATION)


async def _keep_listed(url: str, contents: list[ListingContent], *, task_status: Any) -> None:
    """Each under a key of its own, as so many strangers would."""
    publishers = [_relays(url) for _ in contents]
    while True:
        async with trio.open_nursery() as nursery:
            for relays, content in zip(publishers, contents, strict=True):
                nursery.start_soon(_list, relays, content)
        task_status.started()
        task_status = trio.TASK_STATUS_IGNORED
        await trio.sleep(LIST_AGAIN_S)


async def _list(relays: NostrRelays, content: ListingContent) -> None:
    report = await relays.publish(content, PUBLISH_S)
    if not report.accepted:
        raise Refused(ErrorCode.INTERNAL, f"the local relay did not take a listing: {report.replies[0].detail}")


def _relays(url: str) -> NostrRelays:
    settings = RelaySettings((url,), PublisherKey.fresh(), Ed25519Verifier().is_signature_of)
    return NostrRelays(settings, TrioClock(), SystemEntropy())


# --- who joins ------------------------------------------------------------------------
async def _join(nodes: BenchNodes, number: int, url: str) -> DiscoveryRound:
    started = time.monotonic()
    node = await nodes.start(f"joiner-{number}", "--auto", "--nostr-relay", url)
    await node.wait_for("listening")
    listening_s = time.monotonic() - started
    searched = await node.wait_for("pools_searched")
    searched_s = time.monotonic() - started
    await node.wait_for("pool_joined")
    joined_s = time.monotonic() - started
    node.process.terminate()
    await node.process.wait()
    return DiscoveryRound(
        round(listening_s, 2), round(searched_s, 2), round(joined_s, 2), searched["took_ms"], searched["reached"]
    )


def _line(one: DiscoveryRound) -> str:
    return (
        f"joined after {one.joined_s:.2f} s: /v1 was open after {one.listening_s:.2f} s, the search took "
        f"{one.search_ms / 1000:.2f} s and reached {one.reached} pools"
    )


def _report(options: BenchDiscoveryOptions, rounds: list[DiscoveryRound]) -> dict[str, Any]:
    joined = [one.joined_s for one in rounds]
    return {
        "pools": options.pools,
        "dead": options.dead,
        "rounds": [asdict(one) for one in rounds],
        "median_joined_s": statistics.median(joined),
        "worst_joined_s": max(joined),
        "bar_s": BAR_S,
        "is_met": max(joined) < BAR_S,
    }


def describe_discovery(report: dict[str, Any]) -> str:
    """A report for a person."""
    verdict = "met" if report["is_met"] else "MISSED"
    return (
        f"{report['pools']} pools listed, {report['dead']} of them dead: "
        f"joined after {report['median_joined_s']:.2f} s (median), {report['worst_joined_s']:.2f} s at worst; "
        f"the bar of {report['bar_s']:g} s is {verdict}"
    )
