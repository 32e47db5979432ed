"""The node key on disk, and signatures."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from libp2p.peer.id import ID

from p2pmesh.adapters.identity import (
    KEY_FILE_NAME,
    Ed25519Verifier,
    load_or_create_identity,
    new_identity,
    peer_id_of_public_key,
)
from p2pmesh.adapters.p2p.keys import libp2p_id, libp2p_key_pair, peer_id_of
from p2pmesh.base.errors import ConfigError, ErrorCode, PeerUnavailable
from p2pmesh.base.ids import PeerId, is_peer_id


def test_the_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = load_or_create_identity(home)
    assert load_or_create_identity(home).peer_id == first.peer_id
    assert (home / KEY_FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert os.listdir(home) == [KEY_FILE_NAME]


def test_a_new_key_is_on_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    load_or_create_identity(tmp_path)
    assert synced == [False, True]


def test_a_key_in_the_form_of_a_pipe_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / KEY_FILE_NAME)
    with pytest.raises(ConfigError, match="no regular file"):
        load_or_create_identity(tmp_path)


def test_the_peer_id_is_the_one_libp2p_derives() -> None:
    for _ in range(20):
        identity = new_identity()
        keys = libp2p_key_pair(identity)
        assert keys.public_key.to_bytes() == identity.public_key
        assert ID.from_pubkey(keys.public_key).to_base58() == identity.peer_id
        assert is_peer_id(identity.peer_id)
        assert identity.peer_id.startswith("12D3KooW")
        assert peer_id_of(libp2p_id(identity.peer_id)) == identity.peer_id


@pytest.mark.parametrize("text", ["", "nonsense", "0" * 52, "12D3KooW\n" + "a" * 40])
def test_what_is_no_peer_id_is_refused(text: str) -> None:
    with pytest.raises(PeerUnavailable):
        libp2p_id(PeerId(text))


def test_a_public_key_of_another_length_has_no_peer_id() -> None:
    with pytest.raises(ValueError, match="31"):
        peer_id_of_public_key(bytes(31))


def test_signatures_are_checked() -> None:
    identity, verifier = new_identity(), Ed25519Verifier()
    signature = identity.sign(b"message")
    assert verifier.is_signature_of(identity.public_key, b"message", signature)
    assert not verifier.is_signature_of(identity.public_key, b"massage", signature)
    assert not verifier.is_signature_of(new_identity().public_key, b"message", signature)
    assert not verifier.is_signature_of(identity.public_key, b"message", signature[:-1])
    assert not verifier.is_signature_of(b"short", b"message", signature)
    assert verifier.peer_id_of(identity.public_key) == identity.peer_id


def other_key() -> bytes:
    return X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 32, b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", other_key()],
)
def test_a_garbled_key_is_refused_in_one_line_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / KEY_FILE_NAME
    path.write_bytes(content)
    with pytest.raises(ConfigError) as failure:
        load_or_create_identity(tmp_path)
    assert failure.value.code == ErrorCode.HOME_UNUSABLE
    assert str(path) in failure.value.message
    assert "\n" not in failure.value.message
    assert path.read_bytes() == content


def test_a_truncated_key_is_refused(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path)
    path = tmp_path / KEY_FILE_NAME
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError):
            load_or_create_identity(tmp_path)


def test_a_key_that_others_can_read_is_made_private_again(tmp_path: Path) -> None:
    peer = load_or_create_identity(tmp_path).peer_id
    path = tmp_path / KEY_FILE_NAME
    path.chmod(0o644)
    assert load_or_create_identity(tmp_path).peer_id == peer
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_directory_in_the_keys_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE_NAME).mkdir()
    with pytest.raises(ConfigError) as failure:
        load_or_create_identity(tmp_path)
    assert failure.value.code == ErrorCode.HOME_UNUSABLE


def test_a_home_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ConfigError) as failure:
        load_or_create_identity(tmp_path / "file" / "home")
    assert failure.value.code == ErrorCode.HOME_UNUSABLE
