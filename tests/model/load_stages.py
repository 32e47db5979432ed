"""Run as a program: loads GGUF files in a real llama.cpp with the contexts that engines use, one line each.

A separate process, because llama.cpp aborts where it refuses a cut.
"""

import ctypes
import sys

from llama_cpp import llama_cpp


def load(path: str) -> int:
    """Loads a file, makes a context, and returns its number of layers."""
    model_params = llama_cpp.llama_model_default_params()
    model_params.use_extra_bufts = False
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        raise SystemExit(f"{path} does not load")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 128, 32, 32, 3
    params.flash_attn_type, params.kv_unified, params.swa_full = 1, True, True
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"{path} gives no context")
    layers = int(llama_cpp.llama_model_n_layer(model))
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return layers


def _silent(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp's log is not ours to print."""


if __name__ == "__main__":
    silent = llama_cpp.llama_log_callback(_silent)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    for name in sys.argv[1:]:
        print(load(name), flush=True)
