"""What this build of llama.cpp finds to run on: asked in a child process, whose death is an answer too.

Implements ``ports.devices``.
"""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

from p2pmesh.adapters.child_environment import engine_environment
from p2pmesh.adapters.child_runs import run_module
from p2pmesh.adapters.llama.exits import describe_exit, last_line_of
from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.core.devices import Device, DeviceListing

DEADLINE_S = 30.0
MAX_DEVICES = 64
MAX_DEVICE_BYTES = 2**50
_PROCESSOR_LIBRARIES = ("ggml", "ggml-base", "ggml-cpu")


def list_devices() -> DeviceListing:
    """Blocks until the child has answered; ``EngineError(ENGINE_LOAD_FAILED)`` says why it did not."""
    module = "p2pmesh.adapters.llama.devices_child"
    try:
        finished = run_module(module, timeout_s=DEADLINE_S, environment=engine_environment())
    except OSError as error:
        raise _failed(f"no process can be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _failed(f"it did not answer within {DEADLINE_S:.0f} s") from None
    if finished.returncode != 0:
        raise _failed(describe_exit(finished.returncode, last_line_of(finished.stderr)))
    return decode_listing(finished.stdout)


def decode_listing(answer: bytes) -> DeviceListing:
    """The devices of a child's answer."""
    try:
        fields = json.loads(answer)
        devices = tuple(
            Device(
                str(row["name"]), str(row["description"]), str(row["backend"]), str(row["type"]),
                *_memory_of(row),
            )
            for row in fields["devices"][:MAX_DEVICES]
        )  # fmt: skip
        return DeviceListing(devices, tuple(map(str, fields["backends"][:MAX_DEVICES])))
    except (ValueError, KeyError, TypeError):
        raise _failed("its answer cannot be read") from None


def _memory_of(row: dict[str, object]) -> tuple[int, int]:
    """Free and in all; some backends tell 0 or all bits set where they do not know."""
    free, total = (int(str(row[name])) for name in ("free_bytes", "total_bytes"))
    total = total if 0 < total <= MAX_DEVICE_BYTES else 0
    return max(0, min(free, total)), total


def is_built_for_processor_alone() -> bool:
    """Whether the installed library has no backend but the processor's, by its files: then nobody need be asked."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return False
    files = (Path(spec.origin).parent / "lib").glob("*ggml*")
    names = {file.name.split(".")[0].removeprefix("lib") for file in files}
    return "ggml-cpu" in names and names <= set(_PROCESSOR_LIBRARIES)


def _failed(cause: str) -> EngineError:
    return EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"llama.cpp does not tell its devices: {cause}")
