"""What the control groups of this process leave it: containers and services have less than their machine.

Memory and processor time, version 2 and the controllers of version 1, of the process's own group and of all above it.
Of memory, what the kernel can drop at once (inactive pages of files) counts as left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
_MAX_GROUPS_BYTES = 64 * 1024
_MAX_STAT_BYTES = 64 * 1024
_MOST_LEVELS = 64
_NO_LIMIT = 1 << 60
"""Version 2 says ``max`` where there is no limit, version 1 a number near 2^63."""


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of files."""

    limit: str
    usage: str
    droppable: str


_SECOND = _Version("memory.max", "memory.current", "inactive_file")
_FIRST = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def processor_quota(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> float | None:
    """The fewest processors that any group allows, as a share of time; None where none has a limit."""
    shares = [_share_in(folder, version) for folder, version in _groups(root, own_groups, "cpu")]
    return min((one for one in shares if one is not None), default=None)


def _share_in(folder: Path, version: _Version) -> float | None:
    if version is _SECOND:
        quota, period = [*_read(folder / "cpu.max", 64).split(), "", ""][:2]
    else:
        quota, period = (_read(folder / f"cpu.cfs_{name}_us", 64) for name in ("quota", "period"))
    allowed_us, of_us = _number(quota), _number(period)  # "max", or -1, where there is no limit
    return allowed_us / of_us if allowed_us and of_us else None


def memory_left_bytes(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> int | None:
    """The least that any group leaves, from 0 on; None where none has a limit or this system has no groups."""
    left = [_left_in(folder, version) for folder, version in _groups(root, own_groups, "memory")]
    return min((one for one in left if one is not None), default=None)


def _groups(root: Path, own_groups: Path, controller: str) -> Iterator[tuple[Path, _Version]]:
    """The folders that may hold limits. In a container its own group often stands at the root itself."""
    for line in _read(own_groups, _MAX_GROUPS_BYTES).splitlines():
        _, controllers, path, *_ = [*line.split(":", 2), "", ""]
        if controllers and controller not in controllers.split(","):
            continue
        version = _FIRST if controllers else _SECOND
        base = root / controller if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")][:_MOST_LEVELS]
        yield base, version
        for depth in range(1, len(parts) + 1):
            yield base.joinpath(*parts[:depth]), version


def _left_in(folder: Path, version: _Version) -> int | None:
    limit = _number(_read(folder / version.limit, 64))
    usage = _number(_read(folder / version.usage, 64))
    if limit is None or usage is None or limit >= _NO_LIMIT:
        return None
    stat = dict(line.split()[:2] for line in _read(folder / "memory.stat", _MAX_STAT_BYTES).splitlines() if " " in line)
    return max(0, limit - usage + (_number(stat.get(version.droppable, "")) or 0))


def _number(text: str) -> int | None:
    stripped = text.strip()
    return int(stripped) if stripped.isascii() and stripped.isdecimal() else None


def _read(path: Path, most_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode("ascii", "replace")
    except OSError:
        return ""
