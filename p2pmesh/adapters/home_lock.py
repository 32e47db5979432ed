"""The home of a node: made on first use, private, held by one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2pmesh.base.errors import ConfigError, ErrorCode

LOCK_FILE = "lock"


@contextmanager
def hold_home(home: Path) -> Iterator[Path]:
    """The home, locked; ``ConfigError`` with ``HOME_IN_USE`` or ``HOME_UNUSABLE``.

    The kernel drops the lock with the process, however it ends.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"the home {home} cannot be used: {error.strerror}; choose another with --home"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"another node runs in {home}; stop it, or give this one a home of its own with --home"
            raise ConfigError(ErrorCode.HOME_IN_USE, message) from None
        yield home
    finally:
        os.close(descriptor)
