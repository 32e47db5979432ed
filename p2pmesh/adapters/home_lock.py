"""The home of a node: made on first use, private, held by one process at a time."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2pmesh.adapters.private_files import unwritable
from p2pmesh.base.errors import ConfigError, ErrorCode

LOCK_FILE = "lock"
RECORDS_LOCK_FILE = "records.lock"


@contextmanager
def hold_home(home: Path) -> Iterator[Path]:
    """The home, locked; ``ConfigError`` with ``HOME_IN_USE``, ``HOME_UNUSABLE`` or ``DISK_FULL``.

    The kernel drops the lock with the process, however it ends.
    """
    in_use = f"another node runs in {home}; stop it, or give this one a home of its own with --home"
    with _hold(home, LOCK_FILE, in_use):
        yield home


@contextmanager
def hold_records(home: Path) -> Iterator[Path]:
    """The trust store and the claim of a home, for who reads, changes and writes them; errors as of ``hold_home``.

    A node may run in the home meanwhile.
    """
    in_use = f"another p2pmesh auth changes {home}; wait until it is done, and try again"
    with _hold(home, RECORDS_LOCK_FILE, in_use):
        yield home


@contextmanager
def _hold(home: Path, name: str, in_use: str) -> Iterator[None]:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise unwritable(home, error) from None
        reason = "it is no directory" if isinstance(error, FileExistsError) else error.strerror
        message = f"the home {home} cannot be used: {reason}; choose another with --home"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(ErrorCode.HOME_IN_USE, in_use) from None
        yield
    finally:
        os.close(descriptor)
