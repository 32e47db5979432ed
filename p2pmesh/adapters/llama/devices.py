"""What this build of llama.cpp finds to run on: asked in a child process, whose death is an answer too."""

import json
import subprocess
import sys
from dataclasses import dataclass

from p2pmesh.adapters.llama.exits import describe_exit, last_line_of
from p2pmesh.base.errors import EngineError, ErrorCode

DEADLINE_S = 30.0
MAX_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Device:
    """One device; ``type`` is cpu, gpu, integrated_gpu or accelerator, ``backend`` such as CPU, CUDA, Vulkan, Metal."""

    name: str
    description: str
    backend: str
    type: str
    free_bytes: int
    total_bytes: int


def list_devices() -> tuple[Device, ...]:
    """Blocks until the child has answered; ``EngineError(ENGINE_LOAD_FAILED)`` says why it did not."""
    command = [sys.executable, "-m", "p2pmesh.adapters.llama.devices_child"]
    try:
        finished = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"it did not answer within {DEADLINE_S:.0f} s") from None
    if finished.returncode != 0:
        raise _failed(describe_exit(finished.returncode, last_line_of(finished.stderr)))
    return decode_devices(finished.stdout)


def decode_devices(answer: bytes) -> tuple[Device, ...]:
    """The devices of a child's answer."""
    try:
        rows = json.loads(answer)
        return tuple(
            Device(
                str(row["name"]), str(row["description"]), str(row["backend"]), str(row["type"]),
                int(row["free_bytes"]), int(row["total_bytes"]),
            )
            for row in rows[:MAX_DEVICES]
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        raise _failed("its answer cannot be read") from None


def _failed(cause: str) -> EngineError:
    return EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"llama.cpp does not tell its devices: {cause}")
