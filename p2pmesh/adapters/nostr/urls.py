"""Addresses of relays as an operator writes them."""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_RELAYS
from p2pmesh.wire.schema import as_line

_MAX_URL_BYTES = 256


def checked_relays(urls: Iterable[str], option: str = "--relay") -> tuple[str, ...]:
    """The relays named, each once, in their order. ``ConfigError(ADDRESS_INVALID)`` says what is wrong with which."""
    found = tuple(dict.fromkeys(_checked(url, option) for url in urls))
    if len(found) > MAX_RELAYS:
        message = f"{option} is given {len(found)} times; at most {MAX_RELAYS} relays are used"
        raise ConfigError(ErrorCode.CONFIG_INVALID, message)
    return found


def is_of_own_network(url: str) -> bool:
    """Whether a relay is written as a private or loopback address, so that pools there are of one's own network too."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or not ip_address(host).is_global
    except ValueError:
        return False


def _checked(url: str, option: str) -> str:
    problem = _problem_of(url)
    if problem:
        shown = as_line(url, 80)
        message = f"{option} {shown!r} {problem}; write for example wss://relay.example.org"
        raise ConfigError(ErrorCode.ADDRESS_INVALID, message)
    parts = urlsplit(url)
    host = parts.netloc.lower().removesuffix(":443" if parts.scheme.lower() == "wss" else ":80")
    return f"{parts.scheme.lower()}://{host}{parts.path.rstrip('/')}"


def _problem_of(url: str) -> str:
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > _MAX_URL_BYTES:
        return f"is no URL of at most {_MAX_URL_BYTES} plain characters"
    try:
        parts = urlsplit(url)
        return _problem_of_parts(parts, parts.port)
    except ValueError:
        return "has a host or port that is none"


def _problem_of_parts(parts: SplitResult, port: int | None) -> str:
    if parts.scheme.lower() not in ("wss", "ws"):
        return "does not begin with wss:// (or ws:// for a relay of one's own)"
    if not parts.hostname or port == 0:
        return "names no host and port"
    parts.hostname.encode("idna")  # as the resolver does, which raises on an empty or overlong label
    if parts.username is not None or parts.password is not None:
        return "holds a user or password, which relays do not take"
    if parts.query or parts.fragment:
        return "has something after its path"
    return ""
