"""Which driver answered this conversation before: there its prefix is in the cache.

Owns the keys of a request and the memory of who answered under them, in the order in which they count: the session that
the client names, the beginning of the prompt, the client. Constants are Mesh LLM's: 20 minutes since the last use, 4096
entries. Whether a remembered driver is asked again is ``core.routing``'s to say.
"""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.wire.generation import GenerationRequest, Prompt

_KEY_BYTES = 16
_PREFIX_CHARACTERS = 1024
_PREFIX_TOKENS = 256
_INSTRUCTING = ("system", "developer")


class Tie(StrEnum):
    """What ties a request to a driver."""

    SESSION = "session"
    PREFIX = "prefix"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, as the API knows it: texts of the client's choice, "" where there are none. They stay at this node."""

    session: str = ""
    client: str = ""
    account: str = ""
    """Whose turn a request takes: not of the client's choice alone."""
    is_streaming: bool = False
    """Whether the answer is given out as it comes."""


NOBODY = Asker()


@dataclass(frozen=True, slots=True)
class AffinityKeys:
    """Hashes of a request's session, prefix and client, with the model's name in each; None where there is none."""

    session: bytes | None
    prefix: bytes
    client: bytes | None

    def __iter__(self) -> Iterator[tuple[Tie, bytes]]:
        """In the order in which they count."""
        if self.session is not None:
            yield Tie.SESSION, self.session
        yield Tie.PREFIX, self.prefix
        if self.client is not None:
            yield Tie.CLIENT, self.client

    @property
    def spreading(self) -> bytes:
        """What spreads requests over equal drivers: the same session, or beginning, meets the same one anywhere."""
        return self.session or self.prefix


def affinity_keys(request: GenerationRequest, asker: Asker) -> AffinityKeys:
    """The keys of a request."""
    return AffinityKeys(
        _hash(Tie.SESSION, request.model, asker.session) if asker.session else None,
        _hash(Tie.PREFIX, request.model, *_prefix_of(request)),
        _hash(Tie.CLIENT, request.model, asker.client) if asker.client else None,
    )


def _prefix_of(request: GenerationRequest) -> Iterator[str]:
    """What many requests begin with: what is offered and demanded, then the instructions before the first turn."""
    yield repr(request.tools)
    yield request.grammar
    yield from _beginning_of(request.prompt)


def _beginning_of(prompt: Prompt) -> Iterator[str]:
    if prompt.text is not None:
        yield prompt.text[:_PREFIX_CHARACTERS]
    elif prompt.tokens is not None:
        yield repr(prompt.tokens[:_PREFIX_TOKENS])
    elif prompt.messages is not None:
        turns = [message for message in prompt.messages if message.role not in _INSTRUCTING]
        instructions = prompt.messages[: prompt.messages.index(turns[0])] if turns else prompt.messages
        for message in instructions or prompt.messages[:1]:
            yield message.role
            yield message.content


def _hash(tie: Tie, model: str, *parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for part in (tie.value, model, *parts):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class AffinityPolicy:
    """How many keys are remembered, and for how long after their last use."""

    capacity: int = 4096
    life_us: int = 1200 * MICROS_PER_SECOND


T = TypeVar("T", bound=str)


class AffinityTable(Generic[T]):
    """Who, or what, answered last, by key: drivers, or models of ``auto``. Those used longest ago make room."""

    def __init__(self, policy: AffinityPolicy | None = None) -> None:
        self._policy = policy or AffinityPolicy()
        self._answered: dict[bytes, tuple[T, Micros]] = {}

    def __len__(self) -> int:
        return len(self._answered)

    def recall(self, keys: AffinityKeys, among: Collection[T], now: Micros) -> tuple[T, Tie] | None:
        """What the first known key points at, of those ``among`` which is to be chosen."""
        for tie, key in keys:
            found = self._answered.get(key)
            if found is not None and now - found[1] < self._policy.life_us and found[0] in among:
                return found[0], tie
        return None

    def remember(self, keys: AffinityKeys, answering: T, now: Micros) -> None:
        """A request under these keys was taken."""
        for _, key in keys:
            self._answered.pop(key, None)
            self._answered[key] = (answering, now)
        while len(self._answered) > self._policy.capacity:
            del self._answered[next(iter(self._answered))]
