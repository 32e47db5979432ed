"""What a stage takes from the peers of its run, and from all others: a puppet is coordinator and stage 0."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.ids import LayerRange
from p2pmesh.base.limits import CONTROL_PROTOCOL, PREFILL_CREDITS, PROTOCOL_GENERATION, STAGE_PROTOCOL
from p2pmesh.node.channels import FrameStream, MessageStream
from p2pmesh.node.engine_shelf import KEPT_S
from p2pmesh.wire.announcement import Announcement, encode_announcement
from p2pmesh.wire.begin import Begin, encode_begin
from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.messages.admission import Hello, Welcome
from p2pmesh.wire.messages.claims import ClaimGranted, ClaimRun
from p2pmesh.wire.messages.runs import LoadStage, StageEntry, StageStatus
from p2pmesh.wire.stage import FrameFlag, FrameKind, StageFrame, WireDtype, decode_error
from tests.fakes.engine import HIDDEN_SIZE, next_token
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import GREEDY, Mesh, MeshNode, open_mesh
from tests.fakes.models import LAYERS, FakeModelStore, fake_model
from tests.fakes.network import FakeNetwork

MODEL = fake_model()
RUN_ID = b"run of the puppet"[:16]
REQUEST_ID = b"request of puppet"[:16]
CUT = 2


class Puppet:
    """An admitted peer that speaks the protocols word by word."""

    def __init__(self, network: FakeNetwork, identity: NodeIdentity, victim: MeshNode) -> None:
        self.network = network
        self.identity = identity
        self.victim = victim

    async def control(self, message: Any) -> MessageStream:
        stream = MessageStream(await self.network.open_stream(self.victim.peer, CONTROL_PROTOCOL, 10))
        await stream.send(message)
        return stream

    async def say_hello(self) -> None:
        overlay = self.victim.node.overlay
        said = Announcement(
            self.identity.peer_id, overlay.mesh_id, "puppet", "0", 1, 1, 2**50, self.network.addresses(), 0, 0, ()
        )
        announcement = encode_announcement(said, self.identity.public_key, self.identity.sign)
        await self.network.dial(self.victim.peer, self.victim.network.addresses(), 10)
        stream = await self.control(
            Hello(PROTOCOL_GENERATION, overlay.mesh_id, overlay.make_invite(), (), announcement)
        )
        await stream.expect(Welcome, 10)

    async def claim(self, load: LoadStage) -> None:
        """The victim's promise for a run, without which it loads nothing."""
        peers = (self.identity.peer_id, self.victim.peer)
        claim = ClaimRun(load.model_digest, load.run_id, load.term, 15_000, peers, False)
        await (await self.control(claim)).expect(ClaimGranted, 10)

    async def frames(self, *first: StageFrame) -> FrameStream:
        stream = FrameStream(await self.network.open_stream(self.victim.peer, STAGE_PROTOCOL, 10))
        for frame in first:
            await stream.send(frame)
        return stream


async def load_order(puppet: Puppet, **changes: Any) -> LoadStage:
    artifact = await FakeModelStore(MODEL).cut(MODEL, LayerRange(CUT, LAYERS))
    stages = (
        StageEntry(puppet.identity.peer_id, 0, CUT, puppet.network.addresses()),
        StageEntry(puppet.victim.peer, CUT, LAYERS, puppet.victim.network.addresses()),
    )
    order = LoadStage(
        RUN_ID, 1, "fake", MODEL.digest, MODEL.size_bytes, LAYERS, 1, stages, artifact.digest, artifact.size_bytes,
        1000, 512, 2, WireDtype.F32,
    )  # fmt: skip
    return replace(order, **changes)


@asynccontextmanager
async def held_stage(mesh: Mesh) -> AsyncIterator[tuple[Puppet, MessageStream, FrameStream]]:
    """A stage that the puppet has loaded on the victim, with the stream of activations open."""
    victim = await mesh.found("victim", store=FakeModelStore(MODEL))
    identity = fake_identity("puppet")
    async with mesh.overlay.open_network(identity.peer_id) as network:
        puppet = Puppet(network, identity, victim)
        await puppet.say_hello()
        order = await load_order(puppet)
        await puppet.claim(order)
        load = await puppet.control(order)
        while (await load.expect(StageStatus, 10)).state != "ready":
            pass
        yield puppet, load, await puppet.frames(open_frame())


def open_frame(**changes: Any) -> StageFrame:
    return replace(StageFrame(FrameKind.OPEN, bytes(16), RUN_ID), **changes)


def begin() -> StageFrame:
    return StageFrame(FrameKind.BEGIN, REQUEST_ID, RUN_ID, body=encode_begin(Begin(SamplingParameters(), 5)))


def rows(kind: FrameKind = FrameKind.PREFILL, position: int = 0, count: int = 5, **changes: Any) -> StageFrame:
    """Rows as stage 0 of the fake engines gives them."""
    tokens = tuple(range(97 + position, 97 + position + count))
    activation = np.zeros((count, HIDDEN_SIZE), np.float32)
    activation[:, 0], activation[:, 1] = tokens, CUT
    frame = StageFrame(
        kind, REQUEST_ID, RUN_ID, 0, position, tokens, HIDDEN_SIZE, WireDtype.F32, body=activation.tobytes()
    )
    return replace(frame, **changes)


async def send_until_ended(stream: FrameStream | None, load: MessageStream, *frames: StageFrame) -> None:
    """Raises what ended the stage: a stream that takes no more, or the refusal on the stream of its order."""
    for frame in frames:
        assert stream is not None
        await stream.send(frame)
    for _ in range(10):
        await load.expect(StageStatus, 60)


async def ended_with(stream: FrameStream) -> list[StageFrame]:
    """All frames up to the end of the stream."""
    heard: list[StageFrame] = []
    with trio.fail_after(30):
        while True:
            try:
                heard.append(await stream.receive())
            except P2PMeshError:
                return heard


async def test_a_stage_answers_the_stage_before_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, stream):
        begun = replace(begin(), body=encode_begin(Begin(GREEDY, 5)))
        for frame in (begun, rows(flags=FrameFlag.SAMPLE)):
            await stream.send(frame)
        credit, token = await stream.receive(), await stream.receive()
        assert (credit.kind, credit.position) == (FrameKind.CREDIT, 5)
        assert (token.kind, token.position) == (FrameKind.TOKEN, 5)
        assert token.tokens == (next_token(range(97, 102), GREEDY),)
        assert puppet.victim.node.table.runs()[0].open_sequences == 1
        await stream.send(StageFrame(FrameKind.END, REQUEST_ID, RUN_ID))
        await trio.testing.wait_all_tasks_blocked()
        assert puppet.victim.node.table.runs()[0].open_sequences == 0


@pytest.mark.parametrize(
    "frames",
    [
        (rows(hidden_size=2, body=bytes(5 * 2 * 4)),),
        (rows(dtype=WireDtype.NONE, hidden_size=0, body=b""),),
        (rows(position=510, count=5),),
        (rows(count=257),),
        (rows(body=np.full((5, HIDDEN_SIZE), np.nan, np.float32).tobytes()),),
        (rows(run_id=bytes(16)),),
        (StageFrame(FrameKind.TOKEN, REQUEST_ID, RUN_ID, tokens=(1,)),),
        (StageFrame(FrameKind.CREDIT, REQUEST_ID, RUN_ID),),
        (open_frame(),),
        (begin(),),
        tuple(replace(begin(), request_id=n.to_bytes(16, "big")) for n in range(1000)),
    ],
    ids=[
        "width", "no-activation", "beyond-context", "long-chunk", "nan", "another-run", "token", "credit", "open",
        "begin-twice", "many-sequences",
    ],
)  # fmt: skip
async def test_a_frame_that_breaks_a_rule_ends_the_stage_with_its_code(
    autojump_clock: MockClock, frames: tuple[StageFrame, ...]
) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, stream):
        with pytest.raises(P2PMeshError) as raised:
            await send_until_ended(stream, load, begin(), *frames)
        await ended_with(stream)
        told = puppet.victim.told("stage_failed")
        assert len(told) == 1
        assert told[0]["code"].startswith(("frame_", "credit_"))
        if raised.value.code is not ErrorCode.PEER_LOST:
            assert raised.value.code.value == told[0]["code"]
        assert puppet.victim.node.table.runs() == ()
        assert puppet.victim.launcher.engines == []
        assert puppet.victim.node.overlay.is_admitted(puppet.identity.peer_id)


async def test_rows_that_do_not_follow_those_before_end_the_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, stream):
        await stream.send(begin())
        await stream.send(rows())
        await stream.receive()
        with pytest.raises(P2PMeshError) as raised:
            await send_until_ended(stream, load, rows(FrameKind.DECODE, position=9, count=1))
        await ended_with(stream)
        assert puppet.victim.told("stage_failed")[0]["code"] == "frame_position_invalid"
        assert raised.value.code in (ErrorCode.FRAME_POSITION_INVALID, ErrorCode.PEER_LOST)


async def test_rows_that_come_together_go_together(autojump_clock: MockClock) -> None:
    """Into the engine, and as tokens out of it: two sequences in step cost no more steps than one."""
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, stream):
        other = b"another request!"
        for request_id in (REQUEST_ID, other):
            await stream.send(replace(begin(), request_id=request_id))
            await stream.send(rows(flags=FrameFlag.SAMPLE, request_id=request_id))
            await heard_of(stream, FrameKind.TOKEN)
        (engine,) = puppet.victim.launcher.engines
        stream.outlet.hold()
        for request_id in (REQUEST_ID, other):
            await stream.send(rows(FrameKind.DECODE, 5, 1, request_id=request_id))
        stream.outlet.let_go()
        await stream.outlet.flush()
        answers = await stream.receive_all()
        assert engine.together[-1] == 2
        assert [(frame.kind, frame.request_id) for frame in answers] == [
            (FrameKind.TOKEN, REQUEST_ID), (FrameKind.TOKEN, other),
        ]  # fmt: skip


async def heard_of(stream: FrameStream, kind: FrameKind) -> StageFrame:
    """The next frame of a kind."""
    with trio.fail_after(30):
        while (frame := await stream.receive()).kind is not kind:
            pass
    return frame


async def test_chunks_beyond_the_credits_are_refused_whatever_the_engine_does(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, stream):
        puppet.victim.engine.hold()
        engine = puppet.victim.engine
        chunks = (rows(position=chunk * 5) for chunk in range(100))
        with pytest.raises(P2PMeshError):
            await send_until_ended(stream, load, begin(), *chunks)
        await ended_with(stream)
        assert puppet.victim.told("stage_failed")[0]["code"] == "credit_exceeded"
        assert engine.count(FrameKind.PREFILL) == PREFILL_CREDITS


@pytest.mark.parametrize(("count", "allowed"), [(1, 60), (16, 60), (64, 15), (240, 4)])
async def test_replayed_rows_beyond_the_credits_are_refused(
    autojump_clock: MockClock, count: int, allowed: int
) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, stream):
        puppet.victim.engine.hold()
        engine = puppet.victim.engine
        replay = rows(FrameKind.DECODE, count=count, flags=FrameFlag.REPLAY)
        with pytest.raises(P2PMeshError):
            await send_until_ended(stream, load, begin(), *[replay] * 200)
        await ended_with(stream)
        assert puppet.victim.told("stage_failed")[0]["code"] == "credit_exceeded"
        assert engine.count(FrameKind.DECODE) == allowed


async def test_a_replay_is_answered_by_credits_that_make_room_for_more(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (_, _, stream):
        await stream.send(begin())
        for start in range(0, 400, 4):
            await stream.send(rows(FrameKind.DECODE, start, 4, flags=FrameFlag.REPLAY))
            credit = await stream.receive()
            assert (credit.kind, credit.position, credit.tokens) == (FrameKind.CREDIT, start + 4, ())


async def test_credits_come_back_as_chunks_are_consumed(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, stream):
        await stream.send(begin())
        for chunk in range(4 * PREFILL_CREDITS):
            await stream.send(rows(position=chunk * 5))
            credit = await stream.receive()
            assert (credit.kind, credit.position) == (FrameKind.CREDIT, chunk * 5 + 5)
        assert puppet.victim.told("stage_failed") == []


async def test_an_engine_that_dies_says_why_before_the_stream_ends(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, stream):
        await stream.send(begin())
        await trio.testing.wait_all_tasks_blocked()
        puppet.victim.engine.kill("killed by SIGSEGV")
        heard = await ended_with(stream)
        assert [frame.kind for frame in heard] == [FrameKind.ERROR]
        assert heard[0].request_id == REQUEST_ID
        assert decode_error(heard[0]) == (ErrorCode.ENGINE_CRASHED, "killed by SIGSEGV")
        with pytest.raises(P2PMeshError, match="SIGSEGV"):
            await load.expect(StageStatus, 10)


async def test_a_stage_goes_with_its_coordinator(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, stream):
        free_before = puppet.victim.node.stages.free_bytes
        await load.reset()
        assert await ended_with(stream) == []
        await trio.testing.wait_all_tasks_blocked()
        assert puppet.victim.node.stages.free_bytes > free_before
        assert len(puppet.victim.launcher.engines) == 1  # another run may want it
        await trio.sleep(KEPT_S + 1)
        assert puppet.victim.launcher.engines == []
        assert puppet.victim.told("stage_failed") == []


@pytest.mark.parametrize(
    "first",
    [
        open_frame(),
        open_frame(position=1),
        open_frame(run_id=bytes(16)),
        open_frame(kind=FrameKind.RETURN_OPEN),
        rows(),
    ],
    ids=["open", "open-as-another", "no-run", "return", "rows"],
)
async def test_an_admitted_peer_outside_the_run_gets_no_stream_of_it(
    autojump_clock: MockClock, first: StageFrame
) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, stream):
        identity = fake_identity("outsider")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            outsider = Puppet(network, identity, puppet.victim)
            await outsider.say_hello()
            assert await ended_with(await outsider.frames(first)) == []
        await stream.send(begin())
        await stream.send(rows())
        assert (await stream.receive()).kind is FrameKind.CREDIT
        assert puppet.victim.told("stage_failed") == []


async def test_a_second_stream_of_the_stage_before_is_refused_and_the_first_lives(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, stream):
        await trio.testing.wait_all_tasks_blocked()
        assert await ended_with(await puppet.frames(open_frame())) == []
        await stream.send(begin())
        await stream.send(rows())
        assert (await stream.receive()).kind is FrameKind.CREDIT


async def test_a_stream_that_says_nothing_is_ended(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, _):
        assert await ended_with(await puppet.frames()) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"needed_bytes": 2**40}, ErrorCode.PLACEMENT_REFUSED),
        ({"artifact_digest": "0" * 64}, ErrorCode.PEER_LOST),
    ],
)
async def test_an_order_that_cannot_be_carried_out_is_refused(
    autojump_clock: MockClock, changes: dict[str, Any], code: ErrorCode
) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, _):
        order = await load_order(puppet, run_id=bytes(16), model_digest="ef" * 32, **changes)
        await puppet.claim(order)
        load = await puppet.control(order)
        with pytest.raises(P2PMeshError) as raised:
            await send_until_ended(None, load)
        if code is ErrorCode.PLACEMENT_REFUSED:
            assert raised.value.code is code
        assert len(puppet.victim.node.table.runs()) == 1
