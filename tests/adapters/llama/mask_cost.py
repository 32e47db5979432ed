"""What a grammar costs for a token: ``python -m tests.adapters.llama.mask_cost MODEL.gguf …``, no test.

For each vocabulary: sampling alone, with a token that the grammar allows (the usual case), with logits at random
(nearly every first pick is refused), and llama.cpp's own mask of all tokens beside it; median and worst, in ms.
"""

import ctypes
import sys
import time
from collections.abc import Callable

import numpy as np
from llama_cpp import llama_cpp as native

from p2pmesh.adapters.llama.grammars import GrammarShelf
from p2pmesh.core.grammar.constraint import Words
from p2pmesh.core.json_schema.translate import translate_schema
from p2pmesh.core.sampling import sample, sample_allowed
from p2pmesh.wire.begin import Begin
from p2pmesh.wire.generation import Grammar, SamplingParameters

TEXT = '{"name": "Alice in Wonderland", "age": 42, "tags": ["rabbit", "queen of hearts", "tea party"]}'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
                   "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "age", "tags"],
}  # fmt: skip


def timed(work: Callable[[], object], into: list[float]) -> None:
    started = time.perf_counter()
    work()
    into.append((time.perf_counter() - started) * 1000)


def words_of(vocabulary: object, size: int) -> Words:
    buffer = ctypes.create_string_buffer(4096)
    lengths = [native.llama_token_to_piece(vocabulary, token, buffer, 4096, 0, True) for token in range(size)]
    pieces = []
    for token, length in enumerate(lengths):
        native.llama_token_to_piece(vocabulary, token, buffer, 4096, 0, True)
        is_text = length > 0 and not native.llama_vocab_is_control(vocabulary, token)
        pieces.append(ctypes.string_at(buffer, length) if is_text else b"")
    return Words(pieces, frozenset(token for token in range(size) if native.llama_vocab_is_eog(vocabulary, token)))


def measure(path: str) -> None:
    parameters = native.llama_model_default_params()
    parameters.vocab_only = True
    vocabulary = native.llama_model_get_vocab(native.llama_model_load_from_file(path.encode(), parameters))
    size = native.llama_vocab_n_tokens(vocabulary)
    words, grammar = words_of(vocabulary, size), str(translate_schema(SCHEMA))
    ids = (ctypes.c_int32 * 256)()
    count = native.llama_tokenize(vocabulary, TEXT.encode(), len(TEXT), ids, 256, False, False)
    theirs = native.llama_sampler_init_grammar(vocabulary, grammar.encode(), b"root")
    data = (native.llama_token_data * size)()
    for sampling in (SamplingParameters(temperature=0.0), SamplingParameters(seed=3)):
        costs: dict[str, list[float]] = {"alone": [], "allowed": [], "random": [], "llama.cpp": []}
        held = GrammarShelf(lambda: words).constrain(Begin(sampling, 1, None, 4096, Grammar(grammar)))
        assert held is not None
        rng, history = np.random.default_rng(1), []
        for token in ids[:count]:
            noise = rng.normal(scale=8.0, size=size).astype(np.float32)  # as peaked as a model's
            wanted = noise.copy()
            wanted[token] = 90.0
            held.follow(history)
            place = (sampling, 0, len(history))
            timed(lambda: sample(wanted, [], 0, *place), costs["alone"])  # noqa: B023 - called at once
            timed(lambda: sample_allowed(wanted, [], 0, *place, held), costs["allowed"])  # noqa: B023
            timed(lambda: sample_allowed(noise, [], 0, *place, held), costs["random"])  # noqa: B023
            for index in range(size):
                data[index].id = index
            masked = native.llama_token_data_array(data, size, -1, False)
            timed(lambda: native.llama_sampler_apply(theirs, ctypes.byref(masked)), costs["llama.cpp"])  # noqa: B023
            native.llama_sampler_accept(theirs, token)
            history.append(token)
        shown = ", ".join(f"{name} {np.median(ms):.2f} / {max(ms):.2f}" for name, ms in costs.items())
        print(f"{size} tokens, temperature {sampling.temperature:g}: {shown} ms")
        native.llama_sampler_reset(theirs)


if __name__ == "__main__":
    native.llama_backend_init()
    for model in sys.argv[1:]:
        measure(model)
