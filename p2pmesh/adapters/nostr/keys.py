"""The key that listings are published under: kept in the home, used for nothing else. Signs and checks events.

The only place of a node that imports ``nostr_sdk``. Its clients are not used (ADR 0044): they leave out what is forged,
over or malformed without a word, where we owe a reason.
"""

import json
from pathlib import Path

from nostr_sdk import Event, EventBuilder, Keys, Kind, NostrSdkError, Tag, Timestamp

from p2pmesh.adapters.private_files import read_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.wire.listing import Tags

KEY_FILE = "nostr.nsec"
AUTH_KIND = 22242
"""NIP-42."""

_MAX_KEY_FILE_BYTES = 256


class PublisherKey:
    """A secp256k1 key pair. Its public half names whoever publishes; it proves no peer id."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.public = str(keys.public_key().to_hex())

    @classmethod
    def fresh(cls) -> "PublisherKey":
        """A key for one use: asking relays shows it only where they want to know who asks."""
        return cls(Keys.generate())

    def sign(self, kind: int, content: str, tags: Tags, created_unix_s: int) -> tuple[str, str]:
        """The id and the JSON text of a signed event."""
        builder = EventBuilder(Kind(kind), content).tags([Tag.parse(list(tag)) for tag in tags])
        event = builder.custom_created_at(Timestamp.from_secs(created_unix_s)).finalize(self._keys)
        return event.id().to_hex(), event.as_json()

    def answer(self, url: str, challenge: str, created_unix_s: int) -> tuple[str, str]:
        """The event that tells a relay who we are (NIP-42)."""
        return self.sign(AUTH_KIND, "", (("relay", url), ("challenge", challenge)), created_unix_s)


def load_publisher_key(home: Path) -> PublisherKey:
    """The key of a home, made where there is none; ``ConfigError(HOME_UNUSABLE)`` for a damaged file."""
    path = home / KEY_FILE
    data = read_private(path, _MAX_KEY_FILE_BYTES)
    if data is None:
        keys = Keys.generate()
        write_private(path, keys.secret_key().to_bech32().encode() + b"\n")
        return PublisherKey(keys)
    try:
        return PublisherKey(Keys.parse(data.decode("ascii").strip()))
    except (NostrSdkError, UnicodeDecodeError):
        message = f"{path} holds no Nostr key (a line nsec1…); restore it, or remove it to publish under a new one"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None


def verify_event(public_key: str, event_id: str, signature: str) -> bool:
    """Whether a signature over an event id is right (BIP-340); implements ``wire.listing.VerifyEvent``."""
    frame = {
        "id": event_id,
        "pubkey": public_key,
        "sig": signature,
        "created_at": 0,
        "kind": 1,
        "tags": [],
        "content": "",
    }
    try:
        return bool(Event.from_json(json.dumps(frame)).verify_signature())
    except NostrSdkError:  # the key is no point of the curve
        return False
