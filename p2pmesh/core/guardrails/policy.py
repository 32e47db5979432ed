"""When guardrails interfere. Numbers are Mesh LLM's; they are off unless an operator turns them on."""

from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.core.auto_model import parameters_millions


class GuardrailMode(StrEnum):
    """What becomes of what is found."""

    OFF = "off"
    METRICS = "metrics"
    ENFORCE = "enforce"


class Intervention(StrEnum):
    """What was done, or in mode ``metrics`` would have been."""

    COMPACTED = "compacted"
    RESCUED = "rescued"
    ASKED_ANEW = "asked-anew"
    GIVEN_UP = "given-up"
    """The last answer is as wrong as those before it, and is given as it is."""


@dataclass(frozen=True, slots=True)
class GuardrailPolicy:
    """Answers are mended of models below ``below_millions`` parameters: larger ones err seldom, and cost much to ask.

    A name that tells no size counts as small. A prompt is compacted from ``compact_from_percent`` of the context on,
    to ``compact_to_percent`` of it.
    """

    mode: GuardrailMode = GuardrailMode.OFF
    tool_retries: int = 1
    structured_retries: int = 2
    below_millions: int = 9_000
    compact_from_percent: int = 90
    compact_to_percent: int = 80
    rescue_bytes: int = 65_536

    def mends(self, model: str) -> bool:
        """Whether answers of a model are looked at."""
        return (parameters_millions(model) or 0) < self.below_millions
