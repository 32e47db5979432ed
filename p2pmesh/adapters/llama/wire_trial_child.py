"""Measures what wire dtypes do to a model cut in two: ``python -m p2pmesh.adapters.llama.wire_trial_child``.

Reads a ``WireTrialRequest`` as JSON from stdin, prints the outcome as a line of JSON. Both stages live here, and one
text goes through the first once. Then every variant of the rows (f32, noise, each dtype) goes through the second in a
sequence of its own, some rows of each in turn, so that the logits of no more than ``_ROWS`` positions are held.
"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from p2pmesh.adapters.llama.child import fingerprint
from p2pmesh.adapters.llama.vocabulary import Vocabulary
from p2pmesh.core.wire_certificate import WireFigures
from p2pmesh.wire.activation import decode_rows, encode_rows
from p2pmesh.wire.dtype import WireDtype

_ROWS = 48
"""As a prefill in an engine."""
_NOISE = 2.0**-11
"""The largest relative error of rounding to f16."""
_NOISE_SEEDS = (1, 2)

_Rows = NDArray[np.float32]


def main() -> None:
    """One trial."""
    fields = json.load(sys.stdin)
    print(json.dumps(_measure(fields)))


@dataclass(slots=True)
class _Variant:
    """Rows after one treatment, and how the logits behind them differ from those behind f32."""

    treat: Callable[[_Rows], _Rows]
    divergences: list[float] = field(default_factory=list)
    agreements: int = 0
    surprise: float = 0.0
    widened_rows: int = 0

    def add(self, log_probabilities: _Rows, reference: _Rows, following: int | None) -> None:
        """One position: its logits as log probabilities, those behind f32, and the token that follows."""
        terms = np.exp(reference) * (reference - log_probabilities)
        self.divergences.append(max(float(terms.sum(dtype=np.float64)), 0.0))
        self.agreements += int(log_probabilities.argmax() == reference.argmax())
        if following is not None:
            self.surprise -= float(log_probabilities[following])


def _measure(fields: dict[str, Any]) -> dict[str, Any]:
    dtypes = [WireDtype(number) for number in fields["dtypes"]]
    first = _load(fields, fields["first_path"], is_first=True, sequences=1)
    data = Vocabulary(first).tokenize(fields["text"], add_special=True, parse_special=False)
    tokens = np.frombuffer(data, dtype="<i4")[: fields["token_count"]]
    hidden = np.concatenate(
        [_run_first(first, tokens[start : start + _ROWS], start) for start in range(0, len(tokens), _ROWS)]
    )
    first.close()
    base = _Variant(lambda rows: rows)
    noisy = [_Variant(_noise(seed)) for seed in _NOISE_SEEDS]
    coded = [_coded(dtype) for dtype in dtypes]
    variants = [base, *noisy, *coded]
    last = _load(fields, fields["last_path"], is_first=False, sequences=len(variants))
    for start in range(0, len(tokens), _ROWS):
        _compare(last, variants, hidden[start : start + _ROWS], tokens, start)
    last.close()
    positions = len(tokens)
    floor = _mean([_figures(variant, base, positions) for variant in noisy])
    figures = {int(dtype): asdict(_figures(item, base, positions)) for dtype, item in zip(dtypes, coded, strict=True)}
    return {
        "tokens": positions,
        "perplexity": _perplexity(base, positions),
        "largest_magnitude": float(np.abs(hidden).max()),
        "fingerprint": fingerprint(fields["threads"], fields["use_extra_buffers"]),
        "floor": asdict(floor),
        "figures": figures,
    }


def _load(fields: dict[str, Any], path: str, *, is_first: bool, sequences: int) -> LoadedStage:
    cells = sequences * (fields["token_count"] + _ROWS)
    threads, use_extra = fields["threads"], fields["use_extra_buffers"]
    return LoadedStage(LoadOptions(path, is_first, not is_first, sequences, cells, threads, use_extra))


def _run(stage: LoadedStage, count: int, start: int, sequence: int) -> None:
    stage.rows.positions[:count] = np.arange(start, start + count)
    stage.rows.sequences[:count] = sequence
    stage.rows.outputs[:count] = 1
    status = stage.decode(count)
    if status != 0:
        raise SystemExit(f"llama.cpp failed a call of {count} rows ({status})")


def _run_first(stage: LoadedStage, tokens: NDArray[np.int32], start: int) -> _Rows:
    stage.rows.tokens[: len(tokens)] = tokens
    _run(stage, len(tokens), start, 0)
    return stage.hidden_rows()[: len(tokens)].copy()


def _compare(
    stage: LoadedStage, variants: list[_Variant], hidden: _Rows, tokens: NDArray[np.int32], start: int
) -> None:
    """Some positions through the last stage, in every variant; the first of them is the reference."""
    references: list[_Rows] = []
    for sequence, variant in enumerate(variants):
        stage.rows.embeddings[: len(hidden)] = variant.treat(hidden)
        if stage.takes_tokens:
            stage.rows.tokens[: len(hidden)] = tokens[start : start + len(hidden)]
        _run(stage, len(hidden), start, sequence)
        for row in range(len(hidden)):
            log_probabilities = _log_softmax(stage.logits(row))
            if sequence == 0:
                references.append(log_probabilities)
            position = start + row
            following = int(tokens[position + 1]) if position + 1 < len(tokens) else None
            variant.add(log_probabilities, references[row], following)


def _log_softmax(logits: _Rows) -> _Rows:
    shifted: _Rows = logits - logits.max()
    shifted -= np.float32(math.log(float(np.exp(shifted).sum(dtype=np.float64))))
    return shifted


def _noise(seed: int) -> Callable[[_Rows], _Rows]:
    random = np.random.Generator(np.random.PCG64(seed))

    def treat(rows: _Rows) -> _Rows:
        errors = random.uniform(-_NOISE, _NOISE, rows.shape).astype(np.float32)
        return rows * (1 + errors)

    return treat


def _coded(dtype: WireDtype) -> _Variant:
    """Rows as they arrive after the wire, each a frame of its own, as in a decode."""
    variant = _Variant(lambda rows: rows)

    def treat(rows: _Rows) -> _Rows:
        arrived = np.empty_like(rows)
        for index in range(len(rows)):
            body, sent = encode_rows(rows[index : index + 1], dtype)
            arrived[index] = decode_rows(body, sent, 1, rows.shape[1])
            variant.widened_rows += sent is not dtype
        return arrived

    variant.treat = treat
    return variant


def _perplexity(variant: _Variant, positions: int) -> float:
    return math.exp(variant.surprise / max(positions - 1, 1))


def _figures(variant: _Variant, base: _Variant, positions: int) -> WireFigures:
    return WireFigures(
        argmax_agreement=variant.agreements / positions,
        mean_kl=float(np.mean(variant.divergences)),
        largest_kl=max(variant.divergences),
        perplexity_loss=_perplexity(variant, positions) / _perplexity(base, positions) - 1,
        widened_rows=variant.widened_rows,
    )


def _mean(figures: list[WireFigures]) -> WireFigures:
    count = len(figures)
    return WireFigures(
        argmax_agreement=sum(item.argmax_agreement for item in figures) / count,
        mean_kl=sum(item.mean_kl for item in figures) / count,
        largest_kl=max(item.largest_kl for item in figures),
        perplexity_loss=sum(item.perplexity_loss for item in figures) / count,
    )


if __name__ == "__main__":
    main()
