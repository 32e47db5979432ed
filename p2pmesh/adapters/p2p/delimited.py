"""Messages of libp2p's own protocols: protobuf after its length as a varint. Owns the limit on what is read."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError

MAX_DELIMITED_BYTES = 4096
"""The bound of the relay and hole punching specifications."""

M = TypeVar("M", bound=Message)


async def send_delimited(stream: PeerStream, message: Message) -> None:
    """One message; ``PeerUnavailable``."""
    data = message.SerializeToString()
    length = len(data)
    prefix = bytes((length,)) if length < 128 else bytes((length & 0x7F | 0x80, length >> 7))
    await stream.send(prefix + data)


async def receive_delimited(stream: PeerStream, kind: type[M]) -> M:
    """The next message; ``PeerUnavailable``, ``RemoteProtocolError`` for one that is too long or no such message."""
    length = (await stream.receive_exactly(1))[0]
    if length & 0x80:
        length = length & 0x7F | (await stream.receive_exactly(1))[0] << 7
    if length > MAX_DELIMITED_BYTES:
        raise RemoteProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a message of {length} bytes", culprit=stream.remote_peer
        )
    message = kind()
    try:
        message.ParseFromString(await stream.receive_exactly(length) if length else b"")
    except DecodeError as error:
        text = f"no {kind.__name__}"
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, text, culprit=stream.remote_peer) from error
    return message
