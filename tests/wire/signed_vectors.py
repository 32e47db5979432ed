"""Vectors of what is signed about membership: invites, passes, revocations, announcements; part of ``regenerate``.

Owns the records that vectors of other messages carry, too.
"""

from dataclasses import replace
from typing import Any

from p2pmesh.base.limits import CLOCK_SKEW_MS
from p2pmesh.wire import announcement, invite, membership_pass, requirements, revocation
from p2pmesh.wire.schema import pack, to_map
from tests.wire import vectors
from tests.wire.keys import FOUNDER, JOINER, STRANGER, TestKey, armour, sealing

ISSUED_MS = 1_780_000_000_000
REQUEST_ID = bytes(range(16))
RUN_ID = bytes(range(16, 32))
DIGEST = "ab" * 32
ADDRESSES = ("/ip4/192.0.2.7/tcp/4001",)

Case = dict[str, Any]

INVITE_ID = bytes(range(32, 48))
INVITE = invite.Invite(INVITE_ID, FOUNDER.requirements, ISSUED_MS, ISSUED_MS + invite.LIFE_MS, ADDRESSES)
TERMS = replace(FOUNDER.requirements, generation_max=3, version_min="0.1.0", version_max="0.9.0", requires_owner=True,
                owners=("ab" * 32, "cd" * 32))  # fmt: skip
PASS = membership_pass.MembershipPass(
    FOUNDER.mesh_id, JOINER.peer_id, INVITE_ID, ISSUED_MS, ISSUED_MS + membership_pass.LIFE_MS
)
REVOCATION = revocation.Revocation(
    FOUNDER.mesh_id, 3, ISSUED_MS, (bytes(range(48, 64)),), (bytes(range(64, 80)),), (STRANGER.peer_id,)
)
FOUNDERS_PASS = membership_pass.encode_pass(PASS, b"", FOUNDER.sign)
PUBLIC = replace(FOUNDER.requirements, is_public=True, pool_name="garage")
PUBLIC_PASS = replace(PASS, mesh_id=requirements.mesh_id_of(PUBLIC))
MEMBERS_INVITE = invite.Invite(
    INVITE_ID, PUBLIC, ISSUED_MS, ISSUED_MS + invite.LISTED_LIFE_MS,
    (f"{ADDRESSES[0]}/p2p/{JOINER.peer_id}",), issuer_key=JOINER.public_key,
    passes=(membership_pass.encode_pass(PUBLIC_PASS, b"", FOUNDER.sign),),
)  # fmt: skip
SERVED = announcement.ServedModel("smollm2-135m", DIGEST, RUN_ID, 2, 4096)


HELD = announcement.HeldModel("smollm2-135m", DIGEST)
LINKS = (
    announcement.Link(announcement.peer_hash_of(STRANGER.peer_id), 1_840, 118_000_000, False),
    announcement.Link(announcement.peer_hash_of(JOINER.peer_id), 42_000, 0, True),
)
LINK_ROW = list(to_map(LINKS[0]).values())
DEMAND = announcement.ModelDemand(announcement.model_hash_of("qwen3-4b"), 1, 12, 340)
DEMAND_ROW = list(to_map(DEMAND).values())


def announcement_of(key: TestKey) -> announcement.Announcement:
    said = announcement.Announcement(
        key.peer_id, FOUNDER.mesh_id, key.name, "0.1.0", ISSUED_MS, 7, ISSUED_MS + announcement.LIFE_MS,
        ADDRESSES, 8 << 30, 6 << 30, (), ISSUED_MS,
    )  # fmt: skip
    if key is not FOUNDER:
        return said
    return replace(
        said, models=(SERVED,), expires_unix_ms=ISSUED_MS + announcement.life_ms(160_000), interval_ms=160_000,
        shard_depth=2, is_dht_server=True, engine="llama.cpp cpu", lanes=4, lanes_free=3,
        decode_tokens_per_s_milli=12_500, wanted=("qwen3-4b",), on_disk=(HELD,), links=LINKS, ownership=b"claim",
        passes=(FOUNDERS_PASS,), decode_bytes_per_s=6_400_000_000,
        loadable=(announcement.model_hash_of("gemma-3-270m"),), demand=(DEMAND,),
        max_layers=20, is_on_battery=True, is_busy=True, is_relay=True,
    )  # fmt: skip


sealed_invite = sealing(invite.DOMAIN, FOUNDER)
sealed_revocation = sealing(revocation.DOMAIN, FOUNDER)
sealed_announcement = sealing(announcement.DOMAIN, JOINER)


def flipped(data: bytes, index: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= 1
    return bytes(changed)


INVITE_TERMS = {name: value for name, value in to_map(FOUNDER.requirements).items() if name != "founder_key"}
INVITE_CHANGES: dict[str, Case] = {
    "id of 15 bytes": {"invite_id": bytes(15)},
    "id as text": {"invite_id": "0" * 16},
    "requirements as a list": {"requirements": []},
    "requirements nil": {"requirements": None},
    "generation of text": {"requirements": {**INVITE_TERMS, "generation_min": "1"}},
    "generation 65537": {"requirements": {**INVITE_TERMS, "generation_max": 65537}},
    "version of 65 bytes": {"requirements": {**INVITE_TERMS, "version_min": "1" * 65}},
    "control character in a version": {"requirements": {**INVITE_TERMS, "version_max": "1.0\n"}},
    "owner required by a number": {"requirements": {**INVITE_TERMS, "requires_owner": 1}},
    "owner id of 63 digits": {"requirements": {**INVITE_TERMS, "owners": ["a" * 63]}},
    "owner id in upper case": {"requirements": {**INVITE_TERMS, "owners": ["A" * 64]}},
    "65 owners": {"requirements": {**INVITE_TERMS, "owners": ["a" * 64] * 65}},
    "33 addresses": {"addresses": ["/ip4/192.0.2.7/tcp/1"] * 33},
    "33 relay addresses": {"relay_addresses": ["/ip4/192.0.2.7/tcp/1"] * 33},
    "control character in an address": {"addresses": ["/ip4/192.0.2.7\n"]},
    "negative expiry": {"expires_unix_ms": -1},
    "expiry as a float": {"expires_unix_ms": 1.5},
    "1025 uses": {"max_uses": 1025},
    "public by a number": {"requirements": {**INVITE_TERMS, "is_public": 1}},
    "pool name of 65 bytes": {"requirements": {**INVITE_TERMS, "pool_name": "p" * 65}},
    "control character in a pool name": {"requirements": {**INVITE_TERMS, "pool_name": "a\nb"}},
    "passes of nobody": {"passes": [b"pass"]},
    "issuer without passes": {"issuer_key": FOUNDER.public_key},
    "issuer that did not sign": {"issuer_key": JOINER.public_key, "passes": [b"pass"]},
    "issuer key of 33 bytes": {"issuer_key": bytes(33), "passes": [b"pass"]},
    "9 passes": {"passes": [b"pass"] * 9},
    "pass of 161 bytes": {"passes": [bytes(161)]},
    "-1 uses": {"max_uses": -1},
}


def invites() -> Case:
    line = invite.encode_invite(INVITE, FOUNDER.public_key, FOUNDER.sign)
    plain = to_map(INVITE)
    plain["requirements"] = INVITE_TERMS
    lines = broken_lines(line, plain)
    lines |= {name: armour(sealed_invite({**plain, **change})) for name, change in INVITE_CHANGES.items()}
    for missing in ("invite_id", "requirements", "issued_unix_ms", "expires_unix_ms"):
        left = {name: value for name, value in plain.items() if name != missing}
        lines[f"payload without {missing}"] = armour(sealed_invite(left))
    invalid = [{"name": name, "invite": text, "error": "invite_malformed"} for name, text in lines.items()]
    late = INVITE.expires_unix_ms + CLOCK_SKEW_MS + 1
    invalid.append({"name": "expired", "invite": line, "now_unix_ms": late, "error": "invite_expired"})
    strict = replace(INVITE, requirements=TERMS, max_uses=1, relay_addresses=(f"{ADDRESSES[0]}/p2p/{JOINER.peer_id}",))
    valid = [
        valid_invite("of a founder", INVITE, ISSUED_MS),
        valid_invite("within the skew", INVITE, late - 1),
        valid_invite("without addresses", replace(INVITE, addresses=()), ISSUED_MS),
        valid_invite("for one use of a mesh with terms", strict, ISSUED_MS),
        valid_invite("of a public pool", replace(INVITE, requirements=PUBLIC), ISSUED_MS),
        valid_invite("of a member of it", MEMBERS_INVITE, ISSUED_MS, JOINER),
    ]
    invalid += broken_invites_of_a_member()
    document = {"domain": invite.DOMAIN.decode(), "keys": key_table(FOUNDER, JOINER, STRANGER)}
    return {**document, "valid": valid, "invalid": invalid}


def broken_lines(line: str, plain: Case) -> dict[str, str]:
    return {
        "empty": "",
        "prefix only": "p2pmesh2-",
        "another version's prefix": line.replace("p2pmesh2-", "p2pmesh1-"),
        "upper-case prefix": line.replace("p2pmesh2-", "P2PMESH2-"),
        "last character cut": line[:-1],
        "second half cut": line[: len(line) // 2],
        "one character changed": line[:40] + ("A" if line[40] != "A" else "B") + line[41:],
        "base64 padding": line + "=",
        "standard base64 alphabet": line[:60] + "+/" + line[62:],
        "space inside": line[:50] + " " + line[50:],
        "two lines": line + "\n" + line,
        "longer than 8192 bytes": "p2pmesh2-" + "A" * 8184,
        "not msgpack": armour(b"\xc1" * 40),
        "envelope is a list": armour(pack([b"x", FOUNDER.public_key, bytes(64)])),
        "envelope without signature": armour(pack({"payload": pack(plain), "key": FOUNDER.public_key})),
        "key of 31 bytes": armour(pack({"payload": pack(plain), "key": bytes(31), "signature": bytes(64)})),
        "signature of zeros": armour(pack({"payload": pack(plain), "key": FOUNDER.public_key, "signature": bytes(64)})),
        "one bit of the payload flipped": armour(flipped(sealed_invite(plain), 40)),
        "bytes after the envelope": armour(sealed_invite(plain) + b"\0"),
        "signed for announcements": armour(sealed_invite(plain, FOUNDER, announcement.DOMAIN)),
        "signed for revocations": armour(sealed_invite(plain, FOUNDER, revocation.DOMAIN)),
    }


def broken_invites_of_a_member() -> list[Case]:
    of_member = to_map(MEMBERS_INVITE)
    wrong: dict[str, Case] = {
        "with uses": {"max_uses": 1},
        "at an address without a peer": {"addresses": ["/ip4/192.0.2.7/tcp/1"]},
        "without passes": {"passes": []},
        "without the founder's key": {"requirements": {"is_public": True}},
        "of another issuer": {"issuer_key": STRANGER.public_key},
    }
    lines = {name: armour(sealed_invite({**of_member, **change}, JOINER)) for name, change in wrong.items()}
    return [{"name": f"a member's {name}", "invite": text, "error": "invite_malformed"} for name, text in lines.items()]


def valid_invite(name: str, value: invite.Invite, now_unix_ms: int, signer: TestKey = FOUNDER) -> Case:
    line = invite.encode_invite(value, signer.public_key, signer.sign)
    shown = vectors.to_json(value)
    return {"name": name, "invite": line, "now_unix_ms": now_unix_ms, "mesh_id": value.mesh_id, "value": shown}


PASS_CHANGES: dict[str, Case] = {
    "invite id of 17 bytes": {"invite_id": bytes(17)},
    "invite id as text": {"invite_id": "0" * 16},
    "negative time": {"issued_unix_ms": -1},
    "expiry of true": {"expires_unix_ms": True},
    "expiry beyond 2^53": {"expires_unix_ms": 2**53 + 1},
    "key of 31 bytes": {"signer_key": bytes(31)},
    "key of one byte": {"signer_key": b"k"},
    "key of 33 bytes": {"signer_key": bytes(33)},
    "key of nil": {"signer_key": None},
    "signature of 63 bytes": {"signature": bytes(63)},
}


def passes() -> Case:
    by_member = replace(PASS, peer_id=STRANGER.peer_id)
    valid = [
        {"name": "by the founder", "bytes": FOUNDERS_PASS.hex(), "holder": JOINER.name, "signer": FOUNDER.name,
         "value": vectors.to_json(PASS)},
        {
            "name": "by a member",
            "bytes": membership_pass.encode_pass(by_member, JOINER.public_key, JOINER.sign).hex(),
            "holder": STRANGER.name,
            "signer": JOINER.name,
            "value": vectors.to_json(by_member),
        },
    ]  # fmt: skip
    written = to_map(membership_pass.WrittenPass(
        PASS.invite_id, PASS.issued_unix_ms, PASS.expires_unix_ms, b"",
        FOUNDER.sign(pass_message(membership_pass.DOMAIN, PASS)),
    ))  # fmt: skip
    cases = [
        (name, pack(list({**written, **change}.values())), "message_malformed") for name, change in PASS_CHANGES.items()
    ]
    unfit: dict[str, bytes] = {
        "signed for invites": pass_message(invite.DOMAIN, PASS),
        "of another peer": pass_message(membership_pass.DOMAIN, by_member),
        "of another overlay": pass_message(membership_pass.DOMAIN, replace(PASS, mesh_id=STRANGER.mesh_id)),
        "of a longer life": pass_message(membership_pass.DOMAIN, replace(PASS, issued_unix_ms=ISSUED_MS - 1)),
    }
    cases += [
        ("no bytes", b"", "message_malformed"),
        ("a map", pack({"signature": written["signature"]}), "message_malformed"),
        ("without its signature", pack(list(written.values())[:-1]), "message_malformed"),
        ("a value more", pack([*written.values(), 0]), "message_malformed"),
        ("bytes after the row", FOUNDERS_PASS + b"\xc0", "message_malformed"),
        ("cut by one byte", FOUNDERS_PASS[:-1], "message_malformed"),
        ("one bit of the signature flipped", flipped(FOUNDERS_PASS, len(FOUNDERS_PASS) - 1), "signature_invalid"),
        ("by a member that names the founder", pack(list({**written, "signature": JOINER.sign(
            pass_message(membership_pass.DOMAIN, PASS))}.values())), "signature_invalid"),
        *((name, pack(list({**written, "signature": FOUNDER.sign(message)}.values())), "signature_invalid")
          for name, message in unfit.items()),
    ]  # fmt: skip
    invalid: list[Case] = [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in cases]
    invalid.append({"name": "161 bytes", "parts": [["c1", 161]], "error": "message_too_large"})
    document = {"domain": membership_pass.DOMAIN.decode(), "keys": key_table(FOUNDER, JOINER, STRANGER)}
    return {**document, "mesh_id": FOUNDER.mesh_id, "holder": JOINER.name, "valid": valid, "invalid": invalid}


def pass_message(domain: bytes, granted: membership_pass.MembershipPass) -> bytes:
    return domain + b"\0" + pack(list(to_map(granted).values()))


def revocations() -> Case:
    plain = to_map(REVOCATION)
    sealed = sealed_revocation(plain)
    empty = replace(REVOCATION, sequence=0, invites=(), expelled_invites=(), peers=())
    valid = [
        {"name": "of all three kinds", "bytes": sealed.hex(), "value": vectors.to_json(REVOCATION)},
        {"name": "of nothing", "bytes": sealed_revocation(to_map(empty)).hex(), "value": vectors.to_json(empty)},
    ]
    changes: dict[str, Case] = {
        "negative sequence": {"sequence": -1},
        "sequence beyond 2^53": {"sequence": 2**53 + 1},
        "invite id of 15 bytes": {"invites": [bytes(15)]},
        "invite id as text": {"expelled_invites": ["0" * 16]},
        "513 invites": {"invites": [bytes(16)] * 513},
        "513 peers": {"peers": [STRANGER.peer_id] * 513},
        "peer id with a letter base58 lacks": {"peers": ["0" * 40]},
        "peers nil": {"peers": None},
    }
    cases = [(name, sealed_revocation({**plain, **change}), "message_malformed") for name, change in changes.items()]
    cases += [
        ("no bytes", b"", "message_malformed"),
        ("cut by one byte", sealed[:-1], "message_malformed"),
        ("signed by a member", sealed_revocation(plain, JOINER), "signature_invalid"),
        ("signed for invites", sealed_revocation(plain, FOUNDER, invite.DOMAIN), "signature_invalid"),
        ("one bit of the payload flipped", flipped(sealed, 60), "signature_invalid"),
        ("of another mesh", sealed_revocation({**plain, "mesh_id": STRANGER.mesh_id}), "invite_foreign"),
    ]
    invalid: list[Case] = [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in cases]
    invalid.append({"name": "49153 bytes", "parts": [["c1", 49153]], "error": "message_too_large"})
    document = {"domain": revocation.DOMAIN.decode(), "keys": key_table(FOUNDER, JOINER)}
    topic = revocation.topic_of(FOUNDER.mesh_id)
    return {**document, "topic": topic, "mesh_id": FOUNDER.mesh_id, "valid": valid, "invalid": invalid}


def key_table(*keys: TestKey) -> Case:
    return {
        key.name: {"seed": key.seed.hex(), "public_key": key.public_key.hex(), "peer_id": key.peer_id} for key in keys
    }


MODEL_ROW = list(to_map(SERVED).values())
ANNOUNCEMENT_CHANGES: dict[str, Case] = {
    "name longer than 256 bytes": {"name": "n" * 257},
    "line feed in the name": {"name": "a\nb"},
    "text reordered by a mark in the name": {"name": "a\u202eb"},
    "escape in the version": {"version": "\x1b[2J"},
    "negative sequence": {"sequence": -1},
    "incarnation beyond 2^53": {"incarnation": 2**53 + 1},
    "true as a sequence": {"sequence": True},
    "float as memory": {"memory_bytes": 1.0},
    "text as addresses": {"addresses": "/ip4/192.0.2.7/tcp/1"},
    "33 addresses": {"addresses": ["/ip4/192.0.2.7/tcp/1"] * 33},
    "address of 513 bytes": {"addresses": ["/" * 513]},
    "65 models": {"models": [MODEL_ROW] * 65},
    "model without a context": {"models": [MODEL_ROW[:-1]]},
    "model as a map": {"models": [to_map(SERVED)]},
    "model of 65 stages": {"models": [[*MODEL_ROW[:3], 65, MODEL_ROW[4]]]},
    "model digest of 31 bytes": {"models": [[MODEL_ROW[0], bytes(31), *MODEL_ROW[2:]]]},
    "model digest in digits": {"models": [[MODEL_ROW[0], DIGEST, *MODEL_ROW[2:]]]},
    "mesh id of 15 bytes": {"mesh_id": bytes(15)},
    "mesh id in digits": {"mesh_id": FOUNDER.mesh_id},
    "interval of a second": {"interval_ms": 1000},
    "interval of an hour": {"interval_ms": 3_600_000},
    "shard at depth 17": {"shard_depth": 17},
    "a number as is_dht_server": {"is_dht_server": 1},
    "line feed in the engine": {"engine": "llama\n"},
    "more lanes than there can be": {"lanes": 4097},
    "negative lanes_free": {"lanes_free": -1},
    "speed as a float": {"decode_tokens_per_s_milli": 12.5},
    "bytes read beyond the limit": {"decode_bytes_per_s": 2**48 + 1},
    "17 wanted models": {"wanted": ["m"] * 17},
    "33 files": {"on_disk": [list(to_map(HELD).values())] * 33},
    "file without a digest": {"on_disk": [["m"]]},
    "65 links": {"links": [LINK_ROW] * 65},
    "link as a map": {"links": [to_map(LINKS[0])]},
    "link of three values": {"links": [LINK_ROW[:3]]},
    "link of five values": {"links": [[*LINK_ROW, 0]]},
    "link to nobody": {"links": [[b"", *LINK_ROW[1:]]]},
    "link to a hash of nine bytes": {"links": [[bytes(9), *LINK_ROW[1:]]]},
    "link to a peer by its id": {"links": [[STRANGER.peer_id, *LINK_ROW[1:]]]},
    "link with a number for is_relayed": {"links": [[*LINK_ROW[:3], 0]]},
    "negative round-trip time": {"links": [[LINK_ROW[0], -1, *LINK_ROW[2:]]]},
    "claim of 1025 bytes": {"ownership": bytes(1025)},
    "claim as text": {"ownership": "claim"},
    "9 passes": {"passes": [b"p"] * 9},
    "pass of 161 bytes": {"passes": [bytes(161)]},
    "empty pass": {"passes": [b""]},
    "pass as text": {"passes": ["pass"]},
    "pass that is not in a list": {"passes": b"pass"},
    "9 loadable models": {"loadable": [bytes(8)] * 9},
    "loadable model by its name": {"loadable": ["qwen3-4b"]},
    "loadable model by a hash of seven bytes": {"loadable": [bytes(7)]},
    "demand for five models": {"demand": [DEMAND_ROW] * 5},
    "demand as a map": {"demand": [to_map(DEMAND)]},
    "demand without a count of the day": {"demand": [DEMAND_ROW[:3]]},
    "demand for a model by its name": {"demand": [["qwen3-4b", *DEMAND_ROW[1:]]]},
    "demand for a hash of nine bytes": {"demand": [[bytes(9), *DEMAND_ROW[1:]]]},
    "negative demand": {"demand": [[*DEMAND_ROW[:3], -1]]},
    "demand beyond the limit": {"demand": [[*DEMAND_ROW[:2], 2**24 + 1, DEMAND_ROW[3]]]},
    "negative cap of layers": {"max_layers": -1},
    "cap of layers beyond the limit": {"max_layers": 1025},
    "cap of layers as nil": {"max_layers": None},
    "battery as a number": {"is_on_battery": 1},
    "busy as text": {"is_busy": "yes"},
    "a number as is_relay": {"is_relay": 1},
    "demand as a float": {"demand": [[DEMAND_ROW[0], 1.0, *DEMAND_ROW[2:]]]},
}


def announcements() -> Case:
    valid = [
        {
            "name": f"of the {key.name}",
            "bytes": announcement.encode_announcement(announcement_of(key), key.public_key, key.sign).hex(),
            "value": vectors.to_json(announcement_of(key)),
        }
        for key in (FOUNDER, JOINER)
    ]
    good = to_map(announcement_of(JOINER))
    del good["peer_id"]  # that of the key
    row = list(good.values())
    sealed = sealed_announcement(row)
    changed = {name: list({**good, **change}.values()) for name, change in ANNOUNCEMENT_CHANGES.items()}
    cases = [(name, sealed_announcement(values), "message_malformed") for name, values in changed.items()]
    cases += [
        ("no bytes", b"", "message_malformed"),
        ("payload is a map", sealed_announcement(good), "message_malformed"),
        ("payload is a number", sealed_announcement(7), "message_malformed"),
        ("payload of no values", sealed_announcement([]), "message_malformed"),
        ("payload without models", sealed_announcement(row[:9]), "message_malformed"),
        ("payload that begins with a peer id", sealed_announcement([JOINER.peer_id, *row]), "message_malformed"),
        ("bytes after the envelope", sealed + b"\xc0", "message_malformed"),
        ("cut by one byte", sealed[:-1], "message_malformed"),
        ("signed by another than the key's peer", sealed.replace(JOINER.public_key, STRANGER.public_key),
         "signature_invalid"),
        ("signed for invites", sealed_announcement(row, JOINER, invite.DOMAIN), "signature_invalid"),
        ("one bit of the payload flipped", flipped(sealed, 120), "signature_invalid"),
        ("one bit of the signature flipped", flipped(sealed, len(sealed) - 1), "signature_invalid"),
    ]  # fmt: skip
    invalid: list[Case] = [{"name": name, "bytes": data.hex(), "error": error} for name, data, error in cases]
    invalid.append({"name": "32769 bytes", "parts": [["c1", 32769]], "error": "message_too_large"})
    readable = [
        {"name": "with defaults at its end", "bytes": sealed_announcement(row).hex(),
         "value": vectors.to_json(announcement_of(JOINER))},
        {"name": "with a value of a later version", "bytes": sealed_announcement([*row, 7]).hex(),
         "value": vectors.to_json(announcement_of(JOINER))},
    ]  # fmt: skip
    document = {"domain": announcement.DOMAIN.decode(), "keys": key_table(FOUNDER, JOINER, STRANGER)}
    found = {"valid": valid, "readable": readable, "invalid": invalid}
    return {**document, "topic": announcement.topic_of(FOUNDER.mesh_id), **found}
