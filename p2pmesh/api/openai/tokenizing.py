"""``/tokenize`` and ``/detokenize``: a model's tokens of a text or a conversation, and the text of tokens.

Requests are taken as vLLM's server takes them (``prompt``, ``messages``, ``add_special_tokens``) and as llama.cpp's
does (``content``, ``add_special``). Whoever drives the model does the work.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from p2pmesh.api.backend import Backend, ModelListing
from p2pmesh.api.errors import invalid_parameter
from p2pmesh.api.exchange import read_body
from p2pmesh.api.json_response import error_response, json_response
from p2pmesh.api.openai.chat import read_messages
from p2pmesh.api.openai.completions import read_token_ids
from p2pmesh.api.openai.fields import Fields, check_text, decode_object
from p2pmesh.api.openai.parameters import check_names, read_model
from p2pmesh.api.openai.tools import read_tools
from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.limits import MAX_PROMPT_TOKENS, MAX_TEXT_BYTES
from p2pmesh.wire.generation import Prompt

TOKENIZE = frozenset({"model", "prompt", "content", "messages", "tools", "add_special_tokens", "add_special"})
DETOKENIZE = frozenset({"model", "tokens"})


class TokenizeEndpoints:
    """Handlers of both."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def tokenize(self, request: Request) -> Response:
        """Token ids, how many they are, and how many the model takes."""
        try:
            fields = await self._fields(request, TOKENIZE)
            listing = self._model(fields)
            add_special = _read_add_special(fields)
            prompt, tools = _read_prompt(fields), read_tools(fields)
            tokens = await self._backend.tokenize(listing.id, prompt, tools, add_special=add_special)
        except P2PMeshError as error:
            return error_response(error, self._backend.status_retry_after_s())
        known = {} if listing.context_tokens is None else {"max_model_len": listing.context_tokens}
        return json_response({"model": listing.id, "count": len(tokens), **known, "tokens": list(tokens)})

    async def detokenize(self, request: Request) -> Response:
        """Text, under the names of both servers."""
        try:
            fields = await self._fields(request, DETOKENIZE)
            listing = self._model(fields)
            tokens = read_token_ids(fields.array("tokens", MAX_PROMPT_TOKENS), "tokens")
            text = await self._backend.detokenize(listing.id, tokens)
        except P2PMeshError as error:
            return error_response(error, self._backend.status_retry_after_s())
        return json_response({"model": listing.id, "prompt": text, "content": text})

    async def _fields(self, request: Request, names: frozenset[str]) -> Fields:
        fields = Fields(decode_object(await read_body(request.scope, request.receive)))
        check_names(fields, names, {})
        return fields

    def _model(self, fields: Fields) -> ModelListing:
        """The model that is named, or the only one that is served."""
        listings = self._backend.models()
        if not fields.has("model"):
            if len(listings) == 1:
                return listings[0]
            raise invalid_parameter("model", f"model is required: {len(listings)} are served")
        name = read_model(fields)
        if not listings:
            raise Refused(ErrorCode.MODEL_NOT_READY, self._backend.not_ready_reason(name))
        return next((listing for listing in listings if listing.id == name), ModelListing(name, 0))


def _read_prompt(fields: Fields) -> Prompt:
    given = [name for name in ("prompt", "content", "messages") if fields.has(name)]
    if len(given) != 1:
        raise invalid_parameter("prompt", "one of prompt, content and messages is required")
    if given == ["messages"]:
        return Prompt(messages=read_messages(fields))
    value: Any = fields.values[given[0]]
    return Prompt(text=check_text(value, given[0], MAX_TEXT_BYTES, may_be_empty=True))


def _read_add_special(fields: Fields) -> bool:
    for name in ("add_special_tokens", "add_special"):
        if fields.has(name):
            return fields.boolean(name)
    return not fields.has("content")  # vLLM's default, and llama.cpp's
