"""Sampling as a pure function of logits, token history, parameters, choice index and position; log probabilities too.

The order of operations is fixed, since replay and speculation rely on it:

1. ``logit_bias`` is added, in float64, kept as float32;
2. penalties, over *generated* tokens only: repeat (a positive logit is divided, another multiplied), then presence
   (once) and frequency (times the count) are subtracted; computed in float64, kept as float32;
3. temperature 0: the token of the largest logit, the lowest id among equals;
4. temperature; then top-k, top-p, min-p, each a cut of the tokens ordered by (probability descending, id ascending);
5. inverse of the cumulative distribution in float64 over that order, at one uniform number.

The uniform number is the first output of Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; numpy's implementation) with key (seed, choice index) and counter (position, 0, 0, 0), its upper 53 bits over
2^53. A counter-based generator has no state to lose in a rollback.

The large vocabulary is never sorted whole: only as deep as the draw or a cut needs it.

Under a grammar (``sample_allowed``) the token picked so is taken if it is allowed. If not, one is picked among the
allowed ones that the cuts keep: with temperature 0 that of the largest logit; else that of the largest logit /
temperature - ln(-ln(u)), which draws from their distribution in one pass (the Gumbel-max trick) and needs to know of
few tokens whether they are allowed. u of token i is output i, as above, of counter (0, position, 1, 0). Where the cuts
keep no allowed token it is the one of the largest logit.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pmesh.wire.generation import SamplingParameters
from p2pmesh.wire.token_report import LEAST_LOGPROB, TokenReport

Logits = NDArray[np.float32]

# How far below the largest logit the ordered part reaches, in nats after temperature; the last is everything.
_DEPTHS = (4.0, 12.0, 32.0, math.inf)


def sample(
    logits: Logits,
    history: Sequence[int],
    prompt_tokens: int,
    parameters: SamplingParameters,
    sequence: int,
    position: int,
) -> int:
    """The token that follows ``history``.

    Args:
        logits: float32, shape ``(vocabulary,)``; not changed. Minus infinity forbids a token.
        history: all tokens so far, the prompt's first.
        prompt_tokens: how many of them are the prompt's.
        parameters: how to pick.
        sequence: choice index, part of the generator's key.
        position: sequence position of the token to come, the generator's counter.

    Raises ``ValueError`` when the largest logit is not finite: the engine is broken.
    """
    penalised = _penalise(_bias(logits, parameters), history, prompt_tokens, parameters)
    best = int(np.argmax(penalised))
    largest = float(penalised[best])
    if not math.isfinite(largest):
        raise ValueError(f"the largest logit is {largest}")
    if parameters.temperature == 0.0:
        return best
    uniform = draw_uniform(parameters.seed, sequence, position)
    return _draw(penalised, largest, parameters, uniform)


class Allowed(Protocol):
    """Which tokens may come next."""

    def allows(self, token: int) -> bool:
        """Whether ``token`` may."""

    def plausible(self) -> NDArray[np.int64]:
        """Ids, ascending, with all those among them that may."""

    def first_allowed(self, tokens: NDArray[np.int64], keys: NDArray[np.float64]) -> int | None:
        """Of those ``tokens`` that may, the one of the largest key, the lowest id among equals; None without any.

        Minus infinity takes a token out.
        """


def sample_allowed(
    logits: Logits,
    history: Sequence[int],
    prompt_tokens: int,
    parameters: SamplingParameters,
    sequence: int,
    position: int,
    allowed: Allowed,
) -> int | None:
    """As ``sample``, of the tokens that may come next; None when there is none."""
    first = sample(logits, history, prompt_tokens, parameters, sequence, position)
    if allowed.allows(first):
        return first
    penalised = _penalise(_bias(logits, parameters), history, prompt_tokens, parameters)
    plausible = allowed.plausible()
    if parameters.temperature > 0.0:
        kept = plausible[_is_kept(penalised, parameters)[plausible]]
        keys = penalised[kept] / parameters.temperature + _gumbel_noise(
            kept, len(logits), parameters.seed, sequence, position
        )
        found = allowed.first_allowed(kept, keys)
        if found is not None:
            return found
    return allowed.first_allowed(plausible, penalised[plausible].astype(np.float64))


def _gumbel_noise(
    tokens: NDArray[np.int64], count: int, seed: int, sequence: int, position: int
) -> NDArray[np.float64]:
    """Of these tokens out of ``count``."""
    generator = np.random.Philox(
        key=np.array((seed, sequence), dtype=np.uint64), counter=np.array((0, position, 1, 0), dtype=np.uint64)
    )
    uniform = (generator.random_raw(count)[tokens] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    with np.errstate(divide="ignore"):  # u = 0 has a key of minus infinity: its token is not drawn
        return np.asarray(-np.log(-np.log(uniform)))


def _is_kept(penalised: Logits, parameters: SamplingParameters) -> NDArray[np.bool_]:
    """For each token whether the cuts leave it in."""
    if parameters.top_k == 0 and parameters.top_p == 1.0 and parameters.min_p == 0.0:
        return np.ones(len(penalised), dtype=bool)
    ids = np.argsort(-penalised, kind="stable")[: parameters.top_k or None]
    weights = _weights(penalised[ids], float(penalised[ids[0]]), parameters.temperature)
    cumulative = np.cumsum(weights)
    kept = _count_kept(weights, cumulative, float(cumulative[-1]), parameters)
    is_kept = np.zeros(len(penalised), dtype=bool)
    is_kept[ids[:kept]] = True
    return is_kept


def draw_uniform(seed: int, sequence: int, position: int) -> float:
    """The number in ``[0, 1)`` that belongs to (seed, choice index, position)."""
    generator = np.random.Philox(
        key=np.array((seed, sequence), dtype=np.uint64), counter=np.array((position, 0, 0, 0), dtype=np.uint64)
    )
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def rank_logprobs(logits: Logits, token: int, count: int) -> TokenReport:
    """Log probability of ``token`` by the logits as the model gave them, and the ``count`` likeliest tokens.

    Ties go to the lower id, as in sampling. Computed in float64; below ``LEAST_LOGPROB`` it is that.
    """
    values = logits.astype(np.float64)
    largest = float(values.max())
    values -= largest + math.log(float(np.sum(np.exp(values - largest))))
    count = min(count, len(values))
    ids = np.empty(0, np.int64)
    if count:
        least = np.partition(logits, len(logits) - count)[len(logits) - count]
        ids = np.flatnonzero(logits >= least)
        ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    return TokenReport(_shown(values[token]), tuple((int(one), _shown(values[one])) for one in ids))


def _shown(logprob: float) -> float:
    return min(0.0, max(LEAST_LOGPROB, float(logprob)))


def _bias(logits: Logits, parameters: SamplingParameters) -> Logits:
    """The logits with what the client adds to some; the same array when there is nothing to do."""
    pairs = [(token, bias) for token, bias in parameters.logit_bias if token < len(logits)]
    if not pairs:
        return logits
    biased = logits.copy()
    ids = np.array([token for token, _ in pairs])
    biased[ids] = (logits[ids].astype(np.float64) + [bias for _, bias in pairs]).astype(np.float32)
    return biased


def _penalise(logits: Logits, history: Sequence[int], prompt_tokens: int, parameters: SamplingParameters) -> Logits:
    """The logits after penalties; the same array when there is nothing to do."""
    is_off = (
        parameters.presence_penalty == 0.0 and parameters.frequency_penalty == 0.0 and parameters.repeat_penalty == 1.0
    )
    if is_off or len(history) <= prompt_tokens:
        return logits
    tokens, counts = np.unique(np.asarray(history[prompt_tokens:], dtype=np.int64), return_counts=True)
    values = logits[tokens].astype(np.float64)
    values = np.where(values > 0, values / parameters.repeat_penalty, values * parameters.repeat_penalty)
    values -= parameters.presence_penalty + parameters.frequency_penalty * counts
    penalised = logits.copy()
    penalised[tokens] = values.astype(np.float32)
    return penalised


def _draw(logits: Logits, largest: float, parameters: SamplingParameters, uniform: float) -> int:
    """Cuts the ordered candidates and inverts their cumulative distribution."""
    temperature = parameters.temperature
    total = None if parameters.top_k else _total_weight(logits, largest, temperature)
    for depth in _DEPTHS:
        ids = np.flatnonzero(logits >= largest - depth * temperature)
        if parameters.top_k and len(ids) < min(parameters.top_k, len(logits)) and depth != math.inf:
            continue
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        if parameters.top_k:
            ids = ids[: parameters.top_k]
        weights = _weights(logits[ids], largest, temperature)
        cumulative = np.cumsum(weights)
        mass = float(cumulative[-1]) if total is None else total
        is_all = total is None or depth == math.inf
        kept = _count_kept(weights, cumulative, mass, parameters)
        if kept is None and not is_all:
            continue
        if kept is not None and kept < len(ids):
            ids, mass = ids[:kept], float(cumulative[kept - 1])
            is_all = True
        index = int(np.searchsorted(cumulative[: len(ids)], uniform * mass, side="right"))
        if index < len(ids) or is_all:
            return int(ids[min(index, len(ids) - 1)])
    raise AssertionError("the last depth holds every token")


def _count_kept(
    weights: NDArray[np.float64],
    cumulative: NDArray[np.float64],
    mass: float,
    parameters: SamplingParameters,
) -> int | None:
    """How many of the ordered candidates top-p and min-p keep; None when a cut may lie beyond them."""
    kept = len(weights)
    if parameters.top_p < 1.0:
        kept = int(np.searchsorted(cumulative, parameters.top_p * mass, side="left")) + 1
    if parameters.min_p > 0.0:
        kept = min(kept, int(np.count_nonzero(weights >= parameters.min_p * weights[0])))
    is_cut = parameters.top_p < 1.0 or parameters.min_p > 0.0
    if is_cut and kept < len(weights):
        return max(kept, 1)
    return None if is_cut else len(weights)


def _total_weight(logits: Logits, largest: float, temperature: float) -> float:
    return float(np.sum(_weights(logits, largest, temperature)))


def _weights(logits: Logits, largest: float, temperature: float) -> NDArray[np.float64]:
    """Unnormalised probabilities; the largest is 1."""
    shifted = logits.astype(np.float64)
    shifted -= largest
    shifted /= temperature
    return np.exp(shifted, out=shifted)
