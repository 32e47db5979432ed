"""Visits to relays over TLS, and what becomes of relays that break off."""

import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from p2pmesh.adapters.nostr.messages import EventMessage
from p2pmesh.adapters.nostr.relays import trust_of_relays
from p2pmesh.adapters.nostr.session import RelaySession, RequestEnd, visit
from p2pmesh.adapters.nostr.streams import RelayUnavailable
from tests.adapters.nostr.real_relays import Say, scripted_relay


def no_answer(challenge: str) -> tuple[str, str]:
    raise AssertionError("nobody asked who we are")


async def ask(session: RelaySession) -> RequestEnd:
    return await session.request({"kinds": [1]}, lambda event: True)


async def end_at_once(message: list[Any], say: Say) -> None:
    if message[0] == "REQ":
        await say(["EOSE", message[1]])


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a relay")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(hours=1))
    certificate = built.add_extension(names, critical=False).sign(key, hashes.SHA256())
    certificate_path, key_path = folder / "relay.pem", folder / "relay.key"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_path, key_path


async def test_a_relay_with_a_certificate_is_visited_by_who_believes_it(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    async with scripted_relay(end_at_once, secured=secured) as url:
        believing = ssl.create_default_context(cafile=str(certificate))
        assert await visit(url, believing, no_answer, ask) == RequestEnd(True)
        with pytest.raises(RelayUnavailable, match="certificate is not believed"):
            await visit(url, trust_of_relays(), no_answer, ask)


async def test_no_tls_where_it_is_expected_is_told() -> None:
    async with scripted_relay(end_at_once) as url:
        with pytest.raises(RelayUnavailable):
            await visit(url.replace("ws", "wss"), trust_of_relays(), no_answer, ask)


async def test_a_name_that_leads_nowhere_is_told() -> None:
    with pytest.raises(RelayUnavailable):
        await visit("ws://relay.invalid", trust_of_relays(), no_answer, ask)


async def test_what_came_before_a_relay_broke_off_was_taken() -> None:
    async def breaks(message: list[Any], say: Say) -> None:
        await say(["EVENT", "listings", {"created_at": 1}])
        await say(["EVENT", "listings", "x" * 2_000_000])

    taken: list[EventMessage] = []

    async def collect(session: RelaySession) -> RequestEnd:
        return await session.request({}, lambda event: taken.append(event) is None)

    async with scripted_relay(breaks) as url:
        with pytest.raises(RelayUnavailable, match="message too big"):
            await visit(url, trust_of_relays(), no_answer, collect)
    assert [event.created_unix_s for event in taken] == [1]


async def test_a_relay_that_babbles_is_left() -> None:
    async def babble(message: list[Any], say: Say) -> None:
        while message[0] == "REQ":
            await say(["NOTICE", "hello"])

    async with scripted_relay(babble) as url:
        with trio.fail_after(20):
            end = await visit(url, trust_of_relays(), no_answer, ask)
    assert end == RequestEnd(False, "it says more than anyone has to say")


@pytest.mark.parametrize(
    ("answer", "detail"),
    [(["CLOSED", "listings", "error: shutting down"], "error: shutting down"),
     (["CLOSED", "listings", ""], "it closed"), (["NOTICE", "ERROR: bad req"], "ERROR: bad req")],
)  # fmt: skip
async def test_a_request_that_a_relay_refuses_is_over(answer: list[Any], detail: str) -> None:
    async def refuse(message: list[Any], say: Say) -> None:
        await say(answer)

    async with scripted_relay(refuse) as url:
        end = await visit(url, trust_of_relays(), no_answer, ask)
    assert not end.is_complete
    assert end.detail.startswith(detail)
