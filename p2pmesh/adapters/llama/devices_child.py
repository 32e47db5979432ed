"""The child of ``devices``: prints what this build of llama.cpp finds to run on, as JSON.

In a process of its own, since a driver that is broken takes the process down with it.
"""

import ctypes
import json
from typing import Any

import llama_cpp.llama_cpp as binding

_TYPES = ("cpu", "gpu", "integrated_gpu", "accelerator")
"""``enum ggml_backend_dev_type``, in its order."""


def main() -> None:
    """One list of devices."""
    binding.llama_backend_init()
    library = binding._lib
    count = _function(library, "ggml_backend_dev_count", ctypes.c_size_t)
    get = _function(library, "ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    print(json.dumps([_describe(library, get(at)) for at in range(min(count(), 64))]))


def _describe(library: ctypes.CDLL, device: int) -> dict[str, object]:
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


def _function(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)
    return function


if __name__ == "__main__":
    main()
