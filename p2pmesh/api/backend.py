"""What the HTTP surface asks of the node, and nothing else.

The surface knows HTTP and OpenAI's shapes; who generates, where, and how a lost stage is replaced stay behind this
Protocol.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest, Prompt, ToolUse


@dataclass(frozen=True, slots=True)
class ModelListing:
    """One routable model. The facts after ``owned_by`` are optional: a forwarding peer may not know them."""

    id: str
    created_unix_s: int
    owned_by: str = "p2pmesh"
    context_tokens: int | None = None
    layer_count: int | None = None
    stage_count: int | None = None


class Backend(Protocol):
    """The node as its HTTP surface sees it."""

    def models(self) -> tuple[ModelListing, ...]:
        """The models that a request can be routed to now, in a stable order."""

    def is_ready(self) -> bool:
        """Whether some model can be routed from here, or would be loaded for a request."""

    def is_awaited(self, model: str) -> bool:
        """Whether a request for it waits, although nothing can be routed just now."""

    def not_ready_reason(self, model: str) -> str:
        """While nothing is ready: why a request for ``model`` must wait, as a sentence's part."""

    def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """The events of one generation: started, deltas, finished.

        Leaving the scope cancels the generation on every stage and closes the iterator, which is left as soon as the
        finished event has come. Raises ``P2PMeshError`` on entry or while iterating;
        the error may arrive inside an exception group.
        """

    async def tokenize(
        self, model: str, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> tuple[int, ...]:
        """Token ids of a text or a conversation, as a request would have them; raises ``P2PMeshError``."""

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        """The text of token ids; raises ``P2PMeshError``."""

    def status(self) -> dict[str, Any]:
        """What ``GET /api/status`` answers: values that JSON can hold."""

    async def peers(self) -> dict[str, Any]:
        """What ``GET /api/peers`` answers: peers and links as ``p2pmesh plan`` reads them; ``Refused`` at the start."""

    def new_request_id(self) -> bytes:
        """128 fresh random bits."""

    def random_seed(self) -> int:
        """A seed for a request that names none, 0 to 2^64 - 1."""

    def now_unix_s(self) -> int:
        """Wall-clock seconds since 1970."""

    def status_retry_after_s(self) -> int:
        """Seconds after which a refused client may sensibly try again; at least 1."""
