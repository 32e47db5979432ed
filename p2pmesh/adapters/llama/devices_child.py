"""The child of ``devices``: prints what this build of llama.cpp finds to run on, as JSON.

In a process of its own, since a driver that is broken takes the process down with it.
``P2PMESH_PROBE_TRAP=1`` makes it die of a real SIGILL, as ``probe_child`` does: for tests.
"""

import ctypes
import json
import os
import signal
from typing import Any

import llama_cpp.llama_cpp as binding

_TYPES = ("cpu", "gpu", "integrated_gpu", "accelerator")
"""``enum ggml_backend_dev_type``, in its order."""
_MOST = 64


def main() -> None:
    """Devices, and the backends that found them."""
    if os.environ.get("P2PMESH_PROBE_TRAP") == "1":
        os.kill(os.getpid(), signal.SIGILL)
    binding.llama_backend_init()
    print(json.dumps(list_ggml(binding._lib)))


def list_ggml(library: Any) -> dict[str, list[Any]]:
    """What the functions of ``library`` tell."""
    count = _function(library, "ggml_backend_dev_count", ctypes.c_size_t)
    get = _function(library, "ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    backends = _function(library, "ggml_backend_reg_count", ctypes.c_size_t)
    backend = _function(library, "ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = _function(library, "ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    return {
        "devices": [_describe(library, get(at)) for at in range(min(count(), _MOST))],
        "backends": [_text(name(backend(at))) for at in range(min(backends(), _MOST))],
    }


def _describe(library: Any, device: int) -> dict[str, object]:
    name = _function(library, "ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = _function(library, "ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = _function(library, "ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    registry = _function(library, "ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
    backend = _function(library, "ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    sizes = ctypes.POINTER(ctypes.c_size_t)
    memory = _function(library, "ggml_backend_dev_memory", None, ctypes.c_void_p, sizes, sizes)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    memory(device, ctypes.byref(free), ctypes.byref(total))
    number = kind(device)
    return {
        "name": _text(name(device)),
        "description": _text(description(device)),
        "backend": _text(backend(registry(device))),
        "type": _TYPES[number] if 0 <= number < len(_TYPES) else str(number),
        "free_bytes": free.value,
        "total_bytes": total.value,
    }


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _function(library: Any, name: str, result: object, *arguments: object) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


if __name__ == "__main__":
    main()
