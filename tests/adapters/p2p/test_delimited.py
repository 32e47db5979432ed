"""Lengths before messages of libp2p's protocols, on both sides of every byte that they grow by."""

from typing import cast

import pytest
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.utils.varint import encode_varint_prefixed

from p2pmesh.adapters.p2p.autonat import MAX_IDENTIFY_BYTES, read_observed
from p2pmesh.adapters.p2p.delimited import MAX_DELIMITED_BYTES, receive_delimited, send_delimited
from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import PeerId

PEER = PeerId("somebody")
PREFIXES = {
    0: "00", 2: "02", 127: "7f", 128: "8001", 300: "ac02", 4096: "8020", 16_383: "ff7f", 16_384: "808001",
    65_536: "808004", 2_097_151: "ffff7f", 2_097_152: "80808001",
}  # fmt: skip
INVALID = {
    "a byte more than is allowed": ("8120", ErrorCode.MESSAGE_TOO_LARGE),
    "three bytes, too long": ("808001", ErrorCode.MESSAGE_TOO_LARGE),
    "the most that four bytes say": ("ffffff7f", ErrorCode.MESSAGE_TOO_LARGE),
    "padded zero": ("8000", ErrorCode.MESSAGE_MALFORMED),
    "padded two": ("828000", ErrorCode.MESSAGE_MALFORMED),
    "five bytes": ("8080808001", ErrorCode.MESSAGE_MALFORMED),
    "no end": ("ff" * 12, ErrorCode.MESSAGE_MALFORMED),
    "no such message": ("02ffff", ErrorCode.MESSAGE_MALFORMED),
}


class Loop:
    """A stream that gives back what was sent; it ends where that does."""

    remote_peer = PEER

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    async def send(self, data: bytes) -> None:
        self.data += data

    async def receive_exactly(self, count: int) -> bytes:
        assert 0 < count <= len(self.data)
        taken, self.data = self.data[:count], self.data[count:]
        return taken


def stream(data: bytes = b"") -> PeerStream:
    return cast(PeerStream, Loop(data))


def identify_of(size_bytes: int) -> Identify:
    """A message of exactly so many bytes; there is none of one byte, nor where a length within begins to grow."""
    if not size_bytes:
        return Identify()
    for spare in range(2, 8):
        message = Identify(agent_version="a" * max(0, size_bytes - spare))
        if message.ByteSize() == size_bytes:
            return message
    raise AssertionError(size_bytes)


@pytest.mark.parametrize(("size_bytes", "prefix"), PREFIXES.items())
async def test_a_message_of_any_length_comes_back_with_the_prefix_that_others_write(
    size_bytes: int, prefix: str
) -> None:
    message = identify_of(size_bytes)
    line = Loop()
    await send_delimited(cast(PeerStream, line), message)
    assert line.data == bytes.fromhex(prefix) + message.SerializeToString()
    assert line.data == encode_varint_prefixed(message.SerializeToString())
    assert await receive_delimited(cast(PeerStream, line), Identify, size_bytes) == message
    assert line.data == b""


@pytest.mark.parametrize(("data", "code"), INVALID.values(), ids=INVALID)
async def test_a_bad_length_is_refused_with_whoever_sent_it_and_no_byte_after_it_is_waited_for(
    data: str, code: ErrorCode
) -> None:
    with pytest.raises(RemoteProtocolError) as failure:
        await receive_delimited(stream(bytes.fromhex(data)), Identify, MAX_DELIMITED_BYTES)
    assert (failure.value.code, failure.value.culprit) == (code, PEER)


async def test_an_identify_message_may_be_longer_and_not_without_end() -> None:
    long = identify_of(MAX_IDENTIFY_BYTES).SerializeToString()
    assert await read_observed(stream(encode_varint_prefixed(long))) is None  # it does not say where it sees us
    with pytest.raises(RemoteProtocolError) as failure:
        await read_observed(stream(encode_varint_prefixed(long + b" ")))
    assert failure.value.code is ErrorCode.MESSAGE_TOO_LARGE
