"""Frames and messages that no honest peer sends, from a real libp2p host: they cost their stream and nothing else."""

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from p2pmesh.adapters.identity import NodeIdentity, identity_of_seed
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.errors import ErrorCode, P2PMeshError, PeerUnavailable
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL, STAGE_PROTOCOL
from p2pmesh.node.channels import MessageStream
from p2pmesh.ports.network import ByteStream
from p2pmesh.wire.control import encode_control
from p2pmesh.wire.messages.answers import Done
from p2pmesh.wire.messages.artifacts import FetchArtifact
from p2pmesh.wire.messages.generation import Cancel
from p2pmesh.wire.messages.runs import ProbeRun, PublishRun
from p2pmesh.wire.stage import FrameKind, StageFrame, WireDtype, encode_frame
from p2pmesh.wire.varint import encode_varint  # fmt: skip
from tests.e2e.conftest import TINY, TINY_LAYERS
from tests.e2e.hello import say_hello
from tests.e2e.peers import NodeProcess, Peers, resident_bytes, tokens_of

PROMPT = "hello"
FRESH_SEEDS = count(20)
RESET_S = 15.0
FLOOD_STREAMS = 60
GROWTH_BYTES = 96 * 1024 * 1024
"""What a flood may make a node grow by: its stream windows, no more."""


class Pair:
    """A driver and the joiner that holds the last stage of its run."""

    def __init__(self, driver: NodeProcess, joiner: NodeProcess, run_id: bytes) -> None:
        self.driver = driver
        self.joiner = joiner
        self.run_id = run_id
        self.invite = driver.invite
        self.expected = self.answer()

    def answer(self) -> list[int]:
        return tokens_of(self.driver.complete(TINY, PROMPT, max_tokens=16, temperature=0))

    def assert_undisturbed(self) -> None:
        assert self.answer() == self.expected
        for node in (self.driver, self.joiner):
            assert node.process.poll() is None
            assert not [line for line in node.errors if "Traceback" in line], node.errors
            assert node.find("stage_failed") is None


@pytest.fixture(scope="module")
def pair(module_peers: Peers, tiny_model: Path) -> Pair:
    driver = module_peers.found("driver", "--model", str(tiny_model), "--split", "2")
    joiner = module_peers.join("joiner", driver.invite, "--max-memory", "1GiB")
    ready = driver.wait_for("pipeline_ready")
    assert ready["stages"][1] == {"peer_id": joiner.peer_id, "layers": [ready["stages"][1]["layers"][0], TINY_LAYERS]}
    return Pair(driver, joiner, bytes.fromhex(ready["run_id"]))


@asynccontextmanager
async def stranger(seed: int) -> AsyncIterator[tuple[Libp2pNetwork, NodeIdentity]]:
    identity = identity_of_seed(bytes([seed]) * 32)
    async with open_network(identity, ("/ip4/127.0.0.1/tcp/0",)) as network:
        yield network, identity


async def connect(network: Libp2pNetwork, node: NodeProcess) -> PeerId:
    peer = PeerId(node.peer_id)
    addresses = await trio.to_thread.run_sync(node.status)
    await network.dial(peer, tuple(addresses["addresses"]), 10)
    return peer


async def assert_reset(stream: ByteStream) -> None:
    """The peer ends the stream without an answer worth the name."""
    with trio.fail_after(RESET_S):
        try:
            while True:
                await stream.receive_exactly(1)
        except PeerUnavailable:
            return


def rows(kind: FrameKind, run_id: bytes, **changes: Any) -> StageFrame:
    frame = StageFrame(kind, b"r" * 16, run_id, 0, 0, (1,), 64, WireDtype.F32, body=bytes(4 * 64))
    return replace(frame, **changes)


def broken_frames(run_id: bytes) -> dict[str, bytes]:
    """Frames that the codec refuses, and ones that only the run can judge."""
    good = encode_frame(rows(FrameKind.DECODE, run_id))

    def patched(offset: int, data: bytes) -> bytes:
        return good[: 4 + offset] + data + good[4 + offset + len(data) :]

    return {
        "length 0": bytes(4),
        "length 4 GiB": b"\xff" * 4,
        "a length that lies": struct.pack("<I", 4096) + good[4:] + bytes(4096 - len(good) + 4),
        "version": patched(0, b"\x09"),
        "unknown kind": patched(1, b"\xee"),
        "dtype": patched(2, b"\x07"),
        "flags": patched(3, b"\xff"),
        "count": patched(44, struct.pack("<I", 2**31)),
        "position": patched(40, struct.pack("<I", 2**32 - 1)),
        "sequence": patched(36, struct.pack("<I", 2**32 - 1)),
        "OPEN of a run that it has no part in": encode_frame(StageFrame(FrameKind.OPEN, bytes(16), run_id)),
        "OPEN of no run": encode_frame(StageFrame(FrameKind.OPEN, bytes(16), bytes(16))),
        "RETURN_OPEN of a peer that is not last": encode_frame(StageFrame(FrameKind.RETURN_OPEN, bytes(16), run_id)),
        "a token": encode_frame(StageFrame(FrameKind.TOKEN, bytes(16), run_id, tokens=(1,))),
        "NaN": encode_frame(rows(FrameKind.DECODE, run_id, body=struct.pack("<64f", *([float("nan")] * 64)))),
        "rows first": good,
    }


def broken_messages() -> dict[str, bytes]:
    return {
        "length 0": b"\0",
        "endless length": b"\xff" * 16,
        "length of 2 MiB + 1": encode_varint(2 * 1024 * 1024 + 1),
        "no map": encode_varint(1) + b"\xc0",
        "nonsense": encode_varint(64) + bytes(range(64)),
        "deep": encode_varint(4096) + b"\x91" * 4096,
        "unknown kind": encode_varint(9) + b"\x81\xa4kind\xa2no",
        "a kind that opens nothing": encode_control(Cancel()),
        "another": encode_control(Done()),
        "probe of no run": encode_control(ProbeRun(bytes(16))),
        "publish of no run": encode_control(PublishRun(bytes(16), "f")),
        "artifact of nobody": encode_control(FetchArtifact("0" * 64, "0" * 64, 0, 1)),
    }


async def send_each(
    pair: Pair, node: NodeProcess, protocol: str, cases: dict[str, bytes], *, is_admitted: bool
) -> None:
    """Each under an identity of its own: one that sends several is banned."""
    for name, data in cases.items():
        async with stranger(next(FRESH_SEEDS)) as (network, identity):
            peer = await connect(network, node)
            if is_admitted:
                status = await trio.to_thread.run_sync(node.status)
                await say_hello(network, identity, peer, status["mesh_id"], pair.invite)
            await send_one(network, peer, protocol, name, data)
            assert peer in network.connected_peers()


async def send_one(network: Libp2pNetwork, peer: PeerId, protocol: str, name: str, data: bytes) -> None:
    stream = await network.open_stream(peer, protocol, 10)
    try:
        with suppress(PeerUnavailable):  # ended before a word was heard
            await stream.send(data)
        await stream.finish()
        await assert_reset(stream)
    except trio.TooSlowError as error:
        raise AssertionError(f"{name}: the stream stays open") from error
    finally:
        await stream.reset()


async def test_an_admitted_peer_breaks_nothing(pair: Pair) -> None:
    for node in (pair.driver, pair.joiner):
        await send_each(pair, node, STAGE_PROTOCOL, broken_frames(pair.run_id), is_admitted=True)
        await send_each(pair, node, CONTROL_PROTOCOL, broken_messages(), is_admitted=True)
        assert node.find("peer_banned") is None
    await trio.to_thread.run_sync(pair.assert_undisturbed)


async def test_a_peer_that_is_not_admitted_gets_nowhere(pair: Pair) -> None:
    for node in (pair.driver, pair.joiner):
        await send_each(pair, node, STAGE_PROTOCOL, broken_frames(pair.run_id), is_admitted=False)
        await send_each(pair, node, CONTROL_PROTOCOL, broken_messages(), is_admitted=False)
    await trio.to_thread.run_sync(pair.assert_undisturbed)


async def test_a_member_that_goes_on_sending_garbage_is_banned_and_disturbs_nobody(pair: Pair) -> None:
    async with stranger(1) as (network, identity):
        peer = await connect(network, pair.driver)
        status = await trio.to_thread.run_sync(pair.driver.status)
        await say_hello(network, identity, peer, status["mesh_id"], pair.invite)
        with trio.fail_after(60):
            while peer in network.connected_peers():
                with suppress(PeerUnavailable):
                    await send_one(network, peer, CONTROL_PROTOCOL, "garbage", broken_messages()["nonsense"])
        told = await trio.to_thread.run_sync(pair.driver.wait_for, "peer_banned")
        assert (told["peer_id"], told["offence"]) == (identity.peer_id, "message_malformed")
        status = await trio.to_thread.run_sync(pair.driver.status)
        assert [ban["peer_id"] for ban in status["bans"]] == [identity.peer_id]
    await trio.to_thread.run_sync(pair.assert_undisturbed)


async def test_an_unadmitted_request_is_refused_by_name(pair: Pair) -> None:
    async with stranger(3) as (network, _):
        peer = await connect(network, pair.driver)
        stream = MessageStream(await network.open_stream(peer, CONTROL_PROTOCOL, 10))
        await stream.send(ProbeRun(pair.run_id))
        with pytest.raises(P2PMeshError) as raised:
            await stream.expect(Done, RESET_S)
    assert raised.value.code is ErrorCode.NOT_ADMITTED


@pytest.mark.parametrize("data", [b"\xff\xff\xff\x03", encode_varint(2 * 1024 * 1024)], ids=["stage", "control"])
async def test_half_said_messages_hold_no_memory(pair: Pair, data: bytes) -> None:
    """Many streams that announce the longest message and send a part of it."""
    protocol = STAGE_PROTOCOL if data[0] == 0xFF else CONTROL_PROTOCOL
    node = pair.joiner
    async with stranger(4 if protocol == STAGE_PROTOCOL else 5) as (network, identity):
        peer = await connect(network, node)
        status = await trio.to_thread.run_sync(node.status)
        await say_hello(network, identity, peer, status["mesh_id"], pair.invite)
        before = resident_bytes(node.process.pid)
        async with trio.open_nursery() as nursery:
            for _ in range(FLOOD_STREAMS):
                nursery.start_soon(_say_half, network, peer, protocol, data)
            await trio.to_thread.run_sync(pair.assert_undisturbed)
            grown = resident_bytes(node.process.pid) - before
            nursery.cancel_scope.cancel()
    assert grown < GROWTH_BYTES


async def _say_half(network: Libp2pNetwork, peer: PeerId, protocol: str, data: bytes) -> None:
    try:
        stream = await network.open_stream(peer, protocol, 10)
        await stream.send(data + bytes(1024 * 1024))
        await trio.sleep_forever()
    except P2PMeshError:
        return  # the node ended the stream, which is one of its rights


def test_the_operator_was_told_of_nothing_secret(pair: Pair) -> None:
    told = json.dumps([event for event in pair.joiner.events if event["event"] != "invite"])
    assert pair.invite not in told
