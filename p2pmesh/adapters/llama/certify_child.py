"""Runs one tiny model whole and cut, and compares bits: ``python -m p2pmesh.adapters.llama.certify_child FIELDS``.

``FIELDS`` is JSON: ``architecture``, ``has_experts``, ``folder``, ``cases`` (a list of lists of cuts; an empty one is
the whole model). Prints ``begin N REFUSAL`` before case N, and its outcome as a line of JSON after it: a failed
assertion of llama.cpp aborts the process, and whoever started it must know which case it was.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2pmesh.adapters.llama.binding import LoadedStage, LoadOptions
from p2pmesh.adapters.llama.tiny_models import write_tiny_model
from p2pmesh.adapters.llama.tiny_variants import Variant, tiny_metadata
from p2pmesh.adapters.model_files import FileSource, segment_pieces
from p2pmesh.base.errors import ErrorCode, P2PMeshError
from p2pmesh.base.ids import LayerRange
from p2pmesh.model.families import rule_refusal
from p2pmesh.model.gguf import GgufIndex, read_index
from p2pmesh.model.stage_file import draft_stage_file

_PREFILL_ROWS = 20
_STEPS = 12
_CELLS = 256
_SEQUENCES = 3
_SEED = 7

_Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case gave. ``difference``: the largest, relative to the largest logit; ``None`` where it did not run.

    ``refusal`` is the reason of the rules not to cut there; ``failure`` why it did not run.
    """

    case: int
    is_exact: bool
    has_equal_tokens: bool
    difference: float | None
    refusal: str = ""
    failure: str = ""


class _Chain:
    """Stages of one model in a row, or the whole model as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        last = len(paths) - 1
        self._stages = [
            LoadedStage(LoadOptions(str(path), number == 0, number == last, _SEQUENCES, _CELLS, 1, False))
            for number, path in enumerate(paths)
        ]

    def run(self, tokens: Sequence[int], position: int) -> _Logits:
        """Logits of every row, ``(rows, vocabulary)``."""
        count = len(tokens)
        hidden: NDArray[np.float32] | None = None
        for stage in self._stages:
            rows = stage.rows
            rows.positions[:count] = np.arange(position, position + count)
            rows.sequences[:count] = 0
            rows.outputs[:count] = 1
            if stage.takes_tokens:
                rows.tokens[:count] = tokens
            if hidden is not None:
                rows.embeddings[:count] = hidden
            status = stage.decode(count)
            if status != 0:
                raise P2PMeshError(ErrorCode.INTERNAL, f"a call of {count} rows failed ({status})")
            if stage is not self._stages[-1]:
                hidden = stage.hidden_rows()
        return np.stack([self._stages[-1].logits(row).copy() for row in range(count)])

    def close(self) -> None:
        """Frees the models."""
        for stage in self._stages:
            stage.close()


def _run_all(chain: _Chain, tokens: Sequence[int], prompt_rows: int) -> _Logits:
    parts = [chain.run(tokens[:prompt_rows], 0)]
    parts += [chain.run([token], prompt_rows + step) for step, token in enumerate(tokens[prompt_rows:])]
    return np.concatenate(parts)


def _run_greedy(chain: _Chain, prompt: list[int]) -> tuple[list[int], _Logits]:
    """The whole model's own greedy continuation: its tokens, prompt first, and the logits of every row."""
    tokens = list(prompt)
    parts = [chain.run(prompt, 0)]
    for _ in range(_STEPS):
        tokens.append(int(parts[-1][-1].argmax()))
        parts.append(chain.run(tokens[-1:], len(tokens) - 1))
    return tokens, np.concatenate(parts)


class _Comparison:
    def __init__(self, model: Path) -> None:
        self._model = model
        self._index = _index_of(model)
        random = np.random.Generator(np.random.PCG64(_SEED))
        prompt = [int(token) for token in random.integers(3, 100, _PREFILL_ROWS)]
        chain = _Chain([model])
        self._tokens, self._logits = _run_greedy(chain, prompt)
        chain.close()
        if not np.isfinite(self._logits).all() or np.ptp(self._logits) == 0:
            raise P2PMeshError(ErrorCode.INTERNAL, "the whole model gives no usable logits")

    def ranges(self, cuts: Sequence[int]) -> list[LayerRange]:
        """The layers of each stage."""
        return [LayerRange(start, end) for start, end in pairwise([0, *cuts, self._index.layer_count])]

    def refusal(self, cuts: Sequence[int]) -> str:
        """Why the rules do not permit these cuts, or empty."""
        return next((text for layers in self.ranges(cuts) if (text := rule_refusal(self._index, layers))), "")

    def run(self, number: int, cuts: Sequence[int]) -> Outcome:
        ranges, refusal = self.ranges(cuts), self.refusal(cuts)
        paths = [self._model.with_suffix(f".{n}.gguf") for n in range(len(ranges))]
        try:
            for path, layers in zip(paths, ranges, strict=True):
                _write_stage(self._model, self._index, layers, path)
            chain = _Chain(paths)
            got = _run_all(chain, self._tokens, _PREFILL_ROWS)
            chain.close()
        except (P2PMeshError, ValueError) as error:
            return Outcome(number, False, False, None, refusal, str(error)[:300])
        finally:
            for path in paths:
                path.unlink(missing_ok=True)
        return self._outcome(number, got, refusal)

    def _outcome(self, number: int, got: _Logits, refusal: str) -> Outcome:
        scale = float(np.abs(self._logits).max())
        difference = float(np.nan_to_num(np.abs(got - self._logits), nan=np.inf).max()) / scale
        has_equal_tokens = bool((got.argmax(axis=1) == self._logits.argmax(axis=1)).all())
        return Outcome(number, bool(np.array_equal(got, self._logits)), has_equal_tokens, difference, refusal)


def _index_of(path: Path) -> GgufIndex:
    with FileSource(path) as source:
        return read_index(source)


def _write_stage(model: Path, index: GgufIndex, layers: LayerRange, path: Path) -> None:
    with FileSource(model) as source, path.open("wb") as target:
        for piece in segment_pieces(source, draft_stage_file(index, layers).segments, lambda: None):
            target.write(piece)


def main() -> None:
    """Runs the cases of the first argument."""
    fields = json.loads(sys.argv[1])
    variant = Variant(fields["architecture"], fields["has_experts"])
    model = Path(fields["folder"]) / f"{variant.name}.gguf"
    if not model.exists():
        write_tiny_model(tiny_metadata(variant), model)
    comparison = _Comparison(model)
    for number, cuts in enumerate(fields["cases"]):
        print(f"begin {number} {comparison.refusal(cuts)}", flush=True)
        print(json.dumps(asdict(comparison.run(number, cuts))), flush=True)


if __name__ == "__main__":
    main()
