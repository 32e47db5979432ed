"""What a liar sends: always something that whoever reads it can know for a lie."""

import io
from dataclasses import replace

import pytest
import trio

from p2pmesh.app.chaos_lies import Liar, Lie, LyingNetwork, lie_about
from p2pmesh.base.errors import RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import STAGE_PROTOCOL
from p2pmesh.wire.activation import row_bytes
from p2pmesh.wire.dtype import WireDtype
from p2pmesh.wire.stage import LENGTH_BYTES, FrameKind, StageFrame, decode_activation, decode_frame, encode_frame

WIDTH = 64
TOKEN = StageFrame(FrameKind.TOKEN, bytes(16), bytes(16), 0, 40, (5,))
DTYPES = [dtype for dtype in WireDtype if dtype is not WireDtype.NONE]


def rows(dtype: WireDtype) -> StageFrame:
    body = bytes(2 * row_bytes(dtype, WIDTH))
    return StageFrame(FrameKind.PREFILL, bytes(16), bytes(16), 0, 40, (1, 2), WIDTH, dtype, body=body)


def read(data: bytes) -> StageFrame:
    return decode_frame(data[LENGTH_BYTES:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_no_numbers(dtype: WireDtype) -> None:
    told = read(lie_about(rows(dtype), Lie.NAN))
    with pytest.raises(RemoteProtocolError):
        decode_activation(told)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_another_width_in_a_frame_that_is_whole(dtype: WireDtype) -> None:
    told = read(lie_about(rows(dtype), Lie.SHAPE))
    assert (told.hidden_size, told.tokens) == (WIDTH // 2, (1, 2))


@pytest.mark.parametrize("frame", [rows(WireDtype.F32), TOKEN])
def test_positions_and_noise(frame: StageFrame) -> None:
    assert read(lie_about(frame, Lie.POSITION)).position == 47
    noise = lie_about(frame, Lie.NOISE)
    assert len(noise) == len(encode_frame(frame))
    with pytest.raises(RemoteProtocolError):
        read(noise)


def test_tokens_are_none_or_too_many() -> None:
    assert read(lie_about(TOKEN, Lie.NAN)).tokens[0] > 1_000_000
    assert read(lie_about(TOKEN, Lie.SHAPE)).tokens == (5, 5)


def test_a_liar_lies_when_told_and_about_rows_and_tokens_alone() -> None:
    liar = Liar()
    told, cancel = encode_frame(TOKEN), encode_frame(replace(TOKEN, kind=FrameKind.CANCEL, tokens=()))
    assert liar.alter(told) == told
    liar.lie = Lie.POSITION
    assert liar.alter(told) == lie_about(TOKEN, Lie.POSITION)
    assert liar.alter(cancel) == cancel
    assert liar.alter(b"nonsense") == b"nonsense"


async def test_it_obeys_lines_and_hears_their_end() -> None:
    liar, ended = Liar(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    liar.follow(io.StringIO("shape\ntruth\nnoise\n"), lambda: token.run_sync_soon(ended.set))
    with trio.fail_after(10):
        await ended.wait()
    assert liar.lie is Lie.NOISE


class Recorder:
    """A network, and a stream, that keep what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.servers: dict[str, object] = {}
        self.remote_peer = "b"

    async def open_stream(self, peer: PeerId, protocol_id: str, timeout_s: float) -> "Recorder":
        return self

    def serve(self, protocol_id: str, server: object) -> None:
        self.servers[protocol_id] = server

    async def send(self, data: bytes) -> None:
        self.sent.append(data)

    def send_nowait(self, data: bytes) -> bool:
        self.sent.append(data)
        return True


async def test_only_streams_between_stages_lie() -> None:
    network, liar, told = Recorder(), Liar(), encode_frame(TOKEN)
    lying = LyingNetwork(network, liar)  # type: ignore[arg-type]
    liar.lie = Lie.SHAPE
    plain = await lying.open_stream(PeerId("b"), "/other/1", 1.0)
    await plain.send(told)
    stream = await lying.open_stream(PeerId("b"), STAGE_PROTOCOL, 1.0)
    assert stream.remote_peer == "b"
    await stream.send(told)
    assert stream.send_nowait(told)
    lie = lie_about(TOKEN, Lie.SHAPE)
    assert network.sent == [told, lie, lie]


async def test_what_is_served_lies_as_well() -> None:
    network, liar, told = Recorder(), Liar(), encode_frame(TOKEN)
    lying = LyingNetwork(network, liar)  # type: ignore[arg-type]
    liar.lie = Lie.SHAPE

    async def serve(stream: object) -> None:
        await stream.send(told)  # type: ignore[attr-defined]

    for protocol in ("/other/1", STAGE_PROTOCOL):
        lying.serve(protocol, serve)
        await network.servers[protocol](Recorder() if protocol == "/other/1" else network)  # type: ignore[operator]
    assert network.sent == [lie_about(TOKEN, Lie.SHAPE)]
