"""Which devices a node of this machine uses, and what to do where there are none. The rule is ``core.devices``'."""

import sys
from collections.abc import Callable
from pathlib import Path

from p2pmesh.adapters.llama.devices import is_built_for_processor_alone
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.core.devices import (
    PROCESSOR_ALONE,
    DeviceChoice,
    DeviceListing,
    DeviceRefusal,
    choose_devices,
)
from p2pmesh.ports.devices import ListDevices

_TRACES = (
    ("/dev/nvidiactl", "an NVIDIA GPU", "CUDA"),
    ("/dev/kfd", "an AMD GPU", "HIP"),
    ("/dev/dri/renderD128", "a GPU", "VULKAN"),
)
"""Files of Linux that drivers make, what they mean, and the backend to build for it."""
_BUILD = (
    'CMAKE_ARGS="-DGGML_{backend}=on" pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python '
    "llama-cpp-python=={version}"
)
_BACKEND_NAMES = {"HIP": "ROCm", "METAL": "MTL"}
"""As ggml registers them, where that is another name than that of the build option."""


def choose(
    wanted: tuple[str, ...],
    gpu_layers: int | None,
    list_devices: ListDevices,
    note: Callable[[P2PMeshError], None],
) -> DeviceChoice:
    """Where stages run; blocks while llama.cpp is asked, which a build without other backends need not be.

    ``ConfigError`` where a wish cannot be met. Without a wish, a probe that fails is told to ``note``, and leaves the
    processor.
    """
    if not wanted and gpu_layers is None:
        if is_built_for_processor_alone():
            return PROCESSOR_ALONE
        try:
            found = list_devices()
        except P2PMeshError as error:
            note(error)
            return PROCESSOR_ALONE
    else:
        found = list_devices()
    chosen = choose_devices(found.devices, wanted, gpu_layers)
    if isinstance(chosen, DeviceRefusal):
        raise ConfigError(ErrorCode.CONFIG_INVALID, chosen.text)
    return chosen


def remedy_for(found: DeviceListing, version: str, exists: Callable[[str], bool] | None = None) -> str | None:
    """What would let a GPU of this machine join in; None where one does already."""
    if any(device.takes_layers for device in found.devices):
        return None
    there = exists or (lambda path: Path(path).exists())
    built = {name.upper() for name in found.backends}
    if sys.platform == "darwin":
        traces: list[tuple[str, str]] = [("this machine's GPU", "METAL")]
    else:
        traces = [(what, backend) for path, what, backend in _TRACES if there(path)]
    if not traces:
        build = _BUILD.format(backend="VULKAN", version=version)
        return f"no sign of a GPU is found; if there is one, install its driver, and llama.cpp for it: {build}"
    what, backend = traces[0]
    if _BACKEND_NAMES.get(backend, backend).upper() in built:
        return f"{what} is here and llama.cpp is built for it ({backend}), but finds no device: check its driver"
    build = _BUILD.format(backend=backend, version=version)
    return f"{what} is here, but this llama.cpp is not built for it; install one that is: {build}"
