"""The node as the HTTP surface sees it, also before there is one: the ports answer 503 from the first moment."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from p2pmesh.api.backend import ModelListing
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.node.node import Node
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest

RETRY_AFTER_S = 2


class NodeBackend:
    """Implements ``api.backend.Backend``."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._started_unix_s = int(time.time())

    def attach(self, node: Node) -> None:
        """The node is built."""
        self._node = node

    def models(self) -> tuple[ModelListing, ...]:
        """Routable models by name."""
        if self._node is None:
            return ()
        return tuple(
            ModelListing(name, self._started_unix_s, context_tokens=model.context_tokens, stage_count=model.stage_count)
            for name, model in self._node.routable_models().items()
        )

    def is_ready(self) -> bool:
        """Whether any model is routable."""
        return bool(self.models())

    def generate(self, request: GenerationRequest) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """Events of a request."""
        if self._node is None:
            raise Refused(ErrorCode.MODEL_NOT_READY, "the node is starting; try again in a moment")
        return self._node.generate(request)

    def status(self) -> dict[str, Any]:
        """Facts for the console."""
        return self._node.status() if self._node is not None else {"phase": "starting"}

    def new_request_id(self) -> bytes:
        """128 random bits."""
        return secrets.token_bytes(16)

    def random_seed(self) -> int:
        """64 random bits."""
        return secrets.randbits(64)

    def now_unix_s(self) -> int:
        """Wall clock."""
        return int(time.time())

    def status_retry_after_s(self) -> int:
        """A loading model is worth asking for again soon."""
        return RETRY_AFTER_S
