"""``/v1/embeddings``: each input is a generation that reads its prompt and answers nothing.

The vector comes from the last stage, pooled as the model's metadata says; here it is cut, brought to unit length and
written as OpenAI's clients ask for it.
"""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

from p2pmesh.api.backend import Backend
from p2pmesh.api.errors import error_body, error_of, invalid_parameter
from p2pmesh.api.exchange import (
    ClientGone,
    Drain,
    Headers,
    drain_of,
    internal_error,
    is_client_gone,
    read_body,
    send_error,
    send_json,
)
from p2pmesh.api.openai.asking import account_of
from p2pmesh.api.openai.completions import read_prompt, read_token_ids
from p2pmesh.api.openai.endpoint import CONCURRENT_CHOICES, cancel_on_disconnect, route_headers
from p2pmesh.api.openai.fields import Fields, check_text, decode_object
from p2pmesh.api.openai.parameters import HARMLESS, Harmless, check_names, read_model
from p2pmesh.base.errors import ErrorCode, LocalProtocolError, P2PMeshError, Refused
from p2pmesh.base.limits import MAX_HIDDEN_SIZE, MAX_TEXT_BYTES
from p2pmesh.core.affinity import Asker
from p2pmesh.core.auto_model import AUTO
from p2pmesh.wire.generation import GenerationDelta, GenerationRequest, GenerationStarted, Prompt, SamplingParameters

MAX_INPUTS = 2048
"""OpenAI's own limit."""
EMBEDDINGS_IMPLEMENTED = frozenset({"model", "input", "encoding_format", "dimensions"})
EMBEDDINGS_HARMLESS: dict[str, Harmless] = {"user": HARMLESS["user"]}
_FORMATS = ("float", "base64")
_READING = SamplingParameters(temperature=0.0)

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """A parsed request. ``dimensions`` None: all of the model's."""

    model: str
    prompts: tuple[Prompt, ...]
    is_base64: bool
    dimensions: int | None


def parse_embeddings(body: dict[str, Any]) -> EmbeddingCall:
    """A request; ``RequestError`` names the parameter at fault."""
    fields = Fields(body)
    check_names(fields, EMBEDDINGS_IMPLEMENTED, EMBEDDINGS_HARMLESS)
    encoding = fields.values.get("encoding_format") or "float"
    if encoding not in _FORMATS:
        raise invalid_parameter("encoding_format", f"encoding_format must be one of {', '.join(_FORMATS)}")
    return EmbeddingCall(
        _read_one_model(fields),
        _read_inputs(fields),
        encoding == "base64",
        fields.integer("dimensions", 1, MAX_HIDDEN_SIZE),
    )


def _read_one_model(fields: Fields) -> str:
    """By name: ``auto`` chooses anew for each input, and vectors of different models do not compare."""
    model = read_model(fields)
    if model == AUTO:
        text = f"{AUTO} may take another model for each text, whose vectors do not compare; name one that is served"
        raise invalid_parameter("model", text)
    return model


def _read_inputs(fields: Fields) -> tuple[Prompt, ...]:
    if not fields.has("input"):
        raise invalid_parameter("input", "input is required")
    value = fields.values["input"]
    if isinstance(value, str):
        return (Prompt(text=check_text(value, "input", MAX_TEXT_BYTES)),)
    items = fields.array("input", MAX_HIDDEN_SIZE * 4)
    if isinstance(items[0], int):
        return (Prompt(tokens=read_token_ids(items, "input")),)
    if len(items) > MAX_INPUTS:
        raise invalid_parameter("input", f"input may hold {MAX_INPUTS} texts, not {len(items)}")
    return tuple(read_prompt(item, f"input[{index}]") for index, item in enumerate(items))


def fit_vector(vector: Vector, dimensions: int | None) -> Vector:
    """The first ``dimensions`` of a vector, at unit length; a vector of nothing but zeros stays one."""
    if dimensions is not None and dimensions > len(vector):
        text = f"dimensions must be at most {len(vector)}, which is what this model has"
        raise invalid_parameter("dimensions", text)
    cut = vector[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(cut))
    return (cut / length if length else cut).astype(np.float32)


def _shaped(vector: Vector, *, is_base64: bool) -> str | list[float]:
    if is_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]


class EmbeddingsEndpoint:
    """An ASGI application for ``POST`` requests."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            call = parse_embeddings(decode_object(await read_body(scope, receive)))
            if not self._backend.is_ready() and not self._backend.is_awaited(call.model):
                raise Refused(ErrorCode.MODEL_NOT_READY, self._backend.not_ready_reason(call.model))
        except P2PMeshError as error:
            await send_error(send, error, self._backend.status_retry_after_s())
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
            await self._answer(call, Asker(account=account_of(scope)), send, drain_of(scope))
            nursery.cancel_scope.cancel()

    async def _answer(self, call: EmbeddingCall, asker: Asker, send: Send, drain: Drain) -> None:
        """Never raises but ``trio.Cancelled``, because the nursery round it would wrap anything else in a group."""
        try:
            try:
                reading = _Reading(self._backend, call, asker)
                with drain.interruptible():
                    answer = await reading.answer()
                await send_json(send, 200, answer, reading.headers)
            except Exception as raised:  # noqa: BLE001 - the edge: any failure becomes an answer
                if not is_client_gone(raised):
                    error = error_of(raised) or internal_error(raised)
                    await send_error(send, error, self._backend.status_retry_after_s(), error_body(error, "input"))
        except ClientGone:
            return


class _Reading:
    """The inputs of one request, a bounded number at a time."""

    def __init__(self, backend: Backend, call: EmbeddingCall, asker: Asker) -> None:
        self._backend = backend
        self._call = call
        self._asker = asker
        self._vectors: dict[int, Vector] = {}
        self._prompt_tokens = 0
        self.headers: Headers = ()
        """Where the first input was read."""

    async def answer(self) -> dict[str, Any]:
        """The body of the answer."""
        turns = trio.Semaphore(CONCURRENT_CHOICES)
        async with trio.open_nursery() as nursery:
            for index in range(len(self._call.prompts)):
                await turns.acquire()
                nursery.start_soon(self._read_in_turn, turns, index)
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _shaped(self._vectors[index], is_base64=self._call.is_base64),
            }
            for index in range(len(self._call.prompts))
        ]
        usage = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        return {"object": "list", "data": data, "model": self._call.model, "usage": usage}

    async def _read_in_turn(self, turns: trio.Semaphore, index: int) -> None:
        try:
            vector = await self._read(self._call.prompts[index])
            self._vectors[index] = fit_vector(vector, self._call.dimensions)
        finally:
            turns.release()

    async def _read(self, prompt: Prompt) -> Vector:
        request = GenerationRequest(
            self._backend.new_request_id(), self._call.model, prompt, _READING, max_tokens=1, wants_embedding=True
        )
        embedding = b""
        async with self._backend.generate(request, self._asker) as events:
            async for event in events:
                if isinstance(event, GenerationStarted):
                    self._prompt_tokens += len(event.prompt_tokens)
                    self.headers = self.headers or route_headers(event)
                elif isinstance(event, GenerationDelta) and event.embedding:
                    embedding = event.embedding
        if not embedding or len(embedding) % 4:
            raise LocalProtocolError(ErrorCode.INTERNAL, "the model was read without giving a vector")
        return np.frombuffer(embedding, dtype="<f4")
