"""The OpenAI surface as one Starlette application: its routes and the answers that generate nothing."""

from dataclasses import dataclass
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from p2pmesh import __version__
from p2pmesh.api.access import CrossOrigin, KeyCheck, Keys, SameHost
from p2pmesh.api.backend import Backend, ModelListing
from p2pmesh.api.errors import INVALID_REQUEST, RequestError
from p2pmesh.api.exchange import Exchange
from p2pmesh.api.guarding import GuardedBackend
from p2pmesh.api.json_response import error_response, json_response
from p2pmesh.api.metered import CountedResponses, MeteredBackend
from p2pmesh.api.metrics import CONTENT_TYPE, Metrics
from p2pmesh.api.mixing import MixingBackend
from p2pmesh.api.openai.asking import key_of
from p2pmesh.api.openai.chat import ChatShape
from p2pmesh.api.openai.completions import CompletionsShape
from p2pmesh.api.openai.document import openapi_document
from p2pmesh.api.openai.embeddings import EmbeddingsEndpoint
from p2pmesh.api.openai.endpoint import GenerationEndpoint
from p2pmesh.api.openai.messages import CountTokens, MessagesShape
from p2pmesh.api.openai.responses import ResponsesShape
from p2pmesh.api.openai.tokenizing import TokenizeEndpoints
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.core.guardrails.policy import GuardrailPolicy
from p2pmesh.core.mixture.roles import MixturePolicy, mixable

_FOREIGN_HOST = "the API answers only under its own host names and to its own pages: see --allow-host and --cors-origin"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Who may ask: ``host_names`` None under any name, ``keys`` None with any key; pages of ``origins`` too."""

    keys: Keys | None = None
    host_names: frozenset[str] | None = None
    origins: tuple[str, ...] = ()

    def middleware(self) -> list[Middleware]:
        """In the order of checking."""
        names = Middleware(SameHost, host_names=self.host_names, told=_FOREIGN_HOST, origins=self.origins)
        pages = [Middleware(CrossOrigin, origins=self.origins)] if self.origins else []
        keys = [] if self.keys is None else [Middleware(KeyCheck, keys=self.keys)]
        return [names, *pages, *keys]


def openai_app(
    backend: Backend,
    access: AccessRules | None = None,
    mixture: MixturePolicy | None = None,
    guardrails: GuardrailPolicy | None = None,
) -> Starlette:
    """The application for the API port; without ``access`` whoever reaches it may ask."""
    metrics = Metrics(trio.current_time)

    def guard(inner: Backend) -> Backend:
        return GuardedBackend(inner, metrics, guardrails or GuardrailPolicy())

    def charge(account: str, uses: int) -> None:
        key_id = key_of(account)
        if access is not None and access.keys is not None and key_id is not None:
            access.keys.charge(key_id, uses)

    mixing = MixingBackend(MeteredBackend(backend, metrics), metrics, mixture, guard, charge)
    answers, tokenizing = _Answers(mixing, metrics), TokenizeEndpoints(mixing)
    routes = [
        Route("/v1/models", answers.list_models, methods=["GET"]),
        Route("/v1/models/{id:path}", answers.show_model, methods=["GET"]),
        Route("/v1/chat/completions", GenerationEndpoint(mixing, ChatShape()), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(mixing, CompletionsShape()), methods=["POST"]),
        Route("/v1/responses", GenerationEndpoint(mixing, ResponsesShape()), methods=["POST"]),
        Route("/v1/messages", GenerationEndpoint(mixing, MessagesShape()), methods=["POST"]),
        Route("/v1/messages/count_tokens", CountTokens(mixing).answer, methods=["POST"]),
        Route("/v1/embeddings", EmbeddingsEndpoint(mixing), methods=["POST"]),
        Route("/tokenize", tokenizing.tokenize, methods=["POST"]),
        Route("/detokenize", tokenizing.detokenize, methods=["POST"]),
        Route("/health", answers.ready, methods=["GET"]),
        Route("/livez", answers.live, methods=["GET"]),
        Route("/readyz", answers.ready, methods=["GET"]),
        Route("/metrics", answers.metrics, methods=["GET"]),
        Route("/openapi.json", answers.document, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(CountedResponses, metrics=metrics, routes=frozenset(route.path for route in routes)),
            Middleware(Exchange, new_request_id=backend.new_request_id, retry_after_s=backend.status_retry_after_s),
            *(access.middleware() if access is not None else ()),
        ],
        exception_handlers={HTTPException: answer_http_exception},
    )
    app.router.redirect_slashes = False
    app.state.elsewhere = "; the console has a port of its own, which p2pmesh up tells when it starts"
    return app


async def answer_http_exception(request: Request, raised: Exception) -> Response:
    """Routes that do not exist and methods that are not allowed, in OpenAI's shape."""
    if not isinstance(raised, HTTPException):  # registered for that class alone
        raise raised
    path = request.url.path[:200]
    if raised.status_code == 405:
        body = {
            "message": f"{request.method} is not allowed for {path}; send {_allowed(raised)}",
            "type": INVALID_REQUEST,
            "param": None,
            "code": "method_not_allowed",
        }
        return json_response({"error": body}, status=405, headers=dict(raised.headers or {}))
    return error_response(Refused(ErrorCode.ROUTE_UNKNOWN, f"there is no {path} here; {_known(request)}"))


def _allowed(raised: HTTPException) -> str:
    return (raised.headers or {}).get("Allow", "another method")


def _known(request: Request) -> str:
    """What there is instead, and where what others may look for is found."""
    paths = [route.path for route in request.app.routes if isinstance(route, Route) and "{" not in route.path]
    elsewhere = getattr(request.app.state, "elsewhere", "")
    return f"there are {', '.join(paths)}{elsewhere}"


class _Answers:
    """Handlers that read the node's facts."""

    def __init__(self, backend: Backend, metrics: Metrics) -> None:
        self._backend = backend
        self._metrics = metrics

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        routable = mixable(listing.id for listing in self._backend.models())
        return Response(self._metrics.text(len(routable)), media_type=CONTENT_TYPE)

    async def document(self, request: Request) -> Response:
        """For whoever makes clients."""
        return json_response(openapi_document(__version__))

    async def list_models(self, request: Request) -> Response:
        listings = [_listing_fields(listing) for listing in self._backend.models()]
        return json_response({"object": "list", "data": listings})

    async def show_model(self, request: Request) -> Response:
        model_id = request.path_params["id"]
        for listing in self._backend.models():
            if listing.id == model_id:
                return json_response(_listing_fields(listing))
        return error_response(self._missing(model_id), self._backend.status_retry_after_s())

    def _missing(self, model_id: str) -> P2PMeshError:
        if not self._backend.is_ready():
            return Refused(ErrorCode.MODEL_NOT_READY, self._backend.not_ready_reason(model_id))
        message = f"no peer serves the model {model_id[:256]!r}; GET /v1/models lists those that are served"
        return RequestError(ErrorCode.MODEL_UNKNOWN, message, "model")

    async def live(self, request: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        if self._backend.is_ready():
            return json_response({"status": "ready"})
        error = Refused(ErrorCode.MODEL_NOT_READY, "no model is ready yet")
        return error_response(error, self._backend.status_retry_after_s())


def _listing_fields(listing: ModelListing) -> dict[str, Any]:
    facts = {
        "context_length": listing.context_tokens,
        "layer_count": listing.layer_count,
        "stage_count": listing.stage_count,
    }
    return {
        "id": listing.id,
        "object": "model",
        "created": listing.created_unix_s,
        "owned_by": listing.owned_by,
        **{name: fact for name, fact in facts.items() if fact is not None},
    }
