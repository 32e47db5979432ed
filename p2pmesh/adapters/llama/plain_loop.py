"""A plain, tuned decode loop on a whole model: the baseline of ``p2pmesh bench decode``.

No engine of ours: no padding, no exact width, no sampler, no socket; one row a call, greedy, all CPUs, a context just
large enough, what llama.cpp does best by default. It runs as a process of its own, with OpenMP threads of its own.
"""

import json
import subprocess
import sys

import trio

from p2pmesh.adapters.child_environment import engine_environment
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.base.errors import EngineError, ErrorCode

_MODULE = "p2pmesh.adapters.llama.plain_loop"
_BATCH_TOKENS = 256
_WARM_UP_TOKENS = 8


async def measure_plain_decode(path: str, prompt_tokens: int, decode_tokens: int, timeout_s: float) -> float:
    """Tokens per second of decode after a prompt of ``prompt_tokens`` (pseudo-random) ids.

    Cancelled, or too slow, the loop is ended. ``EngineError`` (``DEADLINE_EXCEEDED``, ``ENGINE_CRASHED``).
    """
    arguments = json.dumps([path, prompt_tokens, decode_tokens, usable_threads()])
    try:
        with trio.fail_after(timeout_s):
            finished: subprocess.CompletedProcess[bytes] = await trio.run_process(
                [sys.executable, "-m", _MODULE, arguments],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=engine_environment(),
            )
    except trio.TooSlowError:
        text = f"the plain loop did not end within {timeout_s:.0f} s: try again with less load, or with fewer --tokens"
        raise EngineError(ErrorCode.DEADLINE_EXCEEDED, text) from None
    if finished.returncode != 0:
        last = finished.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
        text = f"the plain loop ended with {finished.returncode}: {last[0][:300]}"
        raise EngineError(ErrorCode.ENGINE_CRASHED, text)
    return float(json.loads(finished.stdout)["tokens_per_second"])


def _run(path: str, prompt_tokens: int, decode_tokens: int, threads: int) -> float:
    import ctypes
    import time

    import numpy as np
    from llama_cpp import llama_cpp as native

    quiet = native.llama_log_callback(lambda _level, _text, _data: None)
    native.llama_log_set(quiet, ctypes.c_void_p(0))
    native.llama_backend_init()
    model = native.llama_model_load_from_file(path.encode(), native.llama_model_default_params())
    parameters = native.llama_context_default_params()
    parameters.n_ctx = prompt_tokens + decode_tokens + _WARM_UP_TOKENS + 1
    parameters.n_batch = parameters.n_ubatch = _BATCH_TOKENS
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.flash_attn_type = 1
    parameters.no_perf = True
    context = native.llama_init_from_model(model, parameters)
    size = native.llama_vocab_n_tokens(native.llama_model_get_vocab(model))
    prompt = np.random.Generator(np.random.PCG64(1)).integers(0, size, prompt_tokens).astype(np.int32)

    def decode(tokens: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> None:
        pointer = ctypes.cast(tokens.ctypes.data, ctypes.POINTER(ctypes.c_int32))
        if native.llama_decode(context, native.llama_batch_get_one(pointer, len(tokens))) != 0:
            raise RuntimeError("llama.cpp failed a call of the plain loop")

    def step(token: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> None:
        decode(token)
        logits = np.ctypeslib.as_array(native.llama_get_logits_ith(context, -1), (size,))
        token[0] = int(np.argmax(logits))

    for start in range(0, prompt_tokens, _BATCH_TOKENS):
        decode(prompt[start : start + _BATCH_TOKENS])
    token = np.zeros(1, dtype=np.int32)
    for _ in range(_WARM_UP_TOKENS):
        step(token)
    began = time.perf_counter()
    for _ in range(decode_tokens):
        step(token)
    return decode_tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps({"tokens_per_second": _run(*json.loads(sys.argv[1]))}))
