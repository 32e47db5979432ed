"""Files in use, told between processes: a node claims what it serves, a command asks before it removes.

A claim is a shared ``flock`` of the kernel, so it ends with its process, however that ends. On a file system without
locks nothing is claimed and everything may be removed: an open or mapped file stays readable to who has it.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def claim(paths: Iterable[Path]) -> list[int]:
    """Claims the files that exist, together with others who do; descriptors for ``end_claim``."""
    held: list[int] = []
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return held


def claim_open(descriptor: int, path: Path) -> bool:
    """Claims an open file until it is closed; False if somebody has it alone, or has removed it meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def end_claim(held: Iterable[int]) -> None:
    """Gives back what ``claim`` gave."""
    for descriptor in held:
        os.close(descriptor)


@contextmanager
def claimed_alone(path: Path) -> Iterator[bool]:
    """Whether nobody else claims the file; while the scope lasts nobody can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:
            yield True
        else:
            yield True
    finally:
        os.close(descriptor)
