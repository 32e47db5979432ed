"""What a relay says it takes (NIP-11): asked by HTTP before the first event, and again after an hour."""

import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11
import trio

from p2pmesh.adapters.nostr.streams import NETWORK_ERRORS, RelayUnavailable, Stream, open_stream
from p2pmesh.base.quantities import KIB

_MAX_DOCUMENT_BYTES = 64 * KIB
_READ_BYTES = 16 * KIB
_TIMEOUT_S = 2.0
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class StatedLimits:
    """None where the relay says nothing. Times are seconds by which ``created_at`` may differ from its clock."""

    max_content_bytes: int | None = None
    max_message_bytes: int | None = None
    max_ahead_s: int | None = None


NOTHING_STATED = StatedLimits()


async def fetch_limits(url: str, trust: ssl.SSLContext) -> StatedLimits:
    """The limits of the relay at ``url``; ``NOTHING_STATED`` where it says none in two seconds. Never raises."""
    document = b""
    with trio.move_on_after(_TIMEOUT_S):
        try:
            stream = await open_stream(url, trust)
            try:
                document = await _document_of(stream, url)
            finally:
                await trio.aclose_forcefully(stream)
        except (RelayUnavailable, h11.RemoteProtocolError, *NETWORK_ERRORS):
            pass  # the visit itself will tell
    return limits_of(document)


async def _document_of(stream: Stream, url: str) -> bytes:
    """The body of the answer; none for one that is too long, or no success."""
    parts = urlsplit(url)
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_READ_BYTES)
    headers = [("Host", parts.netloc), ("Accept", "application/nostr+json"), ("Connection", "close")]
    await stream.send_all(http.send(h11.Request(method="GET", target=parts.path or "/", headers=headers)) or b"")
    await stream.send_all(http.send(h11.EndOfMessage()) or b"")
    body = b""
    while len(body) <= _MAX_DOCUMENT_BYTES:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some(_READ_BYTES))
        elif isinstance(event, h11.Response) and event.status_code != 200:
            return b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return body
        elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            return b""
    return b""


def limits_of(document: bytes) -> StatedLimits:
    """The limits of a relay's document; whatever is not of the right form says nothing."""
    try:
        plain = json.loads(document)
    except (ValueError, RecursionError):
        return NOTHING_STATED
    stated = plain.get("limitation") if isinstance(plain, dict) else None
    if not isinstance(stated, dict):
        return NOTHING_STATED
    return StatedLimits(
        _count(stated.get("max_content_length")),
        _count(stated.get("max_message_length")),
        _count(stated.get("created_at_upper_limit")),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None
