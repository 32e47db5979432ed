"""The handle of llama.cpp's CPU backend, which it makes for a context and hands to nobody.

One public switch needs it: ``ggml_backend_cpu_set_use_ref``. It keeps flash attention for a single row on the kernel
that every other width takes, instead of one that splits the cache among the threads (and rounds otherwise); it also
switches a fusion off, which some families notice in their bits. Whether it helps is therefore measured at load.

The handle is taken where it is made: the CPU device's table of functions gets a wrapper around ``init_backend``. The
place in the table belongs to the pinned version and is proven by making one backend through the public call; when that
does not pass the wrapper, the table is put back and there is no handle.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

_CPU_DEVICE = 0
_INIT_BACKEND_SLOT = 5
_INIT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)

_made: list[int] = []


def take_made() -> int | None:
    """The handle made since the last call, if it was exactly one."""
    handle = _made[0] if len(_made) == 1 else None
    _made.clear()
    return handle


def use_reference(handle: int, is_on: bool) -> None:
    """Sets the switch of a live backend; it holds from the next call on."""
    _set_use_ref(handle, is_on)


def _library(name: str) -> Any:
    folder = Path(llama_cpp.__file__).parent / "lib"
    found = sorted(path for path in folder.glob(f"*{name}*") if path.suffix in (".so", ".dylib"))
    return ctypes.CDLL(str(found[0])) if found else None


def _install() -> tuple[Any, Callable[[int, bool], None]]:
    """Wraps the function; (what must stay alive, the switch). Raises ``AttributeError`` where a symbol is missing."""
    registry, cpu, base = _library("ggml.so") or _library("ggml.dylib"), _library("ggml-cpu"), _library("ggml-base")
    by_type = registry.ggml_backend_dev_by_type
    by_type.restype, by_type.argtypes = ctypes.c_void_p, [ctypes.c_int]
    make, free = base.ggml_backend_dev_init, base.ggml_backend_free
    make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    switch = cpu.ggml_backend_cpu_set_use_ref
    switch.restype, switch.argtypes = None, [ctypes.c_void_p, ctypes.c_bool]
    device = by_type(_CPU_DEVICE)
    slot = ctypes.c_void_p.from_address(device + _INIT_BACKEND_SLOT * ctypes.sizeof(ctypes.c_void_p))
    original_address = slot.value
    if original_address is None:
        raise AttributeError("the CPU device makes no backends")
    original = _INIT(original_address)

    def make_backend(owner: int, parameters: bytes | None) -> int | None:
        handle: int | None = original(owner, parameters)
        if handle is not None:
            _made.append(handle)
        return handle

    wrapper = _INIT(make_backend)
    slot.value = ctypes.cast(wrapper, ctypes.c_void_p).value
    proof = make(device, None)
    if proof is None or take_made() != proof:
        slot.value = original_address
        raise AttributeError("the CPU device's table is laid out otherwise")
    free(proof)
    return (original, wrapper), switch


_alive: Any = None
_set_use_ref: Callable[[int, bool], None] = lambda _handle, _is_on: None  # noqa: E731
try:
    _alive, _set_use_ref = _install()
except AttributeError:
    # no handle: rows alone are padded where they need it
    _alive = None
