"""A byte stream to a relay, encrypted where its URL says so; and what it means that there is none."""

import ssl
from urllib.parse import urlsplit

import trio

from p2pmesh.wire.schema import as_line

CONNECT_TIMEOUT_S = 5.0
NETWORK_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

Stream = trio.SocketStream | trio.SSLStream

_MAX_LINE_BYTES = 200


class RelayUnavailable(Exception):
    """A relay cannot be reached, or breaks off; the text is one line."""


async def open_stream(url: str, trust: ssl.SSLContext) -> Stream:
    """A stream to the relay at ``url``, its certificate checked. Raises ``RelayUnavailable``.

    The caller closes it with ``trio.aclose_forcefully``.
    """
    parts = urlsplit(url)
    is_secure = parts.scheme == "wss"
    host, port = parts.hostname or "", parts.port or (443 if is_secure else 80)
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            stream = await trio.open_tcp_stream(host, port)
            return await _secured(stream, host, trust) if is_secure else stream
    except trio.TooSlowError:
        raise RelayUnavailable("no connection in time") from None
    except NETWORK_ERRORS as error:
        raise RelayUnavailable(line_of(error)) from None


async def _secured(stream: trio.SocketStream, host: str, trust: ssl.SSLContext) -> trio.SSLStream:
    secured = trio.SSLStream(stream, trust, server_hostname=host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


def line_of(error: BaseException) -> str:
    """What an error says, as a line: of a broken stream what broke it, of several attempts the first."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, ssl.SSLCertVerificationError):
        return as_line(f"its certificate is not believed: {cause.verify_message}", _MAX_LINE_BYTES)
    if isinstance(cause, OSError) and cause.strerror:
        return as_line(cause.strerror, _MAX_LINE_BYTES)
    return as_line(str(cause) or type(cause).__name__, _MAX_LINE_BYTES)
