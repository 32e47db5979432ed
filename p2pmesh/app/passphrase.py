"""Where the passphrase of an owner's key comes from: a file, the environment, the keychain, or a person.

In this order, the first that is there. A passphrase is never an argument of a command: other users see those.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from p2pmesh.adapters.keychain import fetch_passphrase
from p2pmesh.adapters.owner_keystore import (
    MAX_PASSPHRASE_BYTES,
    KeystoreFacts,
    OwnerKey,
    check_passphrase,
    load_owner_key,
    owner_key_missing,
    read_keystore_facts,
)
from p2pmesh.app.config import PASSPHRASE_VARIABLE
from p2pmesh.base.errors import ConfigError, ErrorCode

Ask = Callable[[str], str]
"""Asks a person at the terminal, without an echo; ``getpass.getpass``."""


@dataclass(frozen=True, slots=True)
class PassphraseSources:
    """What a command may look at. ``ask`` None: nobody is at the terminal; ``option`` named the file."""

    file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: Ask | None = None
    option: str = "--passphrase-file"

    def open_key(self, keystore: Path) -> OwnerKey:
        """The owner's key, opened; ``ConfigError``, for one with ``OWNER_KEY_MISSING``."""
        facts = read_keystore_facts(keystore)
        if facts is None:
            raise owner_key_missing(keystore)
        passphrase = self.open_with(facts)
        with self.naming():
            return load_owner_key(keystore, passphrase)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """A scope in which a passphrase of ours is refused: the error says where it came from, if nobody typed it."""
        try:
            yield
        except ConfigError as error:
            if error.code not in (ErrorCode.PASSPHRASE_WRONG, ErrorCode.CONFIG_INVALID) or not self._origin():
                raise
            raise ConfigError(error.code, f"{self._origin()}: {error.message}") from None

    def _origin(self) -> str:
        if self.file is not None:
            return f"{self.option} {self.file}"
        return f"${PASSPHRASE_VARIABLE}" if PASSPHRASE_VARIABLE in self.environment else ""

    def open_with(self, facts: KeystoreFacts) -> str:
        """The passphrase of an existing keystore; ``ConfigError`` with ``PASSPHRASE_MISSING`` if there is none."""
        found = self.unattended(facts)
        if found is None and self.ask is not None:
            found = self.ask("passphrase of the owner key: ")
        if found is None:
            raise _missing()
        with self.naming():
            check_passphrase(found)
        return found

    def unattended(self, facts: KeystoreFacts) -> str | None:
        """The passphrase of an existing keystore if no person need be asked. The keychain may make its owner wait."""
        found = self._given()
        if found is None and facts.has_keychain_passphrase:
            found = fetch_passphrase(facts.owner_id)
        return found

    def choose(self) -> str:
        """The passphrase for a new keystore; a person types it twice."""
        found = self._given()
        if found is None:
            return self._ask_twice()
        with self.naming():
            check_passphrase(found)
        return found

    def _given(self) -> str | None:
        if self.file is not None:
            return self._read_file(self.file)
        return self.environment.get(PASSPHRASE_VARIABLE)

    def given(self) -> str | None:
        """What a file or the environment says, checked; ``ConfigError(CONFIG_INVALID)`` for what is no passphrase."""
        found = self._given()
        if found is not None:
            with self.naming():
                check_passphrase(found)
        return found

    def _ask_twice(self) -> str:
        if self.ask is None:
            raise _missing()
        first = self.ask("passphrase for the owner key: ")
        check_passphrase(first)
        if self.ask("the same again: ") != first:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "the two passphrases differ; nothing was changed, try again")
        return first

    def _read_file(self, path: Path) -> str:
        """The first line, without its end."""
        try:
            with path.open("rb") as file:
                data = file.readline(MAX_PASSPHRASE_BYTES + 3)
        except OSError as error:
            message = f"{self.option} {path} cannot be read: {error.strerror or error}"
            raise ConfigError(ErrorCode.CONFIG_INVALID, message) from None
        found = data.decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
        if not found:
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"{self.option} {path} has an empty first line; give one")
        return found


def _missing() -> ConfigError:
    message = (
        f"the owner key needs its passphrase; give --passphrase-file, set {PASSPHRASE_VARIABLE}, or use a terminal"
    )
    return ConfigError(ErrorCode.PASSPHRASE_MISSING, message)
