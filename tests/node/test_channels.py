"""What leaves a node in refusals and ERROR frames: no local paths; and frames that come together."""

import string

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.node.channels import MAX_FRAMES_AT_ONCE, FrameStream, MessageStream, refusal_of, without_paths
from p2pmesh.wire.control import decode_control
from p2pmesh.wire.messages.answers import Refusal
from p2pmesh.wire.stage import (
    LENGTH_BYTES,
    FrameKind,
    StageFrame,
    decode_error,
    decode_frame,
    encode_frame,
    error_frame,
)
from tests.fakes.network import FakePipe, FakeStream

SECRET = "llama.cpp cannot load /home/jane/.p2pmesh/cache/stages/ab12.gguf: bad magic"
SHOWN = "llama.cpp cannot load ab12.gguf: bad magic"


class Recorder:
    """Implements ``ports.network.ByteStream`` as far as sending goes."""

    remote_peer = PeerId("somebody")

    def __init__(self) -> None:
        self.sent = b""

    async def send(self, data: bytes) -> None:
        self.sent += data

    def send_nowait(self, data: bytes) -> bool:
        self.sent += data
        return True

    async def receive_exactly(self, count: int) -> bytes:
        raise NotImplementedError

    def receive_nowait(self, count: int) -> bytes | None:
        raise NotImplementedError

    async def finish(self) -> None:
        raise NotImplementedError

    async def reset(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SECRET, SHOWN),
        ("cannot use /home/jane", "cannot use …"),
        ("cannot use /home/jane doe/my models/x.gguf: no space", "cannot use x.gguf: no space"),
        ("[Errno 13] Permission denied: '/root/a/b'", "[Errno 13] Permission denied: '…'"),
        ('open("/root/x.gguf") failed', 'open("x.gguf") failed'),
        ("no room in /srv/cache, 5 bytes free; see /var/log/x", "no room in …, 5 bytes free; see …"),
        ("the disk at /data/cache is full.", "the disk at … is full."),
        ("path=/data/o'brien/x failed", "path=… failed"),
        (r"cannot load C:\Users\jane\x.gguf: bad", "cannot load x.gguf: bad"),
        (r"cannot load \\server\jane\x: bad", "cannot load …: bad"),
        ("see ~/.p2pmesh/key", "see …"),
        ("see file:///home/jane/key", "see …"),
        ("/home/jane/x.gguf changed while it was read", "x.gguf changed while it was read"),
    ],
)
def test_local_paths_are_taken_out(text: str, shown: str) -> None:
    assert without_paths(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "3 of 4 lanes, 12 tokens/s, and/or 1 / 2",
        "peer x at /ip4/127.0.0.1/tcp/4001/p2p/12D3KooW does not answer",
        "the peer does not speak /mesh-llm/1 or /skippy-stage/2",
        "ask http://127.0.0.1:8000/v1/models for it: ok",
        "",
    ],
)
def test_what_is_no_local_path_stays(text: str) -> None:
    assert without_paths(text) == text


NAMES = st.text(string.ascii_letters + " éü_-.'", min_size=1, max_size=8).map(lambda name: f"Q{name}Q")


@given(st.lists(NAMES, min_size=1, max_size=5), st.sampled_from(["cannot load ", "at '", "(", ""]), st.text(max_size=9))
def test_no_directory_of_any_path_is_left(folders: list[str], before: str, after: str) -> None:
    shown = without_paths(f"{before}/{'/'.join(folders)}/x.gguf: {after}")
    assert "Q" not in shown.removesuffix(after)


async def test_a_refusal_leaves_without_paths() -> None:
    for refusal in (refusal_of(ErrorCode.DISK_FULL, SECRET), Refusal("disk_full", SECRET)):
        recorder = Recorder()
        await MessageStream(recorder).send(refusal)
        assert decode_control(recorder.sent[1:]) == Refusal("disk_full", SHOWN)


async def test_an_error_frame_leaves_without_paths() -> None:
    recorder = Recorder()
    cause = StageFrame(FrameKind.DECODE, b"q" * 16, b"r" * 16, 3)
    await FrameStream(recorder).send(error_frame(cause, ErrorCode.ENGINE_CRASHED, SECRET))
    frame = decode_frame(recorder.sent[LENGTH_BYTES:])
    assert decode_error(frame) == (ErrorCode.ENGINE_CRASHED, SHOWN)
    assert (frame.request_id, frame.run_id, frame.sequence) == (cause.request_id, cause.run_id, cause.sequence)


def stream_pair() -> tuple[FakeStream, FakeStream]:
    there, back = FakePipe(), FakePipe()
    return FakeStream(PeerId("far"), back, there), FakeStream(PeerId("near"), there, back)


def token(position: int) -> StageFrame:
    return StageFrame(FrameKind.TOKEN, b"q" * 16, b"r" * 16, 3, position, (position,))


async def test_frames_that_are_sent_at_once_are_read_at_once() -> None:
    near, far = stream_pair()
    frames = [token(position) for position in range(MAX_FRAMES_AT_ONCE + 2)]
    sender, reader = FrameStream(near), FrameStream(far)
    sender.outlet.hold()
    for frame in frames:
        await sender.send(frame)
    sender.outlet.let_go()
    assert far.receive_nowait(1) is None
    await sender.outlet.flush()
    assert await reader.receive_all() == frames[:MAX_FRAMES_AT_ONCE]
    assert await reader.receive_all() == frames[MAX_FRAMES_AT_ONCE:]


@pytest.mark.parametrize("sent", range(1, 2 * len(encode_frame(token(1)))))
async def test_a_frame_that_is_not_whole_yet_is_read_when_it_is(sent: int) -> None:
    near, far = stream_pair()
    data = encode_frame(token(1)) + encode_frame(token(2))
    reader = FrameStream(far)
    heard: list[StageFrame] = []

    async def read() -> None:
        while len(heard) < 2:
            heard.extend(await reader.receive_all())

    async with trio.open_nursery() as nursery:
        await near.send(data[:sent])
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert len(heard) == sent // len(encode_frame(token(1)))
        await near.send(data[sent:])
    assert heard == [token(1), token(2)]


async def test_whoever_sends_garbage_behind_a_frame_is_told_of() -> None:
    near, far = stream_pair()
    await near.send(encode_frame(token(1)) + b"\xff" * 20)
    with pytest.raises(RemoteProtocolError) as caught:
        await FrameStream(far).receive_all()
    assert caught.value.culprit == far.remote_peer
