"""Public listings: what a pool tells strangers of itself, as the content and tags of a Nostr event.

Owns the event's form (kind, tags, content), its id, and every rule by which a reader leaves a listing out. The curve of
Nostr's signatures is not known here: the check is given (``VerifyEvent``). Which listing counts of several is
``core.listings``', which pool is joined is decided above it, relays are ``adapters.nostr``'s.
Normative: ``protocols/listing.md``.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from p2pmesh.base.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId, is_peer_id
from p2pmesh.base.limits import (
    CLOCK_SKEW_MS,
    LISTING_INTERVAL_S,
    MAX_ADDRESS_BYTES,
    MAX_INVITE_BYTES,
    MAX_LISTED_CLIENTS,
    MAX_LISTED_MODELS,
    MAX_LISTED_WISHES,
    MAX_LISTING_ADDRESSES,
    MAX_LISTING_CONTENT_BYTES,
    MAX_LISTING_EVENT_BYTES,
    MAX_LISTING_LIFE_S,
    MAX_LISTING_NAME_BYTES,
    MAX_LISTING_TAGS,
    MAX_PEERS,
    PROTOCOL_GENERATION,
)
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.wire.invite import Invite, decode_invite, is_expired, names_peer
from p2pmesh.wire.schema import (
    Integer,
    ListOf,
    Optional,
    Text,
    as_line,
    checked_map,
    declared,
    from_map,
    is_line,
    without_defaults,
)
from p2pmesh.wire.shapes import MESH_ID, NAME
from p2pmesh.wire.signed import Verify

KIND = 31990
"""Addressable events for applications' handlers, which the field lists its meshes under."""
SERVICE = "p2pmesh"
"""Tags ``d`` and ``k``. Not Mesh LLM's own: its clients would take our pools for theirs."""
DELETION_KIND = 5
"""NIP-09."""

LIFE_S = 2 * LISTING_INTERVAL_S
"""From its creation to its expiration: one publication may be lost."""

VerifyEvent = Callable[[str, str, str], bool]
"""``(public key, event id, signature) -> bool``, all in lower-case hex: BIP-340 over secp256k1."""
Tags = tuple[tuple[str, ...], ...]

_LARGEST = 2**53
_NAMES = ListOf(NAME, MAX_LISTED_MODELS)
_WISHES = ListOf(NAME, MAX_LISTED_WISHES)
_LABEL = Optional(Text(MAX_LISTING_NAME_BYTES, is_line))
_HEX_32 = re.compile(r"[0-9a-f]{64}\Z")
_HEX_64 = re.compile(r"[0-9a-f]{128}\Z")
_SECONDS = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")
_EVENT_FIELDS = ("id", "pubkey", "created_at", "kind", "tags", "content", "sig")
_DETAIL_BYTES = 200
_ADDRESS = re.compile(
    r"/(?P<family>ip4|ip6)/(?P<host>[0-9a-fA-F.:]{2,45})/tcp/(?P<port>[1-9][0-9]{0,4})"
    r"(?:/p2p/(?P<peer>[^/]+)(?:/p2p-circuit/p2p/(?P<target>[^/]+))?)?\Z"
)
_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All of IPv6 that IANA gives out as global unicast. Beside it lie forms that carry IPv4 addresses, private ones too
(NAT64, IPv4-compatible), and what once was site-local; ``ipaddress`` calls several of them global."""
_SPECIAL = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Within what is global, and not: RFC 6890, RFC 7526, RFC 9637; which of them ``ipaddress`` knows changed lately."""


class RejectionReason(StrEnum):
    """Why a listing is left out."""

    EVENT_MALFORMED = "event_malformed"
    EVENT_TOO_LARGE = "event_too_large"
    SIGNATURE_INVALID = "signature_invalid"
    NOT_A_LISTING = "not_a_listing"
    """Another kind, or tags of another service."""
    DATED_AHEAD = "dated_ahead"
    EXPIRED = "expired"
    LIFE_TOO_LONG = "life_too_long"
    CONTENT_MALFORMED = "content_malformed"
    GENERATION_UNSUPPORTED = "generation_unsupported"
    INVITE_MALFORMED = "invite_malformed"
    INVITE_EXPIRED = "invite_expired"
    MESH_MISMATCH = "mesh_mismatch"
    NOT_PUBLIC = "not_public"
    """A mesh that was not founded to be listed: whoever lists it has got hold of an invite."""
    NO_ADDRESS = "no_address"
    """None that a stranger may make us dial."""
    SUPERSEDED = "superseded"
    """A newer one of the same publisher is known."""
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A listing that was left out: why, in one line what exactly, and whose it was as far as it says."""

    reason: RejectionReason
    detail: str
    publisher: str = ""


@dataclass(frozen=True, slots=True)
class ListingEvent:
    """A Nostr event whose id and signature were checked. Times are seconds since 1970, as Nostr has them."""

    event_id: str
    publisher: str
    created_unix_s: int
    kind: int
    tags: Tags
    content: str


@dataclass(frozen=True, slots=True)
class ListingContent:
    """What a pool says of itself; all of it is a claim. Names of fields are those of the field's own listings.

    ``max_clients`` 0 is no limit. ``addresses`` each name their peer and are dialled after those of the invite.
    """

    invite_token: str = declared(Text(MAX_INVITE_BYTES, is_line))
    serving: tuple[str, ...] = declared(_NAMES)
    total_vram_bytes: int = declared(Integer(0, _LARGEST))
    node_count: int = declared(Integer(1, MAX_PEERS))
    mesh_id: str = declared(MESH_ID)
    protocol_generation: int = declared(Integer(0, 65536))
    wanted: tuple[str, ...] = declared(_WISHES, ())
    on_disk: tuple[str, ...] = declared(_NAMES, ())
    client_count: int = declared(Integer(0, MAX_LISTED_CLIENTS), 0)
    max_clients: int = declared(Integer(0, MAX_LISTED_CLIENTS), 0)
    name: str | None = declared(_LABEL, None)
    region: str | None = declared(_LABEL, None)
    addresses: tuple[str, ...] = declared(ListOf(Text(MAX_ADDRESS_BYTES, names_peer), MAX_LISTING_ADDRESSES), ())


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing that passed every rule of a reader.

    ``content.addresses`` and those of ``invite`` hold only what a stranger may make us dial; ``content.invite_token``
    is the line as it came, which the pool wants to see in the hello.
    """

    content: ListingContent
    publisher: str
    created_unix_s: int
    expires_unix_s: int
    invite: Invite

    @property
    def mesh_id(self) -> MeshId:
        """The overlay."""
        return self.invite.mesh_id

    def is_over(self, now: UnixMillis) -> bool:
        """Whether its time is over, 30 s of clock skew forgiven."""
        return now > self.expires_unix_s * 1000 + CLOCK_SKEW_MS

    @property
    def addresses(self) -> tuple[str, ...]:
        """What can be dialled, in order: those of the invite, which its maker signed, then what the listing adds."""
        return (*self.invite.addresses, *self.invite.relay_addresses, *self.content.addresses)

    def peers(self, founder: PeerId) -> tuple[tuple[PeerId, tuple[str, ...]], ...]:
        """Who can be dialled, in order, each with its ``addresses``."""
        return replace(self.invite, addresses=self.addresses, relay_addresses=()).peers(founder)


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """By what a reader judges. ``takes_private``: for relays and pools of one's own network, loopback included."""

    now: UnixMillis
    verify: Verify
    takes_private: bool = False


# --- writing ------------------------------------------------------------------
def encode_content(content: ListingContent) -> str:
    """The event's content. ``LocalProtocolError`` where no reader would take it."""
    plain = without_defaults(content, checked_map(content))
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    size = len(text.encode())
    if size > MAX_LISTING_CONTENT_BYTES:
        message = f"a listing of {size} bytes; allowed are {MAX_LISTING_CONTENT_BYTES}"
        raise LocalProtocolError(ErrorCode.MESSAGE_TOO_LARGE, message)
    return text


def fitted(content: ListingContent, max_bytes: int) -> ListingContent | None:
    """``content`` without what matters least, so that it is written in ``max_bytes``; None where nothing helps.

    What is cut first says least about whether the pool is worth joining: files on disk, then wishes, then half of the
    served models at a time.
    """
    for smaller in (content, replace(content, on_disk=()), replace(content, on_disk=(), wanted=())):
        if _size(smaller) <= max_bytes:
            return smaller
    left = replace(content, on_disk=(), wanted=())
    while left.serving and _size(left) > max_bytes:
        left = replace(left, serving=left.serving[: len(left.serving) // 2])
    return left if _size(left) <= max_bytes else None


def listing_tags(expires_unix_s: int) -> Tags:
    """The tags of a listing."""
    return (("d", SERVICE), ("k", SERVICE), ("expiration", str(expires_unix_s)))


def deletion_tags(publisher: str, event_ids: tuple[str, ...]) -> Tags:
    """The tags of a NIP-09 request to delete a publisher's listing: by its coordinate, and by id for older relays."""
    coordinate = ("a", f"{KIND}:{publisher}:{SERVICE}")
    return (coordinate, ("k", str(KIND)), *(("e", event_id) for event_id in event_ids))


def event_id_of(publisher: str, created_unix_s: int, kind: int, tags: Tags, content: str) -> str:
    """sha256 over the canonical form of NIP-01, 64 hex digits."""
    canonical = [0, publisher, created_unix_s, kind, [list(tag) for tag in tags], content]
    return hashlib.sha256(json.dumps(canonical, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def _size(content: ListingContent) -> int:
    plain = without_defaults(content, checked_map(content))
    return len(json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode())


# --- reading ------------------------------------------------------------------
def decode_event(text: str, verify: VerifyEvent) -> ListingEvent | Rejection:
    """The event of its JSON text, id and signature checked."""
    if len(text) > MAX_LISTING_EVENT_BYTES or len(text.encode("utf-8", "replace")) > MAX_LISTING_EVENT_BYTES:
        return _rejected(RejectionReason.EVENT_TOO_LARGE, f"more than {MAX_LISTING_EVENT_BYTES} bytes")
    try:
        plain = _plain_json(text)
    except ValueError as error:
        return _rejected(RejectionReason.EVENT_MALFORMED, f"no JSON ({error})")
    problem = _problem_of_event(plain)
    if problem:
        return _rejected(RejectionReason.EVENT_MALFORMED, problem)
    event = ListingEvent(
        plain["id"], plain["pubkey"], plain["created_at"], plain["kind"],
        tuple(tuple(tag) for tag in plain["tags"]), plain["content"],
    )  # fmt: skip
    right_id = event_id_of(event.publisher, event.created_unix_s, event.kind, event.tags, event.content)
    if event.event_id != right_id:
        return Rejection(RejectionReason.SIGNATURE_INVALID, "the id is not that of the event", event.publisher)
    if not verify(event.publisher, event.event_id, plain["sig"]):
        return Rejection(RejectionReason.SIGNATURE_INVALID, "the signature does not fit", event.publisher)
    return event


def decode_listing(event: ListingEvent, rules: ReadingRules) -> Listing | Rejection:
    """The listing of an event, or the first rule that it breaks."""
    try:
        return _listing_of(event, rules)
    except _Broken as broken:
        return Rejection(broken.reason, as_line(str(broken), _DETAIL_BYTES), event.publisher)


class _Broken(Exception):
    """A rule is broken; never leaves this module."""

    def __init__(self, reason: RejectionReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _listing_of(event: ListingEvent, rules: ReadingRules) -> Listing:
    expires_unix_s = _checked_times(event, rules.now)
    content = _content_of(event.content)
    if content.protocol_generation != PROTOCOL_GENERATION:
        text = f"it speaks generation {content.protocol_generation}, we speak {PROTOCOL_GENERATION}"
        raise _Broken(RejectionReason.GENERATION_UNSUPPORTED, text)
    invite = _invite_of(content, rules)
    kept = replace(content, addresses=_dialable(content.addresses, rules))
    invite = replace(
        invite,
        addresses=_dialable(invite.addresses, rules),
        relay_addresses=_dialable(invite.relay_addresses, rules),
    )
    if not (kept.addresses or invite.addresses or invite.relay_addresses):
        raise _Broken(RejectionReason.NO_ADDRESS, "it names no public address to dial")
    return Listing(kept, event.publisher, event.created_unix_s, expires_unix_s, invite)


def _checked_times(event: ListingEvent, now: UnixMillis) -> int:
    """The expiry of an event that is a listing of ours, and of now."""
    if event.kind != KIND or any(_tag(event, name) != SERVICE for name in ("d", "k")):
        raise _Broken(RejectionReason.NOT_A_LISTING, "another kind, or tags of another service")
    expiration = _tag(event, "expiration")
    if expiration is None or not _SECONDS.match(expiration):
        raise _Broken(RejectionReason.EVENT_MALFORMED, "no expiration in whole seconds")
    expires = int(expiration)
    if event.created_unix_s * 1000 > now + CLOCK_SKEW_MS:
        text = f"dated {event.created_unix_s - now // 1000} s ahead of our clock"
        raise _Broken(RejectionReason.DATED_AHEAD, text)
    if now > expires * 1000 + CLOCK_SKEW_MS:
        raise _Broken(RejectionReason.EXPIRED, "its time is over")
    if not 0 < expires - event.created_unix_s <= MAX_LISTING_LIFE_S:
        raise _Broken(RejectionReason.LIFE_TOO_LONG, f"it lives longer than {MAX_LISTING_LIFE_S} s, or not at all")
    return expires


def _tag(event: ListingEvent, name: str) -> str | None:
    """The value of the one tag of that name; None where there is none, or more than one."""
    found = [tag for tag in event.tags if tag and tag[0] == name]
    return found[0][1] if len(found) == 1 and len(found[0]) > 1 else None


def _content_of(text: str) -> ListingContent:
    if len(text.encode("utf-8", "replace")) > MAX_LISTING_CONTENT_BYTES:
        raise _Broken(RejectionReason.EVENT_TOO_LARGE, f"a content of more than {MAX_LISTING_CONTENT_BYTES} bytes")
    try:
        return from_map(ListingContent, _plain_json(text), "listing")
    except ValueError as error:
        raise _Broken(RejectionReason.CONTENT_MALFORMED, f"no JSON ({error})") from None
    except RemoteProtocolError as error:
        raise _Broken(RejectionReason.CONTENT_MALFORMED, error.message) from None


def _invite_of(content: ListingContent, rules: ReadingRules) -> Invite:
    try:
        invite = decode_invite(content.invite_token, rules.verify)
    except RemoteProtocolError as error:
        raise _Broken(RejectionReason.INVITE_MALFORMED, error.message) from None
    terms = invite.requirements
    if is_expired(invite, rules.now):
        raise _Broken(RejectionReason.INVITE_EXPIRED, "its invite is over")
    if invite.mesh_id != content.mesh_id:
        raise _Broken(RejectionReason.MESH_MISMATCH, "its invite is one to another mesh")
    if not terms.is_public:
        raise _Broken(RejectionReason.NOT_PUBLIC, "its mesh is not public; whoever listed it had no right to")
    if (content.name or "") != terms.pool_name:
        raise _Broken(RejectionReason.MESH_MISMATCH, "it goes by another name than its mesh was founded with")
    if not terms.generation_min <= PROTOCOL_GENERATION <= terms.generation_max:
        text = f"the mesh lets in generations {terms.generation_min} to {terms.generation_max}"
        raise _Broken(RejectionReason.GENERATION_UNSUPPORTED, text)
    return invite


# --- addresses ----------------------------------------------------------------
def is_public_address(address: str) -> bool:
    """Whether a stranger may make us dial a multiaddr: TCP at a global IP address, perhaps on by a relay to a peer.

    Names are not: what they lead to is known only when they are dialled, and may be the router at home.
    """
    host = _host_of(address)
    if host is None or not host.is_global or host.is_multicast or any(host in one for one in _SPECIAL):
        return False
    if isinstance(host, IPv6Address):
        return host in _GLOBAL_IPV6 and host.sixtofour is None and host.teredo is None
    return True


def _dialable(addresses: tuple[str, ...], rules: ReadingRules) -> tuple[str, ...]:
    if rules.takes_private:
        return tuple(address for address in addresses if _host_of(address) is not None)
    return tuple(address for address in addresses if is_public_address(address))


def _host_of(address: str) -> IPv4Address | IPv6Address | None:
    """The host of a multiaddr of the one form that is dialled; None of every other."""
    match = _ADDRESS.match(address)
    if match is None or int(match["port"]) > 65535:
        return None
    if not all(is_peer_id(peer) for peer in (match["peer"], match["target"]) if peer is not None):
        return None
    try:
        host = ip_address(match["host"])
    except ValueError:
        return None
    return host if host.version == int(match["family"][2:]) else None


# --- JSON ---------------------------------------------------------------------
def _plain_json(text: str) -> Any:
    """The value of JSON text. Raises ``ValueError`` with a short reason."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg.lower()) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("a key twice")
    return plain


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _problem_of_event(plain: Any) -> str:
    """What is wrong with the form of an event; empty where nothing is."""
    if not isinstance(plain, dict) or any(name not in plain for name in _EVENT_FIELDS):
        return "a field is missing"
    hex_fields = (("id", _HEX_32), ("pubkey", _HEX_32), ("sig", _HEX_64))
    wrong = [name for name, form in hex_fields if not isinstance(plain[name], str) or not form.match(plain[name])]
    whole = ("created_at", "kind")
    wrong += [name for name in whole if type(plain[name]) is not int or not 0 <= plain[name] <= _LARGEST]
    if not isinstance(plain["content"], str) or not _is_utf8(plain["content"]):
        wrong.append("content")
    if not _are_tags(plain["tags"]):
        wrong.append("tags")
    return f"not of the right form: {', '.join(wrong)}" if wrong else ""


def _are_tags(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_LISTING_TAGS:
        return False
    return all(isinstance(tag, list) and all(isinstance(part, str) and _is_utf8(part) for part in tag) for tag in value)


def _is_utf8(text: str) -> bool:
    """Whether text has a UTF-8 form: JSON can spell a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _rejected(reason: RejectionReason, detail: str) -> Rejection:
    return Rejection(reason, as_line(detail, _DETAIL_BYTES))
