"""Which models answer a request for ``mesh``, and as what: the strong one, specialists, the fast one.

All is read off names, so that the same models have the same roles at every peer and at any time, and a seed gives the
same answer. A name that tells no size counts as the smallest: no name passes for a strong model by saying nothing.
Roles, their limits and all times are Mesh LLM's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from p2pmesh.core.auto_model import AUTO, Kind, parameters_millions, strengths_of

MESH = "mesh"
"""The name under which several models answer."""
LEAST_MODELS = 2
VIRTUAL_MODELS = frozenset({AUTO, MESH})
"""Names that an ingress resolves. Nobody is asked for them, whatever a peer announces: so no request fans out twice."""


class Role(StrEnum):
    """What a model is asked as."""

    STRONG = "strong"
    SPECIALIST = "specialist"
    FAST = "fast"


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """Tokens of a draft, and how many of the last messages it is made from, beside the instructions."""

    tokens: int
    messages: int


@dataclass(frozen=True, slots=True)
class MixturePolicy:
    """Times in microseconds, confidences in thousandths.

    A draft may take ``worker_us``. In a chat the others get ``grace_us`` after the first whole draft, the strong model
    at least ``patience_us`` from the start. Where the drafts decide nothing a model has to begin the answer that they
    are reduced to within ``reducer_us``; a second one is asked beside it when it has not begun after ``hedge_us``.
    """

    models: int = 8
    fast: RoleLimits = RoleLimits(256, 1)
    specialist: RoleLimits = RoleLimits(512, 4)
    strong: RoleLimits = RoleLimits(1024, 10)
    reducer_tokens: int = 2048
    worker_us: int = 60_000_000
    reducer_us: int = 60_000_000
    hedge_us: int = 5_000_000
    grace_us: int = 3_000_000
    patience_us: int = 20_000_000
    confidence_milli: int = 500
    tool_confidence_milli: int = 600

    def limits_of(self, role: Role) -> RoleLimits:
        """What a model in that role is given and may say."""
        return {Role.FAST: self.fast, Role.SPECIALIST: self.specialist, Role.STRONG: self.strong}[role]


@dataclass(frozen=True, slots=True)
class Worker:
    """A model and what it is asked as."""

    model: str
    role: Role


def mixable(names: Iterable[str]) -> tuple[str, ...]:
    """The models that a request can be put to, each once, by name."""
    return tuple(sorted(set(names) - VIRTUAL_MODELS))


def assign_roles(names: Iterable[str], kind: Kind, most: int) -> tuple[Worker, ...]:
    """Those to ask, the strong one first, the fast one last; fewer than two if there are no more.

    Strong is the largest, fast the smallest; between them come first those that are made for this ``kind`` of request,
    then the larger ones. The order of ``names`` is no matter.
    """
    ranked = sorted(mixable(names), key=lambda name: (-_size(name), kind not in strengths_of(name), name))
    if len(ranked) < LEAST_MODELS:
        return tuple(Worker(name, Role.STRONG) for name in ranked)
    strong, *between, fast = ranked
    between.sort(key=lambda name: (kind not in strengths_of(name), -_size(name), name))
    specialists = between[: most - LEAST_MODELS]
    return (
        Worker(strong, Role.STRONG),
        *(Worker(name, Role.SPECIALIST) for name in specialists),
        Worker(fast, Role.FAST),
    )


def _size(name: str) -> int:
    return parameters_millions(name) or 0
