"""A thin layer over the C interface of llama.cpp: one loaded stage, its context, calls of rows, its cells.

Owns every structure and symbol of the library that the engine uses, checked at import (the package is pinned because
its structures are bound). Which rows go into a call, and what is done with the outputs, is decided by the callers.

Numerics that the rest relies on: flash attention on, one unified cache, full-size sliding-window cache, f16 KV.
"""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as native
from numpy.typing import NDArray

from p2pmesh.adapters.llama import cpu_backend, native_log
from p2pmesh.base.errors import EngineError, ErrorCode
from p2pmesh.model.cost import CALL_ROWS
from p2pmesh.model.stage_file import INPUT_TENSOR_KEY, INPUT_TOKENS_KEY, OUTPUT_TENSOR_KEY

PINNED_VERSION = "0.3.36"
KV_TYPE = "f16"
_SECTIONS = 4
_ROPES_OF_SECTIONS = (8, 40)
"""LLAMA_ROPE_TYPE_MROPE and _IMROPE: rows that are no tokens come with four positions each."""
_TAP_TEXT_BYTES = 64
_POOLING_NONE = 0

_NAMES = (
    "llama_backend_init", "llama_model_default_params", "llama_model_load_from_file", "llama_model_free",
    "llama_context_default_params", "llama_init_from_model", "llama_free", "llama_get_memory", "llama_decode",
    "llama_get_logits_ith", "llama_model_n_embd", "llama_model_n_layer", "llama_model_get_vocab",
    "llama_vocab_n_tokens", "llama_vocab_bos", "llama_vocab_is_eog", "llama_vocab_is_control", "llama_tokenize",
    "llama_vocab_type", "llama_token_to_piece", "llama_vocab_get_text", "llama_model_chat_template",
    "llama_memory_clear", "llama_memory_seq_rm", "llama_memory_seq_cp", "llama_state_seq_get_size",
    "llama_state_seq_get_data", "llama_state_seq_set_data", "llama_print_system_info", "llama_log_set",
    "llama_model_rope_type", "llama_model_is_recurrent", "llama_model_is_hybrid", "llama_model_meta_val_str",
    "llama_model_init_from_user", "llama_set_embeddings", "llama_get_embeddings_ith",
)  # fmt: skip


def _check_library() -> None:
    if llama_cpp.__version__ != PINNED_VERSION:
        raise ImportError(f"llama-cpp-python {PINNED_VERSION} is needed, {llama_cpp.__version__} is installed")
    missing = [name for name in _NAMES if not hasattr(native, name)]
    if missing:
        raise ImportError(f"llama-cpp-python {llama_cpp.__version__} lacks {', '.join(missing)}")


_check_library()
native_log.capture()
native.llama_backend_init()


def _load_ggml() -> Any:
    """The base library of ggml, for the tap; llama-cpp-python does not bind it."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    found = sorted(path for path in folder.glob("*ggml-base*") if path.suffix in (".so", ".dylib", ".dll"))
    if not found:
        raise ImportError(f"no ggml base library in {folder}")
    library = ctypes.CDLL(str(found[0]))
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    library.ggml_nbytes.restype = ctypes.c_size_t
    library.ggml_nbytes.argtypes = [ctypes.c_void_p]
    library.ggml_backend_tensor_get.restype = None
    library.ggml_backend_tensor_get.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    ]  # fmt: skip
    library.ggml_backend_tensor_set.restype = None
    library.ggml_backend_tensor_set.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    ]  # fmt: skip
    library.gguf_init_from_file.restype = ctypes.c_void_p
    for name in ("ggml_version", "ggml_commit"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


ggml = _load_ggml()
"""The base library, its functions typed as far as they are used."""


def describe_build() -> tuple[str, ...]:
    """Package version, ggml version and commit, and llama.cpp's line of backends and CPU features."""
    return (
        llama_cpp.__version__,
        ggml.ggml_version().decode(),
        ggml.ggml_commit().decode(),
        native.llama_print_system_info().decode("utf-8", "replace"),
    )


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a stage file. ``sequences`` counts the scratch ones too; ``cells`` is the size of the cache.

    ``gpu_layers`` of the file go to ``devices``, named as ggml does; without devices all runs on the processor.
    """

    path: str
    is_first: bool
    is_last: bool
    sequences: int
    cells: int
    threads: int
    use_extra_buffers: bool
    gpu_layers: int = 0
    devices: tuple[str, ...] = ()


class RowBuffers:
    """Input rows of the next call, in arrays that llama.cpp reads in place; whoever makes a call fills the first ones.

    ``embeddings`` (float32, ``(CALL_ROWS, hidden)``) at every stage but the first, which has ``tokens``, as any other
    that ``takes_tokens``; all arrays have ``CALL_ROWS`` rows. Made once: a call of one row would spend longer on new
    arrays than on what it puts in.
    """

    def __init__(
        self, hidden_size: int, *, is_first: bool, takes_tokens: bool = False, has_sections: bool = False
    ) -> None:
        takes_tokens = takes_tokens or is_first
        self.tokens = np.zeros(CALL_ROWS if takes_tokens else 0, dtype=np.int32)
        self.embeddings = np.zeros((0 if is_first else CALL_ROWS, hidden_size), dtype=np.float32)
        self.positions = np.zeros(CALL_ROWS, dtype=np.int32)
        self.sequences = np.zeros(CALL_ROWS, dtype=np.int32)
        self.outputs = np.ones(CALL_ROWS, dtype=np.int8)
        first = self.sequences.ctypes.data
        self._sequence_pointers = np.arange(first, first + 4 * CALL_ROWS, 4, dtype=np.uint64)
        self._ones = np.ones(CALL_ROWS, dtype=np.int32)
        self._batch = native.llama_batch()
        self._batch.token = _pointer(self.tokens, ctypes.c_int32) if takes_tokens else None
        self._batch.embd = None if takes_tokens else _pointer(self.embeddings, ctypes.c_float)
        self._section_positions: NDArray[np.int32] | None = None
        if has_sections and not takes_tokens:
            self._section_positions = np.zeros(_SECTIONS * CALL_ROWS, dtype=np.int32)
        wide = self._section_positions
        self._batch.pos = _pointer(self.positions if wide is None else wide, ctypes.c_int32)
        self._batch.n_seq_id = _pointer(self._ones, ctypes.c_int32)
        self._batch.seq_id = ctypes.cast(
            self._sequence_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        )
        self._batch.logits = _pointer(self.outputs, ctypes.c_int8)

    def first(self, count: int) -> Any:
        """The first ``count`` rows as a ``llama_batch``, valid until the next call of this."""
        if not 1 <= count <= CALL_ROWS:
            raise ValueError(f"a call of {count} rows")
        self._batch.n_tokens = count
        wide = self._section_positions
        if wide is not None:  # text: time, height and width are one position, the fourth section is none
            wide[: 3 * count] = np.tile(self.positions[:count], 3)
            wide[3 * count : _SECTIONS * count] = 0
        return self._batch


class LoadedStage:
    """A stage file with a context. Not thread-safe; ``close`` frees both."""

    def __init__(self, options: LoadOptions) -> None:
        self._model = _load_model(options)
        self.hidden_size = int(native.llama_model_n_embd(self._model))
        self.vocabulary = native.llama_model_get_vocab(self._model)
        self.vocabulary_size = int(native.llama_vocab_n_tokens(self.vocabulary))
        source = "" if options.is_first else self._text(INPUT_TENSOR_KEY)
        held = int(native.llama_model_n_layer(self._model))
        target = "" if options.is_last else self._text(OUTPUT_TENSOR_KEY) or f"l_out-{held - 1}"
        has_sections = int(native.llama_model_rope_type(self._model)) in _ROPES_OF_SECTIONS
        repeats_first = bool(self._text(INPUT_TOKENS_KEY))
        self.takes_tokens = options.is_first or repeats_first
        self.layer_count = held - repeats_first
        """Its own layers: the first one of all, computed again, is not counted."""
        self.rows = RowBuffers(
            self.hidden_size,
            is_first=options.is_first,
            takes_tokens=self.takes_tokens,
            has_sections=has_sections,
        )
        self.has_state = bool(native.llama_model_is_recurrent(self._model) or native.llama_model_is_hybrid(self._model))
        self._tap = _Tap(source, target, self.rows) if source or target else None
        cpu_backend.take_made()
        try:
            self._context = _make_context(self._model, options, self._tap)
        except EngineError:
            native.llama_model_free(self._model)
            raise
        self._cpu_backend = cpu_backend.take_made()
        self._memory = native.llama_get_memory(self._context)
        self._logits: tuple[int, NDArray[np.float32]] | None = None

    def close(self) -> None:
        """Frees the context and the model."""
        native.llama_free(self._context)
        native.llama_model_free(self._model)

    @property
    def has_reference_attention(self) -> bool:
        """Whether ``use_reference_attention`` has an effect."""
        return self._cpu_backend is not None

    def use_reference_attention(self, is_on: bool) -> None:
        """For the calls to come: one row takes the attention kernel of the other widths (see ``cpu_backend``)."""
        if self._cpu_backend is not None:
            cpu_backend.use_reference(self._cpu_backend, is_on)

    def decode(self, count: int) -> int:
        """Runs one call on the first ``count`` of ``rows``; 0, or llama.cpp's code of what failed (no cell taken)."""
        if self._tap is not None:
            self._tap.begin(count)
        status = int(native.llama_decode(self._context, self.rows.first(count)))
        if status == 0 and self._tap is not None and not self._tap.is_done():
            return -100
        return status

    def hidden_rows(self) -> NDArray[np.float32]:
        """Hidden states of every row of the last call, ``(rows, hidden)``; not the last stage."""
        assert self._tap is not None
        assert self._tap.output is not None
        return self._tap.output.reshape(-1, self.hidden_size)

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits of row ``row`` of the last call, which was marked as an output; a view until the next call."""
        pointer = native.llama_get_logits_ith(self._context, row)
        address = ctypes.addressof(pointer.contents)
        if self._logits is None or self._logits[0] != address:  # making the view takes longer than finding the maximum
            self._logits = address, np.ctypeslib.as_array(pointer, (self.vocabulary_size,))
        return self._logits[1]

    def give_embeddings(self, is_on: bool) -> None:
        """For the calls to come: rows marked as outputs are also had as they are after the last norm."""
        native.llama_set_embeddings(self._context, is_on)

    def embedding_rows(self, count: int) -> NDArray[np.float32]:
        """The first ``count`` rows of the last call, which were all outputs, ``(count, hidden)``; last stage only."""
        shape = (self.hidden_size,)
        pointers = (native.llama_get_embeddings_ith(self._context, row) for row in range(count))
        return np.stack([np.ctypeslib.as_array(pointer, shape) for pointer in pointers])

    def pooling_type(self) -> str:
        """What the metadata says of how the model is to be read; empty where it says nothing."""
        return self._text(f"{self._text('general.architecture')}.pooling_type")

    def drop_cells(self, sequence: int, start: int) -> None:
        """Frees the cells of a sequence from position ``start`` on."""
        native.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def share_cells(self, source: int, target: int, start: int, end: int = -1) -> None:
        """Makes the cells of ``source`` at positions ``[start, end)`` belong to ``target`` too; -1: to the last."""
        native.llama_memory_seq_cp(self._memory, source, target, start, end)

    def clear_cells(self) -> None:
        """Empties the cache; the next row takes its first cell."""
        native.llama_memory_clear(self._memory, False)

    def save_cells(self, sequence: int) -> Any:
        """The cells of a sequence as an opaque buffer."""
        size = native.llama_state_seq_get_size(self._context, sequence)
        buffer = (ctypes.c_uint8 * size)()
        written = native.llama_state_seq_get_data(self._context, buffer, size, sequence)
        return buffer if written == size else None

    def restore_cells(self, sequence: int, buffer: Any) -> bool:
        """Writes saved cells to the first free cells, in order."""
        return bool(native.llama_state_seq_set_data(self._context, buffer, len(buffer), sequence) == len(buffer))

    def _text(self, key: str) -> str:
        """A text of the file's metadata; empty without it."""
        buffer = ctypes.create_string_buffer(_TAP_TEXT_BYTES)
        length = native.llama_model_meta_val_str(self._model, key.encode(), buffer, _TAP_TEXT_BYTES)
        return buffer.value.decode("utf-8", "replace") if length > 0 else ""

    def chat_template(self) -> str | None:
        """The template in the file's metadata."""
        template = native.llama_model_chat_template(self._model, None)
        return None if template is None else template.decode("utf-8", "replace")


class _Tap:
    """Writes the rows over the tensor ``source``, copies the tensor ``target`` out of the graph and stops it there.

    Either name may be empty. What llama.cpp makes of rows that are no tokens before its first layer (scales them, adds
    positions, normalises) is meant for embeddings; the rows between stages replace the outcome instead.

    llama.cpp asks of each of some hundred tensors of a step, and to look at its name takes longer than all else of the
    answer. Calls of equally many rows have one graph, so that names are looked at from where one was found before.
    """

    def __init__(self, source: str, target: str, rows: RowBuffers) -> None:
        self.output: NDArray[np.float32] | None = None
        self._is_written = False
        self._source, self._target = source.encode(), target.encode()
        self._rows = rows
        self._places: dict[tuple[int, bytes], int] = {}
        """Which of the tensors that are asked about has a name, by the rows of the call; counted from 1."""
        self._count = 0
        wanted = tuple(name for name in (self._source, self._target) if name)
        asked = known = 0
        get_name = ggml.ggml_get_name

        def look_from(name: bytes) -> None:
            nonlocal known
            known = self._places.get((self._count, name), 0) if name else sys.maxsize

        def begin() -> None:
            nonlocal asked
            asked = 0
            look_from(wanted[0])

        def evaluate(tensor: int, is_asked: bool, _user_data: object) -> bool:
            nonlocal asked
            if is_asked:  # nothing may be added here
                asked += 1
                return asked >= known and get_name(tensor) in wanted
            name = get_name(tensor)
            self._places[self._count, name] = asked
            if name == self._source:
                look_from(self._target)
                return self._write(tensor)
            return self._read(tensor)

        self._begin = begin
        self.evaluate = evaluate
        self.callback = native.ggml_backend_sched_eval_callback(evaluate)

    def _write(self, tensor: int) -> bool:
        ggml.ggml_backend_tensor_set(tensor, self._rows.embeddings.ctypes.data, 0, ggml.ggml_nbytes(tensor))
        self._is_written = True
        return True

    def _read(self, tensor: int) -> bool:
        size = ggml.ggml_nbytes(tensor)
        output = np.empty(size // 4, dtype=np.float32)
        ggml.ggml_backend_tensor_get(tensor, output.ctypes.data, 0, size)
        self.output = output
        return False

    def begin(self, count: int) -> None:
        """Before a call of so many rows."""
        self.output = None
        self._is_written = False
        self._count = count
        self._begin()

    def is_done(self) -> bool:
        """Whether the last call met both tensors; if not, the next one looks at every name."""
        is_done = (not self._source or self._is_written) and (not self._target or self.output is not None)
        if not is_done:
            self._places.clear()
        return is_done


def _pointer(array: NDArray[Any], element: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(element))


def _load_model(options: LoadOptions) -> Any:
    parameters = native.llama_model_default_params()
    parameters.use_extra_bufts = options.use_extra_buffers
    parameters.n_gpu_layers = options.gpu_layers
    devices = _device_handles(options.devices)  # read while the file is loaded
    parameters.devices = ctypes.addressof(devices)
    model = native.llama_model_load_from_file(options.path.encode(), parameters)
    if not model:
        raise EngineError(
            ErrorCode.ENGINE_LOAD_FAILED, f"llama.cpp cannot load {options.path}: {native_log.last_complaint()}"
        )
    return model


def _device_handles(names: tuple[str, ...]) -> Any:
    """A list that ends with NULL. An empty one keeps the processor alone; none at all would let every GPU join in."""
    find = native._lib.ggml_backend_dev_by_name
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    handles = [find(name.encode()) for name in names]
    missing = [name for name, handle in zip(names, handles, strict=True) if not handle]
    if missing:
        text = f"the device {missing[0]} is gone; see `p2pmesh gpus`, and start the node again"
        raise EngineError(ErrorCode.ENGINE_LOAD_FAILED, text)
    return (ctypes.c_void_p * (len(handles) + 1))(*handles, None)


def _make_context(model: Any, options: LoadOptions, tap: _Tap | None) -> Any:
    parameters = native.llama_context_default_params()
    parameters.n_ctx = options.cells
    # Each sequence may want an output in one call, and llama.cpp aborts when that is more than a batch holds.
    parameters.n_batch = parameters.n_ubatch = max(CALL_ROWS, options.sequences)
    parameters.n_seq_max = options.sequences
    parameters.n_threads = parameters.n_threads_batch = options.threads
    parameters.flash_attn_type = 1
    parameters.kv_unified = True
    parameters.swa_full = True
    parameters.no_perf = True
    parameters.pooling_type = _POOLING_NONE  # rows as they are: a prompt may come in several calls
    if tap is not None:
        parameters.cb_eval = tap.callback
    context = native.llama_init_from_model(model, parameters)
    if not context:
        raise EngineError(
            ErrorCode.ENGINE_LOAD_FAILED,
            f"no memory for a context of {options.cells} tokens, use a smaller one: {native_log.last_complaint()}",
        )
    return context
