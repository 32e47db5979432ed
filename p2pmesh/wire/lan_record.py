"""What a node tells its local network by DNS-SD: that it is there, and to whom it may be of use.

Owns the TXT fields (those of the field's own LAN listings), their limits, and the fingerprint by which a holder of an
invite finds its mesh and a stranger does not. Multicast is ``adapters.mdns``'; who is met is ``core.lan``'s; whether
who answers is a member is asked of it (``proof_query``). Normative: ``protocols/lan.md``.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address

from p2pmesh.base.errors import ErrorCode, RemoteProtocolError
from p2pmesh.base.ids import MeshId, PeerId, is_peer_id
from p2pmesh.base.limits import (
    MAX_INVITE_BYTES,
    MAX_LAN_ADDRESSES,
    MAX_LAN_FIELDS,
    MAX_LAN_VALUE_BYTES,
    MAX_LISTED_MODELS,
    MAX_LISTED_WISHES,
    MAX_VERSION_BYTES,
    PROTOCOL_GENERATION,
)
from p2pmesh.wire.listing import ListingContent
from p2pmesh.wire.schema import from_map, is_line

SERVICE_TYPE = "_p2pmesh._tcp.local."
"""Not Mesh LLM's own: its clients would take our nodes for theirs, and could not join."""
SERVICE = "p2pmesh"
SCHEMA = 1
TTL_S = 120
"""What readers keep a record for: a node that ends without a word is gone after so long."""
CHALLENGE_BYTES = 8
FINGERPRINT_BYTES = 8
FINGERPRINT_DOMAIN = b"p2pmesh-lan-v1"
MAX_JOIN_PARTS = -(-MAX_INVITE_BYTES // MAX_LAN_VALUE_BYTES)

Txt = tuple[tuple[str, str], ...]
"""Fields in their order, keys once."""

_HEX_16 = re.compile(r"[0-9a-f]{16}\Z")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")
_ADDRESS = re.compile(r"/ip[46]/[0-9a-fA-F.:]{2,45}/tcp/[1-9][0-9]{0,4}\Z")


@dataclass(frozen=True, slots=True)
class LanRecord:
    """One node's word. ``addresses`` are TCP multiaddrs without the peer; ``listing`` only of a pool for everyone."""

    peer: PeerId
    addresses: tuple[str, ...]
    challenge: bytes
    fingerprint: bytes
    version: str = ""
    generation: int = PROTOCOL_GENERATION
    listing: ListingContent | None = None

    def is_of(self, mesh: MeshId) -> bool:
        """Whether the node says that it belongs to a mesh, which only those can tell who know its id."""
        return self.fingerprint == fingerprint_of(mesh, self.peer, self.challenge)

    @property
    def dialable(self) -> tuple[str, ...]:
        """The addresses, each with its peer."""
        return tuple(f"{address}/p2p/{self.peer}" for address in self.addresses)


def fingerprint_of(mesh: MeshId, peer: PeerId, challenge: bytes) -> bytes:
    """First 8 bytes of sha256(domain, zero byte, challenge, mesh id, zero byte, peer id).

    Bound to the peer, so that nobody can show another's; salted, so that it names the mesh to its members alone.
    """
    digest = hashlib.sha256(FINGERPRINT_DOMAIN + b"\0" + challenge + mesh.encode() + b"\0" + peer.encode())
    return digest.digest()[:FINGERPRINT_BYTES]


# --- writing ------------------------------------------------------------------
def encode_txt(record: LanRecord) -> Txt:
    """The TXT fields. Lists are cut after the last item that fits, and items that hold a bar are left out."""
    fields = [
        ("svc", SERVICE),
        ("schema", str(SCHEMA)),
        ("version", record.version),
        ("generation", str(record.generation)),
        ("peer", record.peer),
        ("ep_addr", _joined(record.addresses[:MAX_LAN_ADDRESSES])),
        ("proof_challenge", record.challenge.hex()),
        ("tok_fp", record.fingerprint.hex()),
    ]
    if record.listing is not None:
        fields += _listing_fields(record.listing)
    return tuple((key, value) for key, value in fields if value)


def _listing_fields(listing: ListingContent) -> list[tuple[str, str]]:
    token = listing.invite_token
    parts = [token[start : start + MAX_LAN_VALUE_BYTES] for start in range(0, len(token), MAX_LAN_VALUE_BYTES)]
    numbers = (
        ("nodes", listing.node_count), ("clients", listing.client_count), ("max_clients", listing.max_clients),
        ("vram", listing.total_vram_bytes),
    )  # fmt: skip
    return [
        ("mesh_id", listing.mesh_id),
        ("name", listing.name or ""),
        ("region", listing.region or ""),
        *((key, str(value)) for key, value in numbers),
        ("serving", _joined(listing.serving)),
        ("wanted", _joined(listing.wanted)),
        ("on_disk", _joined(listing.on_disk)),
        *((_join_key(index), part) for index, part in enumerate(parts)),
    ]


def _join_key(index: int) -> str:
    return "join" if index == 0 else f"join{index + 1}"


def _joined(items: Iterable[str]) -> str:
    text = ""
    for item in items:
        if "|" in item or not item:
            continue
        longer = f"{text}|{item}" if text else item
        if len(longer.encode()) > MAX_LAN_VALUE_BYTES:
            break
        text = longer
    return text


# --- reading ------------------------------------------------------------------
def without_loopback(addresses: Iterable[str]) -> tuple[str, ...]:
    """Those of multiaddrs that are not of the reader's own machine: a record could lead to any service there."""
    return tuple(text for text in addresses if not _is_loopback(text))


def _is_loopback(text: str) -> bool:
    try:
        host = ip_address(text.split("/")[2])
    except (ValueError, IndexError):
        return False
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return (mapped or host).is_loopback or (mapped or host).is_unspecified


def decode_txt(fields: Mapping[str, str], *, takes_loopback: bool = False) -> LanRecord:
    """The record of TXT fields; unknown ones are left out. ``takes_loopback``: where there is no other interface.

    Raises ``RemoteProtocolError``: ``MESSAGE_TOO_LARGE``, ``MESSAGE_MALFORMED``, ``GENERATION_UNSUPPORTED``.
    """
    if len(fields) > MAX_LAN_FIELDS or any(len(value.encode()) > MAX_LAN_VALUE_BYTES for value in fields.values()):
        text = f"at most {MAX_LAN_FIELDS} TXT fields of at most {MAX_LAN_VALUE_BYTES} bytes are read"
        raise RemoteProtocolError(ErrorCode.MESSAGE_TOO_LARGE, text)
    if not all(is_line(value) for value in fields.values()):
        raise _malformed("a value is no line")
    if fields.get("svc") != SERVICE or fields.get("schema") != str(SCHEMA):
        raise _malformed(f"it is not of service {SERVICE}, schema {SCHEMA}")
    generation = _number(fields, "generation")
    if generation != PROTOCOL_GENERATION:
        text = f"it speaks generation {generation}, we speak {PROTOCOL_GENERATION}"
        raise RemoteProtocolError(ErrorCode.GENERATION_UNSUPPORTED, text)
    peer = fields.get("peer", "")
    if not is_peer_id(peer):
        raise _malformed("peer is no peer id")
    told = tuple(filter(_ADDRESS.match, _split(fields.get("ep_addr", ""))))[:MAX_LAN_ADDRESSES]
    addresses = told if takes_loopback else without_loopback(told)
    record = LanRecord(
        PeerId(peer), addresses, _hex(fields, "proof_challenge"), _hex(fields, "tok_fp"),
        fields.get("version", "")[:MAX_VERSION_BYTES], generation,
    )  # fmt: skip
    return replace(record, listing=_listing_of(fields, record)) if "join" in fields else record


def _listing_of(fields: Mapping[str, str], record: LanRecord) -> ListingContent:
    """By the rules of a public listing; what it leaves to be checked of the invite, its reader checks."""
    parts = [fields.get(_join_key(index), "") for index in range(MAX_JOIN_PARTS)]
    whole = parts[: parts.index("")] if "" in parts else parts
    plain = {
        "invite_token": "".join(whole),
        "serving": _split(fields.get("serving", ""))[:MAX_LISTED_MODELS],
        "wanted": _split(fields.get("wanted", ""))[:MAX_LISTED_WISHES],
        "on_disk": _split(fields.get("on_disk", ""))[:MAX_LISTED_MODELS],
        "total_vram_bytes": _number(fields, "vram"),
        "node_count": _number(fields, "nodes"),
        "client_count": _number(fields, "clients"),
        "max_clients": _number(fields, "max_clients"),
        "mesh_id": fields.get("mesh_id", ""),
        "protocol_generation": record.generation,
        "name": fields.get("name") or None,
        "region": fields.get("region") or None,
        "addresses": list(record.dialable),
    }
    content: ListingContent = from_map(ListingContent, plain, "lan record")
    if not record.is_of(MeshId(content.mesh_id)):
        raise _malformed("tok_fp is not that of mesh_id")
    return content


def _split(value: str) -> list[str]:
    return [item for item in value.split("|") if item]


def _number(fields: Mapping[str, str], key: str) -> int:
    value = fields.get(key, "0")
    if not _NUMBER.match(value):
        raise _malformed(f"{key} is no number")
    return int(value)


def _hex(fields: Mapping[str, str], key: str) -> bytes:
    value = fields.get(key, "")
    if not _HEX_16.match(value):
        raise _malformed(f"{key} is not 16 hex digits")
    return bytes.fromhex(value)


def _malformed(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, f"a record of the local network is refused: {reason}")
