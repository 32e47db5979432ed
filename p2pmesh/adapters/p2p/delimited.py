"""Messages of libp2p's own protocols: protobuf after its length as a varint. Owns the limit on what is
read where a caller has none of its own."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from p2pmesh.adapters.p2p.streams import PeerStream
from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.wire.varint import decode_varint, encode_varint

MAX_DELIMITED_BYTES = 4096
"""The bound of the relay and hole punching specifications."""

M = TypeVar("M", bound=Message)


async def send_delimited(stream: PeerStream, message: Message) -> None:
    """One message; ``PeerUnavailable``."""
    data = message.SerializeToString()
    await stream.send(encode_varint(len(data)) + data)


async def receive_delimited(stream: PeerStream, kind: type[M], limit_bytes: int = MAX_DELIMITED_BYTES) -> M:
    """The next message; ``PeerUnavailable``, ``RemoteProtocolError`` for one that is too long or no such message."""
    message = kind()
    try:
        length = await _receive_length(stream, limit_bytes)
        message.ParseFromString(await stream.receive_exactly(length) if length else b"")
    except DecodeError as error:
        text = f"no {kind.__name__}"
        raise RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, text, culprit=stream.remote_peer) from error
    except RemoteProtocolError as error:
        error.culprit = stream.remote_peer
        raise
    return message


async def _receive_length(stream: PeerStream, limit_bytes: int) -> int:
    length, prefix = None, b""
    while length is None:
        prefix += await stream.receive_exactly(1)
        length = decode_varint(prefix, limit_bytes)
    return length
