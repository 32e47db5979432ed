"""Tiny models with random weights, of any architecture that llama.cpp knows, from metadata alone.

llama.cpp itself says which tensors a metadata describes: it is handed a GGUF without tensors and calls back for each
one. They are written, with the very metadata that was given, into an ordinary GGUF. Same metadata, same bytes.
Run in a child process: a metadata that llama.cpp does not like may abort it.
"""

import ctypes
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as native
from numpy.typing import NDArray

from p2pmesh.adapters.llama import native_log
from p2pmesh.adapters.llama.binding import ggml
from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.model.gguf import DEFAULT_ALIGNMENT, padded
from p2pmesh.model.gguf_writer import TensorShape, Value, encode_header
from p2pmesh.model.tensor_types import TENSOR_TYPES, tensor_bytes

_DEVIATION = 0.1
_F16 = 1
_I32 = 26
_DIMENSIONS = 4
_LEFT_OUT = (b"dense_", b"cls")
"""Heads of embedding models and classifiers, which llama.cpp asks for everywhere they may occur."""


class _Head(ctypes.Structure):
    """The first fields of ``ggml_tensor``."""

    _fields_ = (("type", ctypes.c_int32), ("buffer", ctypes.c_void_p), ("shape", ctypes.c_int64 * _DIMENSIONS))


class _InitParameters(ctypes.Structure):
    """``gguf_init_params``."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def write_tiny_model(metadata: Mapping[str, Value], path: Path) -> None:
    """Writes the model that ``metadata`` describes; ``EngineError`` where llama.cpp finds none in it."""
    tensors = _tensors_of(metadata, path.with_suffix(".meta"))
    shapes = [shape for shape, _ in tensors]
    with path.open("wb") as file:
        file.write(encode_header(metadata, shapes))
        for shape, data in tensors:
            file.write(data.tobytes().ljust(padded(shape.size_bytes, DEFAULT_ALIGNMENT), b"\0"))


def _tensors_of(metadata: Mapping[str, Value], scratch: Path) -> list[tuple[TensorShape, NDArray[Any]]]:
    scratch.write_bytes(encode_header(metadata))
    found: dict[str, tuple[TensorShape, NDArray[Any]]] = {}

    def fill(tensor: int, _user_data: object) -> None:
        name = ggml.ggml_get_name(tensor)
        head = ctypes.cast(tensor, ctypes.POINTER(_Head)).contents
        shape = _shape(name.decode(), head)
        data = _weights(name, shape)
        ggml.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, shape.size_bytes)
        if not name.startswith(_LEFT_OUT):
            found.setdefault(shape.name, (shape, data))

    callback = native.llama_model_set_tensor_data_t(fill)
    parameters = native.llama_model_default_params()
    parameters.use_extra_bufts = False
    header = ggml.gguf_init_from_file(str(scratch).encode(), _InitParameters(True, None))
    model = native.llama_model_init_from_user(header, callback, None, parameters) if header else None
    scratch.unlink()
    if not model:
        raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, f"no model of this metadata: {native_log.last_complaint()}")
    native.llama_model_free(model)
    return list(found.values())


def _shape(name: str, head: _Head) -> TensorShape:
    dimensions = _DIMENSIONS
    while dimensions > 1 and head.shape[dimensions - 1] == 1:
        dimensions -= 1
    shape = tuple(int(size) for size in head.shape[:dimensions])
    return TensorShape(name, shape, head.type, tensor_bytes(TENSOR_TYPES[head.type], shape))


def _weights(name: bytes, shape: TensorShape) -> NDArray[Any]:
    """Seeded by the tensor's name. Norms lie around 1; the decay of a state-space layer is negative."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(name)))
    count = int(np.prod(shape.shape))
    if shape.ggml_type == _I32:
        return random.integers(0, 2, count).astype(np.int32)
    values = (random.standard_normal(count) * _DEVIATION).astype(np.float32)
    if b"ssm_a" in name:
        values = -np.abs(values)
    if b"norm" in name:
        values += 1
    return values.astype(np.float16) if shape.ggml_type == _F16 else values
