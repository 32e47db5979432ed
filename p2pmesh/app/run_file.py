"""``HOME/run.json``: how the commands of one user find the node that runs in a home.

Readable by its owner alone (mode 0600), because it holds the console's token. It appears whole or not at all.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from p2pmesh.adapters.private_files import write_private
from p2pmesh.base.errors import ConfigError, ErrorCode

FILE_NAME = "run.json"
MAX_RUN_FILE_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class RunFile:
    """A running node's process id, its URLs without a slash at the end, the bearer token of its console."""

    pid: int
    api_url: str
    console_url: str
    console_token: str
    peer_id: str


def write_run_file(home: Path, record: RunFile) -> None:
    """Replaces the file; ``ConfigError(HOME_UNUSABLE)`` where the home is none or cannot be written."""
    if not home.is_dir():
        raise ConfigError(ErrorCode.HOME_UNUSABLE, f"the home {home} is not there; choose another with --home")
    write_private(home / FILE_NAME, json.dumps(asdict(record)).encode())


def read_run_file(home: Path) -> RunFile:
    """The node that runs in ``home``; ``ConfigError(NODE_NOT_RUNNING)`` if none does."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang us; it holds no record either
        with open(os.open(home / FILE_NAME, flags), "rb") as file:
            data = file.read(MAX_RUN_FILE_BYTES + 1) or b""
    except FileNotFoundError:
        raise _not_running(home) from None
    except OSError as error:
        message = f"{home / FILE_NAME} cannot be read: {error.strerror}; check its owner, or give the node's --home"
        raise ConfigError(ErrorCode.HOME_UNUSABLE, message) from None
    record = _decode(data)
    if record is None or not is_process_alive(record.pid):
        raise _not_running(home)
    return record


def is_node_running(home: Path) -> bool:
    """Whether a node runs in ``home``; ``ConfigError(HOME_UNUSABLE)`` where that cannot be seen."""
    try:
        read_run_file(home)
    except ConfigError as error:
        if error.code is not ErrorCode.NODE_NOT_RUNNING:
            raise
        return False
    return True


def remove_run_file(home: Path, pid: int) -> None:
    """Removes the file if it is still that of process ``pid``."""
    path = home / FILE_NAME
    try:
        record = _decode(path.read_bytes())
        if record is not None and record.pid == pid:
            path.unlink()
    except OSError:
        return  # gone already, or a home that is not ours any more: a reader finds the process dead


def is_process_alive(pid: int) -> bool:
    """Whether a process with this id exists, ours or another user's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def is_process_stopped(pid: int) -> bool:
    """Whether it stands still by a signal, such as that of Ctrl-Z; false where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return fields.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])  # its name, before, may hold anything


def _decode(data: bytes) -> RunFile | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    pid = value.get("pid")
    given = (value.get(name) for name in ("api_url", "console_url", "console_token", "peer_id"))
    texts = [text for text in given if isinstance(text, str)]
    if type(pid) is not int or pid <= 0 or len(texts) != 4:
        return None
    return RunFile(pid, *texts)


def _not_running(home: Path) -> ConfigError:
    return ConfigError(ErrorCode.NODE_NOT_RUNNING, f"no node runs in {home}; start it with p2pmesh up")
