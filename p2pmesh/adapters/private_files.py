"""Small files of a home that only its owner may read: written whole or not at all, read with a bound.

Owns mode, atomicity and durability; what the bytes mean is for those who write them.
"""

import contextlib
import errno
import math
import os
import re
import stat
import tempfile
import time
from pathlib import Path

from p2pmesh.base.errors import ConfigError, ErrorCode

_DRAFT = re.compile(
    r"\.(?:node\.key|node\.claim|nostr\.nsec|trust\.json|run\.json|api-keys\.json|grants\.json|usage\.json|listen-port|(?:mesh|pool)\.[a-z]+|[0-9a-f]{32}|[0-9a-f]{64}\.json)\.[a-z0-9_]{8,16}\Z"
)
"""As ``mkstemp`` and ``adapters.identity`` name drafts."""
_OLD_DRAFT = re.compile(r"\.owner\.key\.[a-z0-9_]{8,16}\Z")
"""Of owners' keys, which homes may share, so that no lock keeps others from writing one."""
_FOLDERS_OF_RECORDS = ("memberships",)
_FOLDER_OF_CERTIFICATES = "certificates/wire"
_OLD_DRAFT_AGE_S = 3600.0
"""What is written without a lock is written in an instant: a draft so old is nobody's."""


def write_private(path: Path, data: bytes) -> None:
    """Puts ``data`` under ``path`` with mode 0600, durably: after a crash the old bytes stand there, or the new.

    Its directory is made if need be. Raises as ``unwritable`` says where that cannot be done.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # created 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> ConfigError:
    """Says that a file or directory of a home cannot be written: ``DISK_FULL`` where room is what is missing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"{path} cannot be written: the disk is full; free some space or use a --home on another disk"
        return ConfigError(ErrorCode.DISK_FULL, text)
    text = f"{path} cannot be written: {error.strerror or error}; check its owner, or choose another --home"
    return ConfigError(ErrorCode.HOME_UNUSABLE, text)


def read_private(path: Path, max_bytes: int, *, is_ours: bool = True) -> bytes | None:
    """The bytes of a file, made private again if others could read it; None if there is none.

    One that is not ours (``is_ours`` false: somebody named it, and it may be another user's) keeps its mode.
    ``ConfigError(HOME_UNUSABLE)`` for what is no regular file, is longer than ``max_bytes``, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hang the reader
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ConfigError(ErrorCode.HOME_UNUSABLE, f"{path} is no regular file; move it away")
            if is_ours and facts.st_mode & 0o077:
                os.fchmod(file.fileno(), 0o600)
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > max_bytes:
        message = f"{path} has more than {max_bytes} bytes, which no such file has; restore it, or move it away"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message)
    return data


def remove_private(path: Path) -> None:
    """Removes a file if it is there; ``ConfigError(HOME_UNUSABLE)`` if it cannot be removed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        message = f"{path} cannot be removed: {error.strerror or error}"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None


def remove_drafts(home: Path) -> None:
    """Removes what a killed writer left in a home and its folders. Nobody may be writing its records meanwhile."""
    for folder in (home, *(home / name for name in _FOLDERS_OF_RECORDS)):
        _remove_drafts_in(folder, _DRAFT, math.inf)
    _remove_drafts_in(home / _FOLDER_OF_CERTIFICATES, _DRAFT, time.time() - _OLD_DRAFT_AGE_S)
    remove_old_drafts(home)


def remove_old_drafts(folder: Path) -> None:
    """Removes what killed writers of owners' keys left in a folder, an hour after."""
    _remove_drafts_in(folder, _OLD_DRAFT, time.time() - _OLD_DRAFT_AGE_S)


def _remove_drafts_in(folder: Path, drafts: re.Pattern[str], until_unix_s: float) -> None:
    with contextlib.suppress(OSError):  # no such folder yet, or not ours: what matters is told by who reads it
        for path in list(folder.iterdir()):
            if drafts.match(path.name) and not path.is_dir() and path.stat().st_mtime <= until_unix_s:
                path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """A rename is durable when its directory is; some file systems cannot sync one."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(ErrorCode.HOME_UNUSABLE, f"{path} cannot be read: {error.strerror or error}; check its owner")
