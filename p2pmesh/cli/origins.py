"""Says of an error where the value came from that it is about: typed, of the file of settings, or of the environment.

Messages name options as they are typed (``--port``), whoever wrote them. Owns how such a name, or a value itself, is
told where it was not typed. What a value means, and what is wrong with it, is said before.
"""

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from p2pmesh.app.config import HOME_VARIABLE, choose_home
from p2pmesh.app.config_file import ConfigMistakes, Entry
from p2pmesh.base.errors import ErrorCode, P2PMeshError

TYPED_INVITE = "--join"
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_TOLD_BY_VALUE = frozenset(
    {"model", "owner_key", "passphrase_file", "join_file", "host", "listen", "announce", "hub_endpoint", "relay",
     "nostr_relay", "device"}
)  # fmt: skip
"""Keys whose values name a thing that a message may be about without a word of the option."""
_OF_INVITES = frozenset(
    {
        ErrorCode.INVITE_MALFORMED,
        ErrorCode.INVITE_EXPIRED,
        ErrorCode.INVITE_FOREIGN,
        ErrorCode.INVITE_REVOKED,
        ErrorCode.INVITE_EXHAUSTED,
    }
)
_OF_HOMES = frozenset(
    {
        ErrorCode.HOME_IN_USE,
        ErrorCode.HOME_UNUSABLE,
        ErrorCode.NODE_NOT_RUNNING,
        ErrorCode.NODE_UNRESPONSIVE,
        ErrorCode.DISK_FULL,
    }
)


def name_file(error: P2PMeshError, path: Path, entries: Iterable[Entry]) -> None:
    """Puts into the message which of ``entries``, those of a file that count, it is about."""
    if isinstance(error, ConfigMistakes):  # tells them by itself
        return
    counted = {entry.name: entry for entry in entries}

    def named(match: re.Match[str]) -> str:
        entry = counted.get(match[1].replace("-", "_"))
        return match[0] if entry is None else f"{entry.name} ({path}:{entry.line})"

    text = _OPTION.sub(named, error.message)
    about = [entry for entry in counted.values() if entry.name in _TOLD_BY_VALUE and _is_named(entry, error.message)]
    told = [f"{entry.name}, {path}:{entry.line}" for entry in about if f"{entry.name} ({path}" not in text]
    _retell(error, f"{text} ({'; '.join(told)})" if told else text)


def name_invite(error: P2PMeshError, origin: str) -> None:
    """Puts into the message where the invite was read that it is about."""
    if error.code in _OF_INVITES:
        if not error.message.startswith(origin):
            _retell(error, f"{origin}: {error.message}")
    elif origin != TYPED_INVITE:
        _retell(error, re.sub(rf"{TYPED_INVITE}(?![\w-])", origin, error.message))


def name_home(error: P2PMeshError, args: Namespace, environment: Mapping[str, str]) -> None:
    """Puts into the message that the home it is about is that of the environment."""
    is_given = bool(getattr(args, "home", None)) or not hasattr(args, "home")
    if error.code not in _OF_HOMES or is_given or not environment.get(HOME_VARIABLE):
        return
    given = environment[HOME_VARIABLE]
    names = [given]
    with suppress(P2PMeshError):  # it is about just that
        names.append(str(choose_home(None, environment)))
    if any(name in error.message for name in names):
        _retell(error, f"{error.message} (the home is that of ${HOME_VARIABLE})")


def _is_named(entry: Entry, message: str) -> bool:
    values = entry.value if isinstance(entry.value, list) else [entry.value]
    texts = (one for one in values if isinstance(one, str) and one)
    return any(re.search(rf"(?<![\w/.]){re.escape(text)}(?![\w/]|[.]\w)", message) for text in texts)


def _retell(error: P2PMeshError, text: str) -> None:
    error.message = text
    error.args = (text,)
