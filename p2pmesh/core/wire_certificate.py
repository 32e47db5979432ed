"""Whether a lossy wire dtype may be used for a model: measured figures in, verdicts and clearances out.

Owns the judgement and what a certificate means. Measuring is ``app.certify_wire``'s, the file is the adapters', the
refusal to launch is ``core.planning``'s. Nothing here is decided by the name of a family alone: a certificate belongs
to the digest of one model, and what others reviewed (``ReviewedRecord``) only to a model of the same shape.

The yardstick is the *floor*: what noise no larger than f16's rounding does to the same rows. The kernels behind a
stage quantise activations themselves, so that any perturbation at all moves logits by that much; against zero even f16
would look bad, and a format that stays within ``KL_FACTOR`` of the floor cannot be told from one that loses nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.wire.dtype import WireDtype

KL_FACTOR = 1.5
"""Rejected beyond this multiple of the floor's mean divergence."""
STANDARD_ERRORS = 3.0
"""Of the share of tokens that agree: what chance may make of the tokens at hand."""
LARGEST_PERPLEXITY_LOSS = 0.01
"""Beyond the floor's own."""
LEAST_TOKENS = 64
"""With fewer positions no verdict is given."""


class WireVerdict(StrEnum):
    """What is known of one dtype at one cut."""

    VALIDATED = "validated"
    REJECTED = "rejected"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class WireFigures:
    """Last-stage logits behind one wire dtype (or noise) against those behind f32, over the positions of one text.

    ``argmax_agreement`` is a share; ``mean_kl`` and ``largest_kl`` are nats a position; ``perplexity_loss`` is relative
    (0.01: one percent worse). ``widened_rows`` held an element that does not fit and were taken as f32.
    """

    argmax_agreement: float
    mean_kl: float
    largest_kl: float
    perplexity_loss: float
    widened_rows: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its reason, a line."""

    verdict: WireVerdict
    reason: str


@dataclass(frozen=True, slots=True)
class CutRecord:
    """What was measured at one cut. ``perplexity`` and ``largest_magnitude`` are those of f32."""

    cut: int
    tokens: int
    perplexity: float
    largest_magnitude: float
    floor: WireFigures
    figures: Mapping[WireDtype, WireFigures]


@dataclass(frozen=True, slots=True)
class WireCertificate:
    """The record of one model, named by its digest alone; ``fingerprint`` is that of the engine that measured."""

    model_digest: str
    layer_count: int
    fingerprint: str
    cuts: tuple[CutRecord, ...]

    def judge(self, dtype: WireDtype, cut: int) -> Judgement:
        """The verdict at a cut; untested where nothing was measured."""
        for record in self.cuts:
            if record.cut == cut and dtype in record.figures:
                return judge_figures(record.figures[dtype], record.floor, record.tokens)
        return Judgement(WireVerdict.UNTESTED, f"{dtype.label} was not measured at layer {cut}")

    def validated_cuts(self, dtype: WireDtype) -> tuple[int, ...]:
        """Where the dtype may be used, ascending."""
        cuts = sorted(record.cut for record in self.cuts)
        return tuple(cut for cut in cuts if self.judge(dtype, cut).verdict is WireVerdict.VALIDATED)

    def is_tested(self, dtype: WireDtype) -> bool:
        """Whether there is a verdict at any cut."""
        return any(self.judge(dtype, record.cut).verdict is not WireVerdict.UNTESTED for record in self.cuts)


@dataclass(frozen=True, slots=True)
class ReviewedRecord:
    """What upstream's reviewers say of one model file; ``q8`` is of their only 8-bit format, one scale a row."""

    family: str
    architecture: str
    model: str
    layer_count: int
    hidden_size: int
    default_dtype: WireDtype
    q8: WireVerdict


@dataclass(frozen=True, slots=True)
class WireClearance:
    """Where a model may be cut with a wire dtype. ``cuts`` None is anywhere; ``reason`` says why not elsewhere."""

    cuts: frozenset[int] | None
    reason: str


def judge_figures(figures: WireFigures, floor: WireFigures, tokens: int) -> Judgement:
    """A verdict from figures over ``tokens`` positions; the first measure that fails gives the reason."""
    if tokens < LEAST_TOKENS:
        return Judgement(WireVerdict.UNTESTED, f"{tokens} tokens are too few to tell, {LEAST_TOKENS} are needed")
    if not all(map(math.isfinite, (figures.mean_kl, figures.perplexity_loss))):
        return Judgement(WireVerdict.REJECTED, "the logits are not finite")
    most_kl = KL_FACTOR * floor.mean_kl
    if figures.mean_kl > most_kl:
        return Judgement(WireVerdict.REJECTED, f"KL {figures.mean_kl:.1e}, at most {most_kl:.1e} is the floor's")
    share = floor.argmax_agreement
    least = share - STANDARD_ERRORS * math.sqrt(max(share * (1 - share), 1 / tokens) / tokens)
    if figures.argmax_agreement < least:
        text = f"{figures.argmax_agreement:.1%} of tokens agree, at least {least:.1%} do at the floor"
        return Judgement(WireVerdict.REJECTED, text)
    most_loss = max(floor.perplexity_loss, 0.0) + LARGEST_PERPLEXITY_LOSS
    if figures.perplexity_loss > most_loss:
        text = f"perplexity {figures.perplexity_loss:+.1%}, at most {most_loss:+.1%} is the floor's"
        return Judgement(WireVerdict.REJECTED, text)
    widened = f", {figures.widened_rows} of {tokens} rows overflow and travel as f32" if figures.widened_rows else ""
    return Judgement(WireVerdict.VALIDATED, f"KL {figures.mean_kl:.1e}, floor {floor.mean_kl:.1e}{widened}")


def find_reviewed(
    records: tuple[ReviewedRecord, ...], architecture: str, layer_count: int, hidden_size: int
) -> ReviewedRecord | None:
    """The record of a model of exactly this architecture and shape; None too where several disagree."""
    shape = (architecture, layer_count, hidden_size)
    found = [item for item in records if (item.architecture, item.layer_count, item.hidden_size) == shape]
    agreed = {(item.default_dtype, item.q8) for item in found}
    return found[0] if len(agreed) == 1 else None


def clear_wire(
    dtype: WireDtype, certificate: WireCertificate | None, reviewed: ReviewedRecord | None, reference: str
) -> WireClearance:
    """Where ``dtype`` may be used. f32 always; else where this model was certified; f16 where reviewers say so.

    A certificate outweighs a review: it is of this very file, and of this engine. A review never clears anything but
    f16, since a row that f16 cannot hold travels as f32, whereas what a coarser format loses is lost unseen.
    """
    if dtype in (WireDtype.NONE, WireDtype.F32):
        return WireClearance(None, "")
    command = f"`p2pmesh certify wire {reference}`"
    if certificate is not None and certificate.is_tested(dtype):
        cuts = certificate.validated_cuts(dtype)
        where = f"only at {', '.join(map(str, cuts))}" if cuts else "nowhere"
        text = f"{dtype.label} is certified {where} for this model; use f32, or run {command} with --cuts all"
        return WireClearance(frozenset(cuts), text)
    if dtype is WireDtype.F16 and reviewed is not None and reviewed.default_dtype is WireDtype.F16:
        return WireClearance(None, "")
    return WireClearance(frozenset(), f"{dtype.label} is not certified for this model; use f32, or run {command}")
