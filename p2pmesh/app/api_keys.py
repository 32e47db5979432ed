"""API keys: made, listed and revoked by commands, and as the running node knows them.

A key is 256 random bits, so its hash is plain SHA-256: nobody can try so many, and a slow hash would only make every
request slow. The text is shown once, when the key is made.
"""

import hashlib
import logging
import secrets
import time
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.api_key_file import load_api_keys, remove_api_keys, save_api_keys, stamp_of
from p2pmesh.adapters.home_lock import hold_records
from p2pmesh.api.access import KeyLimited
from p2pmesh.base.errors import ConfigError, ErrorCode, Refused
from p2pmesh.base.limits import MAX_API_KEY_BYTES, MAX_API_KEYS, MAX_NAME_BYTES
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros, micros
from p2pmesh.core.api_keys import ApiKey, Began, Charged, Ended, KeyUse, Refuse
from p2pmesh.wire.schema import is_line

PREFIX = "p2pmesh-sk-"
OPERATOR = "operator"
"""The id of the console's token, which counts as a key without limits, so that commands of the home go on to work."""
LOOK_EVERY_S = 1.0
MAX_LIMIT = 1_000_000

_log = logging.getLogger("p2pmesh.api")


def create_api_key(home: Path, name: str, max_in_flight: int, max_per_minute: int) -> dict[str, Any]:
    """A new key, its text among what is told of it; from now on no other than such keys are accepted."""
    if not is_line(name) or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise ConfigError(ErrorCode.CONFIG_INVALID, f"--name must be a line of at most {MAX_NAME_BYTES} bytes")
    for option, limit in (("--max-requests", max_in_flight), ("--per-minute", max_per_minute)):
        if not 0 <= limit <= MAX_LIMIT:
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"{option} must be 0 (no limit) to {MAX_LIMIT}, not {limit}")
    text = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(secrets.token_hex(4), name, _digest(text), max_in_flight, max_per_minute, time.time_ns() // 1_000_000)
    with hold_records(home):
        keys = load_api_keys(home) or ()
        if len(keys) >= MAX_API_KEYS:
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"there are {MAX_API_KEYS} API keys already; revoke some")
        save_api_keys(home, (*keys, key))
    return {"key": text, **_told(key)}


def list_api_keys(home: Path) -> dict[str, Any]:
    """What is kept of each; ``any_key_is_accepted`` where none was ever made."""
    keys = load_api_keys(home)
    return {"any_key_is_accepted": keys is None, "keys": [_told(key) for key in keys or ()]}


def revoke_api_key(home: Path, key_id: str) -> dict[str, Any]:
    """The key is accepted no longer, within a second also by a node that runs; requests on their way go on."""
    with hold_records(home):
        keys = load_api_keys(home) or ()
        if all(key.id != key_id for key in keys):
            text = f"there is no API key {key_id[:40]!r}; `p2pmesh key list` shows their ids"
            raise ConfigError(ErrorCode.CONFIG_INVALID, text)
        save_api_keys(home, tuple(key for key in keys if key.id != key_id))
    return {"id": key_id, "state": "revoked", "keys_left": len(keys) - 1}


def allow_any_key(home: Path) -> dict[str, Any]:
    """All keys are forgotten, and any is accepted again."""
    with hold_records(home):
        remove_api_keys(home)
    return {"any_key_is_accepted": True}


def _told(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "max_requests": key.max_in_flight,
        "per_minute": key.max_per_minute,
        "created_unix_ms": key.created_unix_ms,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class HomeKeys:
    """Implements ``api.access.Keys`` by a home's file, which may change while the node runs."""

    def __init__(self, home: Path, operator_token: str) -> None:
        self._home = home
        self._operator = _digest(operator_token)
        self._use = KeyUse()
        self._by_digest: dict[str, ApiKey] | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    def begin(self, given: str) -> str | None:
        """The id under which a request counts, None where any key is accepted.

        Raises ``Refused``: ``UNAUTHORIZED`` for another key or none, ``OVERLOADED`` for one at its limit.
        """
        self._look()
        if self._by_digest is None:
            return None
        digest = _digest(given[: MAX_API_KEY_BYTES + 1])
        if digest == self._operator:
            return OPERATOR
        key = self._by_digest.get(digest)
        if key is None:
            what = "that API key is not accepted" if given else "an API key is needed"
            text = f"{what}: send `Authorization: Bearer KEY`; the node's owner makes one with p2pmesh key create"
            raise Refused(ErrorCode.UNAUTHORIZED, text)
        answer = self._use.handle(Began(key), self._now())
        if isinstance(answer, Refuse):
            seconds = -(-answer.retry_us // MICROS_PER_SECOND)
            raise KeyLimited(f"{answer.text}; try again in {seconds} s", seconds)
        return key.id

    def charge(self, key_id: str, uses: int) -> None:
        """A request that was admitted counts so many times more; no matter of a key that was revoked meanwhile."""
        key = next((key for key in (self._by_digest or {}).values() if key.id == key_id), None)
        if key is not None:
            self._use.handle(Charged(key, uses), self._now())

    def end(self, key_id: str) -> None:
        """A request that was admitted is over."""
        if key_id != OPERATOR:
            self._use.handle(Ended(key_id), self._now())

    def _now(self) -> Micros:
        return micros(trio.current_time())

    def _look(self) -> None:
        """Reads the file again where it was replaced; while it is damaged every request is refused."""
        now_s = trio.current_time()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        stamp = stamp_of(self._home)
        if stamp != self._stamp or self._looked_s == float("-inf"):
            keys = self._load()
            self._by_digest = None if keys is None else {key.digest: key for key in keys}
            self._stamp = stamp
        self._looked_s = now_s

    def _load(self) -> tuple[ApiKey, ...] | None:
        try:
            return load_api_keys(self._home)
        except ConfigError as error:  # a client is not told where the home is
            _log.error("%s", error.message)
            raise Refused(ErrorCode.INTERNAL, "the node's API keys cannot be read; its log says more") from None
