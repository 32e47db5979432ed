"""Where ``Metrics`` are taken: round the application, and round the backend's generations."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from p2pmesh.api.backend import Backend
from p2pmesh.api.metrics import OTHER, GenerationMeter, Metrics
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.wire.generation import (
    GenerationDelta,
    GenerationEvent,
    GenerationFinished,
    GenerationRequest,
    GenerationStarted,
)


class CountedResponses:
    """Middleware that counts answers by route and status; ``routes`` bounds the labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, self._counted(scope["path"], send))
        else:
            await self._app(scope, receive, send)

    def _counted(self, path: str, send: Send) -> Callable[[Message], Awaitable[None]]:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count_response(self._route_of(path), message["status"])
            await send(message)

        return counted

    def _route_of(self, path: str) -> str:
        if path in self._routes:
            return path
        return "/v1/models/{id}" if path.startswith("/v1/models/") else OTHER


class MeteredBackend:
    """A backend whose generations are counted; everything else is the backend's own."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """See ``Backend``."""
        return self._metered(request, asker)

    @asynccontextmanager
    async def _metered(self, request: GenerationRequest, asker: Asker) -> AsyncIterator[AsyncIterator[GenerationEvent]]:
        meter = self._metrics.meter(request.model)
        try:
            async with self._backend.generate(request, asker) as events, aclosing(_noted(events, meter)) as noted:
                yield noted
        finally:
            meter.close()


async def _noted(
    events: AsyncIterator[GenerationEvent], meter: GenerationMeter
) -> AsyncGenerator[GenerationEvent, None]:
    async for event in events:
        if isinstance(event, GenerationStarted):
            meter.start(len(event.prompt_tokens), event.cached_tokens)
        elif isinstance(event, GenerationDelta):
            meter.token()
        elif isinstance(event, GenerationFinished):
            meter.finish(event)
        yield event
