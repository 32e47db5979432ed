"""Lengths before messages: unsigned varints of multiformats, in the minimal form and within a limit."""

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.limits import MAX_VARINT_BYTES
from p2pmesh.wire.schema import malformed


def encode_varint(number: int) -> bytes:
    """Unsigned LEB128, as in multiformats."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(prefix: bytes, limit: int) -> int | None:
    """The number, or None while the prefix is incomplete; at most ``MAX_VARINT_BYTES``, minimal form, ``<= limit``."""
    number = 0
    for index, byte in enumerate(prefix):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if byte == 0 and index > 0:
                raise malformed("length", "not in minimal form")
            if number > limit:
                raise RemoteProtocolError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"a message of {number} bytes; allowed are {limit}"
                )
            return number
        if index + 1 >= MAX_VARINT_BYTES:
            raise malformed("length", f"longer than {MAX_VARINT_BYTES} bytes")
    return None
