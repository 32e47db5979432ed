"""What leaves a node in refusals and ERROR frames: no local paths."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.node.channels import FrameStream, MessageStream, refusal_of, without_paths
from p2pmesh.wire.control import Refusal, decode_control
from p2pmesh.wire.stage import LENGTH_BYTES, FrameKind, StageFrame, decode_error, decode_frame, error_frame

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
