"""Proposing one protocol on a fresh stream, in a single round trip.

Owns the dialling side of multistream-select 1.0: our greeting and our proposal leave together, which every
implementation accepts, as it cannot tell. Answering is left to libp2p.
"""

from typing import Protocol

from libp2p.io.exceptions import IOException
from libp2p.stream_muxer.exceptions import MuxedStreamError

GREETING = "/multistream/1.0.0"
REFUSAL = "na"
MAX_LINE_BYTES = 1024


class NegotiationRefused(Exception):
    """The peer does not speak the protocol, or not multistream."""


class _Channel(Protocol):
    async def read(self, n: int | None = None) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


async def propose(channel: _Channel, protocol_id: str) -> None:
    """Agrees with the peer on ``protocol_id``; ``NegotiationRefused`` if it says no, answers badly or goes away."""
    try:
        await channel.write(encode_line(GREETING) + encode_line(protocol_id))
        greeting = await read_line(channel)
        if greeting != GREETING:
            raise NegotiationRefused("the peer does not speak multistream")
        answer = await read_line(channel)
    except (IOException, MuxedStreamError) as error:
        raise NegotiationRefused(f"the peer closed while agreeing on {protocol_id}") from error
    if answer != protocol_id:
        raise NegotiationRefused(f"the peer does not speak {protocol_id}")


def encode_line(text: str) -> bytes:
    """One line of multistream-select, its length first."""
    line = text.encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"protocol id of {len(line)} bytes")
    length = len(line)
    prefix = bytes((length,)) if length < 128 else bytes((length & 0x7F | 0x80, length >> 7))
    return prefix + line


async def read_line(channel: _Channel) -> str:
    """The next line without its end; ``NegotiationRefused`` for one that is none, and whatever the channel raises."""
    first = (await _read_exactly(channel, 1))[0]
    length = first
    if first & 0x80:
        second = (await _read_exactly(channel, 1))[0]
        length = first & 0x7F | second << 7
    if not 0 < length <= MAX_LINE_BYTES:
        raise NegotiationRefused("the peer's answer is too long")
    line = await _read_exactly(channel, length)
    if not line.endswith(b"\n"):
        raise NegotiationRefused("the peer's answer is not a line")
    return line[:-1].decode("utf-8", "replace")


async def _read_exactly(channel: _Channel, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await channel.read(count - len(data))
    return data
