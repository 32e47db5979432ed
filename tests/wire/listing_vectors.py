"""The vectors of public listings, for ``tests.wire.regenerate``: events as relays give them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from p2pmesh.wire import invite
from p2pmesh.wire.listing import (
    KIND,
    LIFE_S,
    Listing,
    ListingContent,
    ListingEvent,
    ReadingRules,
    RejectionReason,
    Tags,
    decode_listing,
    encode_content,
    event_id_of,
    listing_tags,
)
from p2pmesh.wire.requirements import MeshRequirements
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, STRANGER, TestKey, verify
from tests.wire.schnorr import NostrKey

Case = dict[str, Any]
R = RejectionReason
NOW_S = 1_780_000_000
NOW_MS = NOW_S * 1000
PUBLISHER = NostrKey("publisher")
OTHER = NostrKey("other")
ADDRESS = "/ip4/93.184.215.14/tcp/4001"
NAME = "the attic"
HOME = "/ip4/192.168.1.1/tcp/80"


def terms_of(key: TestKey = FOUNDER, name: str = NAME) -> MeshRequirements:
    """A public pool's."""
    return replace(key.requirements, is_public=True, pool_name=name)


def invite_line(key: TestKey = FOUNDER, *, addresses: tuple[str, ...] = (ADDRESS,), **changes: Any) -> str:
    """An invite of now."""
    issued_ms = NOW_MS - 1000
    made = invite.Invite(bytes(range(16)), terms_of(key), issued_ms, issued_ms + invite.LIFE_MS, addresses)
    return invite.encode_invite(replace(made, **changes), key.public_key, key.sign)


CONTENT = ListingContent(
    invite_line(), ("smollm2-135m", "qwen3-4b"), 24 << 30, 3, invite.mesh_id_of(terms_of()), 1,
    ("gemma-3-270m",), ("qwen3-8b",),
    2, 16, NAME, "eu-central", (f"{ADDRESS}/p2p/{JOINER.peer_id}",),
)  # fmt: skip


def named(name: str | None, **changes: Any) -> ListingContent:
    """``CONTENT`` of a pool of another name."""
    terms = terms_of(FOUNDER, name or "")
    line = invite_line(requirements=terms)
    return replace(CONTENT, invite_token=line, mesh_id=invite.mesh_id_of(terms), name=name, **changes)


PLAIN: Case = json.loads(encode_content(CONTENT))
TAGS = listing_tags(NOW_S - 5 + LIFE_S)


def event_of(
    content: str, *, tags: Tags = TAGS, created_unix_s: int = NOW_S - 5, kind: int = KIND, key: NostrKey = PUBLISHER
) -> Case:
    """A signed event."""
    event_id = event_id_of(key.public, created_unix_s, kind, tags, content)
    return {
        "id": event_id, "pubkey": key.public, "created_at": created_unix_s, "kind": kind,
        "tags": [list(tag) for tag in tags], "content": content, "sig": key.sign(event_id),
    }  # fmt: skip


def text_of(event: Any) -> str:
    """The JSON text of an event."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def _said(**changes: Any) -> str:
    return json.dumps({**PLAIN, **changes}, separators=(",", ":"), ensure_ascii=False)


def _without(name: str) -> str:
    return json.dumps({key: value for key, value in PLAIN.items() if key != name})


def _valid(name: str, event: Case, *, takes_private: bool = False) -> Case:
    plain = ListingEvent(event["id"], event["pubkey"], event["created_at"], event["kind"],
                         tuple(tuple(tag) for tag in event["tags"]), event["content"])  # fmt: skip
    listing = decode_listing(plain, ReadingRules(vectors_now(), verify, takes_private))
    assert isinstance(listing, Listing), (name, listing)
    case = {"name": name, "event": text_of(event), "value": listing_to_json(listing)}
    return {**case, "takes_private": True} if takes_private else case


def vectors_now() -> Any:
    """The time that every case is read at."""
    return NOW_MS


def listing_to_json(listing: Listing) -> Case:
    """What a reader takes from a listing."""
    return {
        "publisher": listing.publisher,
        "created_unix_s": listing.created_unix_s,
        "expires_unix_s": listing.expires_unix_s,
        "content": vectors.to_json(listing.content),
        "invite_addresses": [*listing.invite.addresses, *listing.invite.relay_addresses],
    }


def _valid_cases() -> list[Case]:
    v6 = f"/ip6/2606:2800:21f:cb07:6820:80da:af6b:8b2c/tcp/4001/p2p/{JOINER.peer_id}"
    relayed = f"{ADDRESS}/p2p/{STRANGER.peer_id}/p2p-circuit/p2p/{JOINER.peer_id}"
    bare = named(None, wanted=(), on_disk=(), client_count=0, max_clients=0, region=None, addresses=())
    nulls = {**json.loads(encode_content(bare)), "name": None, "region": None}
    lab = _said(
        addresses=[f"/ip4/127.0.0.1/tcp/4001/p2p/{JOINER.peer_id}"], invite_token=invite_line(addresses=(HOME,))
    )
    return [
        _valid("with every field", event_of(encode_content(CONTENT))),
        _valid("without what may be left out", event_of(encode_content(bare))),
        _valid("of a pool that serves nothing yet", event_of(_said(serving=[]))),
        _valid("with null for a name and a region", event_of(json.dumps(nulls))),
        _valid("with fields that no reader knows", event_of(_said(gpu="none", nested={"a": [1, {"b": None}]}))),
        _valid("with another tag", event_of(_said(), tags=(*TAGS, ("alt", "a pool of machines")))),
        _valid("with an expiration that has a third value", event_of(_said(), tags=(*TAGS[:2], (*TAGS[2], "x")))),
        _valid("made by a clock 30 s ahead", event_of(_said(), created_unix_s=NOW_S + 30,
                                                      tags=listing_tags(NOW_S + 30 + LIFE_S))),
        _valid("over for 30 s", event_of(_said(), created_unix_s=NOW_S - 150, tags=listing_tags(NOW_S - 30))),
        _valid("of the longest life", event_of(_said(), tags=listing_tags(NOW_S - 5 + 900))),
        _valid("over IPv6 and through a relay", event_of(_said(addresses=[v6, relayed]))),
        _valid("private addresses left out", event_of(_said(addresses=[
            f"{HOME}/p2p/{JOINER.peer_id}", v6, f"/ip4/100.64.3.4/tcp/1/p2p/{JOINER.peer_id}"]))),
        _valid("private addresses of the invite left out",
               event_of(_said(invite_token=invite_line(addresses=(HOME, ADDRESS))))),
        _valid("on one's own network", event_of(lab), takes_private=True),
    ]  # fmt: skip


def _changed_contents() -> Iterable[tuple[str, RejectionReason, str]]:
    malformed: dict[str, Case] = {
        "serving as text": {"serving": "smollm2-135m"},
        "a model that is a number": {"serving": [7]},
        "65 served models": {"serving": ["m"] * 65},
        "17 wishes": {"wanted": ["m"] * 17},
        "65 models on disk": {"on_disk": ["m"] * 65},
        "model name of 257 bytes": {"serving": ["m" * 257]},
        "line feed in a model's name": {"serving": ["a\nb"]},
        "text reordered by a mark in the name": {"name": "a\u202eb"},
        "escape in the region": {"region": "\u001b[2J"},
        "name of 65 bytes": {"name": "n" * 65},
        "name as a list": {"name": ["attic"]},
        "memory as a float": {"total_vram_bytes": 1.5},
        "memory beyond 2^53": {"total_vram_bytes": 2**53 + 1},
        "negative memory": {"total_vram_bytes": -1},
        "true as the number of nodes": {"node_count": True},
        "no nodes": {"node_count": 0},
        "10001 nodes": {"node_count": 10_001},
        "negative clients": {"client_count": -1},
        "clients as text": {"max_clients": "16"},
        "65537 clients": {"max_clients": 65_537},
        "mesh id of 31 digits": {"mesh_id": "a" * 31},
        "mesh id in upper case": {"mesh_id": "A" * 32},
        "mesh id nil": {"mesh_id": None},
        "nine addresses": {"addresses": [f"{ADDRESS}/p2p/{JOINER.peer_id}"] * 9},
        "address that names no peer": {"addresses": [ADDRESS]},
        "address of 513 bytes": {"addresses": ["/" * 513]},
        "invite as a list": {"invite_token": []},
        "line feed in the invite": {"invite_token": CONTENT.invite_token + "\n"},
        "generation as text": {"protocol_generation": "1"},
        "wanted nil": {"wanted": None},
    }
    yield from ((name, R.CONTENT_MALFORMED, _said(**change)) for name, change in malformed.items())
    for name in ("invite_token", "serving", "total_vram_bytes", "node_count", "mesh_id", "protocol_generation"):
        yield f"without {name}", R.CONTENT_MALFORMED, _without(name)
    texts = {
        "no content": "", "no JSON": "pool", "a list": "[]", "null": "null", "cut off": _said()[:-1],
        "two values": _said() + _said(), "a key twice": '{"node_count":3,' + _said()[1:],
        "not a number": _said(gpu=0).replace('"gpu":0', '"gpu":NaN'),
        "infinity": _said(gpu=0).replace('"gpu":0', '"gpu":-Infinity'),
        "a number of 5000 digits": _said(gpu=0).replace('"gpu":0', '"gpu":' + "9" * 5000),
        "nested 6000 deep": _said(gpu=0).replace('"gpu":0', '"gpu":' + "[" * 6000 + "]" * 6000),
        "half a character": _said(name="x").replace('"name":"x"', '"name":"\\ud800"'),
    }  # fmt: skip
    yield from ((name, R.CONTENT_MALFORMED, text) for name, text in texts.items())
    yield "content of 16385 bytes", R.EVENT_TOO_LARGE, "x" * 16_385
    yield "another generation", R.GENERATION_UNSUPPORTED, _said(protocol_generation=2)
    later = replace(terms_of(), generation_min=2, generation_max=3)
    yield (
        "a mesh of other generations",
        R.GENERATION_UNSUPPORTED,
        _said(invite_token=invite_line(requirements=later), mesh_id=invite.mesh_id_of(later)),
    )
    yield "an invite that is none", R.INVITE_MALFORMED, _said(invite_token="p2pmesh2-")
    yield "an invite cut off", R.INVITE_MALFORMED, _said(invite_token=CONTENT.invite_token[:-1])
    yield "a bearer token of Mesh LLM", R.INVITE_MALFORMED, _said(invite_token="eyJpZCI6IjEyMyJ9")
    yield "an invite that is over", R.INVITE_EXPIRED, _said(invite_token=invite_line(expires_unix_ms=NOW_MS - 30_001))
    yield "an invite to another mesh", R.MESH_MISMATCH, _said(invite_token=invite_line(STRANGER))
    yield "another name than the mesh's", R.MESH_MISMATCH, _said(name="the cellar")
    yield "no name where the mesh has one", R.MESH_MISMATCH, _without("name")
    private = FOUNDER.requirements
    yield (
        "a private mesh",
        R.NOT_PUBLIC,
        json.dumps({**PLAIN, "invite_token": invite_line(requirements=private), "mesh_id": FOUNDER.mesh_id}),
    )
    for name, address in _not_for_strangers().items():
        line = invite_line(addresses=(address,))
        yield name, R.NO_ADDRESS, _said(addresses=[], invite_token=line)
    peer = f"/p2p/{JOINER.peer_id}"
    yield (
        "only a private address beside the invite",
        R.NO_ADDRESS,
        _said(addresses=[HOME + peer], invite_token=invite_line(addresses=())),
    )


def _not_for_strangers() -> dict[str, str]:
    return {
        "someone's router": HOME, "private 10/8": "/ip4/10.0.0.1/tcp/4001", "carrier NAT": "/ip4/100.64.0.1/tcp/4001",
        "loopback": "/ip4/127.0.0.1/tcp/4001", "link-local": "/ip4/169.254.169.254/tcp/80",
        "unspecified": "/ip4/0.0.0.0/tcp/4001", "multicast": "/ip4/224.0.0.251/tcp/5353",
        "broadcast": "/ip4/255.255.255.255/tcp/4001", "documentation": "/ip4/192.0.2.7/tcp/4001",
        "IPv6 loopback": "/ip6/::1/tcp/4001", "IPv6 link-local": "/ip6/fe80::1/tcp/4001",
        "IPv6 private": "/ip6/fd00::1/tcp/4001", "IPv4 in IPv6": "/ip6/::ffff:192.168.1.1/tcp/80",
        "6to4 of a private address": "/ip6/2002:c0a8:101::1/tcp/80",
        "NAT64 of a private address": "/ip6/64:ff9b::c0a8:101/tcp/80",
        "NAT64 of one's own of a private address": "/ip6/64:ff9b:1::c0a8:101/tcp/80",
        "IPv4-compatible": "/ip6/::127.0.0.1/tcp/80", "IPv6 site-local": "/ip6/fec0::1/tcp/80",
        "IPv6 that nobody was given": "/ip6/4000::1/tcp/80", "IPv6 documentation of late": "/ip6/3fff::1/tcp/80",
        "dummy address": "/ip4/192.0.0.8/tcp/80", "6to4 relays": "/ip4/192.88.99.1/tcp/80",
        "a name": "/dns4/router.example/tcp/80", "no port": "/ip4/93.184.215.14", "port 0": "/ip4/93.184.215.14/tcp/0",
        "port 65536": "/ip4/93.184.215.14/tcp/65536", "IPv6 called IPv4": "/ip4/2606:2800::1/tcp/4001",
        "four numbers that are no address": "/ip4/93.184.215.256/tcp/4001",
        "another transport": "/ip4/93.184.215.14/udp/1",
        "something after the port": "/ip4/93.184.215.14/tcp/4001/ip4/192.168.1.1/tcp/80", "no address at all": "router",
    }  # fmt: skip


def _invalid_cases() -> list[Case]:
    cases = [(name, text_of(event_of(content)), reason) for name, reason, content in _changed_contents()]
    d, k, expiration = TAGS
    tags: dict[str, tuple[RejectionReason, Tags]] = {
        "no d": (R.NOT_A_LISTING, (k, expiration)),
        "no k": (R.NOT_A_LISTING, (d, expiration)),
        "Mesh LLM's own": (R.NOT_A_LISTING, (("d", "mesh-llm"), ("k", "mesh-llm"), expiration)),
        "d in upper case": (R.NOT_A_LISTING, (("d", "P2PMESH"), k, expiration)),
        "d twice": (R.NOT_A_LISTING, (d, d, k, expiration)),
        "d without a value": (R.NOT_A_LISTING, (("d",), k, expiration)),
        "no expiration": (R.EVENT_MALFORMED, (d, k)),
        "two expirations": (R.EVENT_MALFORMED, (*TAGS, ("expiration", str(NOW_S + 60)))),
        "expiration with a point": (R.EVENT_MALFORMED, (d, k, ("expiration", f"{NOW_S}.5"))),
        "expiration with a sign": (R.EVENT_MALFORMED, (d, k, ("expiration", f"+{NOW_S}"))),
        "expiration in other digits": (R.EVENT_MALFORMED, (d, k, ("expiration", "१७८००००१००"))),
        "expiration of 17 digits": (R.EVENT_MALFORMED, (d, k, ("expiration", "1" * 17))),
        "17 tags": (R.EVENT_MALFORMED, (*TAGS, *((("t", "x"),) * 14))),
        "over": (R.EXPIRED, (d, k, ("expiration", str(NOW_S - 31)))),
        "a life of 901 s": (R.LIFE_TOO_LONG, (d, k, ("expiration", str(NOW_S - 5 + 901)))),
        "over before it began": (R.LIFE_TOO_LONG, (d, k, ("expiration", str(NOW_S - 6)))),
    }
    cases += [(f"tags: {name}", text_of(event_of(_said(), tags=made)), why) for name, (why, made) in tags.items()]
    ahead = listing_tags(NOW_S + 31 + LIFE_S)
    far = listing_tags(2 * NOW_S + LIFE_S)
    cases += [
        ("another kind", text_of(event_of(_said(), kind=1)), R.NOT_A_LISTING),
        ("a clock 31 s ahead", text_of(event_of(_said(), created_unix_s=NOW_S + 31, tags=ahead)), R.DATED_AHEAD),
        ("of the far future", text_of(event_of(_said(), created_unix_s=2 * NOW_S, tags=far)), R.DATED_AHEAD),
        ("not an event", "[]", R.EVENT_MALFORMED),
        ("no bytes", "", R.EVENT_MALFORMED),
    ]
    good = event_of(_said())
    forms: dict[str, Case] = {
        "id in upper case": {"id": good["id"].upper()}, "id of 63 digits": {"id": good["id"][1:]},
        "key as a number": {"pubkey": 7}, "signature of 127 digits": {"sig": good["sig"][1:]},
        "time as text": {"created_at": str(NOW_S)}, "negative time": {"created_at": -1},
        "true as a kind": {"kind": True}, "tags as an object": {"tags": {}}, "a tag of numbers": {"tags": [[1]]},
        "content as an object": {"content": PLAIN},
    }  # fmt: skip
    cases += [(f"event: {name}", text_of({**good, **form}), R.EVENT_MALFORMED) for name, form in forms.items()]
    for missing in good:
        left = {name: value for name, value in good.items() if name != missing}
        cases.append((f"event without {missing}", text_of(left), R.EVENT_MALFORMED))
    halves = {
        "half a character as content": text_of({**good, "content": "x"}).replace(
            '"content":"x"', '"content":"\\ud800"'
        ),
        "half a character in a tag": text_of({**good, "tags": [["t", "x"]]}).replace('["t","x"]', '["t","\\udfff"]'),
    }
    cases += [(f"event: {name}", text, R.EVENT_MALFORMED) for name, text in halves.items()]
    forged = {
        "content changed after it was signed": {**good, "content": _said(node_count=999)},
        "expiration changed after it was signed": {**good, "tags": [["d", "p2pmesh"], ["k", "p2pmesh"],
                                                                    ["expiration", str(NOW_S + 800)]]},
        "signed by another key": {**good, "sig": OTHER.sign(good["id"])},
        "under another's key": {**event_of(_said(), key=OTHER), "pubkey": PUBLISHER.public},
        "signature of zeros": {**good, "sig": "0" * 128},
        "key that is no point": {**good, "pubkey": "f" * 64,
                                 "id": event_id_of("f" * 64, good["created_at"], KIND, TAGS, _said())},
        "one bit of the signature flipped": {**good, "sig": good["sig"][:-1] + f"{int(good['sig'][-1], 16) ^ 1:x}"},
    }  # fmt: skip
    cases += [(name, text_of(event), R.SIGNATURE_INVALID) for name, event in forged.items()]
    plain: list[Case] = [{"name": name, "event": event, "rejected": reason.value} for name, event, reason in cases]
    return [
        *plain,
        {"name": "event nested deep", "text_parts": [["[", 40_000]], "rejected": R.EVENT_MALFORMED.value},
        {"name": "event of 40961 bytes", "text_parts": [[" ", 40_961]], "rejected": R.EVENT_TOO_LARGE.value},
    ]


def listings() -> Case:
    """The document."""
    keys = {key.name: {"secret": key.secret, "public_key": key.public} for key in (PUBLISHER, OTHER)}
    return {"now_unix_ms": NOW_MS, "keys": keys, "valid": _valid_cases(), "invalid": _invalid_cases()}
