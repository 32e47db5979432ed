"""The publisher's key: kept, private, and right by another implementation of the curve."""

import json
import stat
from pathlib import Path

import pytest

from p2pmesh.adapters.nostr.keys import KEY_FILE, PublisherKey, load_publisher_key, verify_event
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.wire.listing import ListingEvent, decode_event
from tests.wire import schnorr, vectors

VECTORS = vectors.load("listings")


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    made = load_publisher_key(tmp_path)
    path = tmp_path / KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("nsec1")
    assert load_publisher_key(tmp_path).public == made.public
    assert len(made.public) == 64
    assert PublisherKey.fresh().public != PublisherKey.fresh().public


@pytest.mark.parametrize("damage", [b"", b"nsec1", b"\xff\xfe", b"a" * 300, b"npub1qqqqq\n"])
def test_a_damaged_key_is_an_error_and_never_replaced(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / KEY_FILE
    path.write_bytes(damage)
    with pytest.raises(ConfigError) as error:
        load_publisher_key(tmp_path)
    assert error.value.code is ErrorCode.HOME_UNUSABLE
    assert KEY_FILE in error.value.message
    assert path.read_bytes() == damage


def test_a_signed_event_is_right_by_the_reader_of_the_protocol() -> None:
    key = PublisherKey.fresh()
    event_id, text = key.sign(31990, 'ü"\n\\ 🦙', (("d", "p2pmesh"), ("expiration", "7")), 5)
    for check in (verify_event, schnorr.verify_event):
        event = decode_event(text, check)
        assert event == ListingEvent(
            event_id, key.public, 5, 31990, (("d", "p2pmesh"), ("expiration", "7")), 'ü"\n\\ 🦙'
        )


def test_an_answer_names_the_relay_and_its_challenge() -> None:
    _, text = PublisherKey.fresh().answer("wss://relay.example", "abc", 9)
    plain = json.loads(text)
    assert plain["kind"] == 22242
    assert plain["tags"] == [["relay", "wss://relay.example"], ["challenge", "abc"]]


@pytest.mark.parametrize("case", [case for case in VECTORS["invalid"] if case["rejected"] == "signature_invalid"])
def test_forged_vectors_are_refused_by_the_library_too(case: dict[str, str]) -> None:
    assert not isinstance(decode_event(case["event"], verify_event), ListingEvent)


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vectors_are_taken_by_the_library_too(case: dict[str, str]) -> None:
    assert isinstance(decode_event(case["event"], verify_event), ListingEvent)
