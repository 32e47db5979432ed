"""The OpenAPI document of the API, made of the same tables that requests are checked by.

Shapes of single parameters are told as far as they help a client; the last word on a value is the parser's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from p2pmesh.api.openai.chat import CHAT_IMPLEMENTED, REASONING_EFFORTS
from p2pmesh.api.openai.completions import COMPLETIONS_IMPLEMENTED
from p2pmesh.api.openai.embeddings import EMBEDDINGS_HARMLESS, EMBEDDINGS_IMPLEMENTED
from p2pmesh.api.openai.messages import MESSAGES_HARMLESS, MESSAGES_IMPLEMENTED
from p2pmesh.api.openai.parameters import CHAT_HARMLESS, COMPLETIONS_HARMLESS, MAX_CHOICES, MAX_TOKENS, Harmless
from p2pmesh.api.openai.responses import RESPONSES_HARMLESS, RESPONSES_IMPLEMENTED
from p2pmesh.api.openai.tokenizing import DETOKENIZE, TOKENIZE
from p2pmesh.base.limits import MAX_NAME_BYTES, MAX_TOP_LOGPROBS

VERSION = "3.1.0"

_TEXT, _BOOLEAN, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_OBJECTS = {"type": "array", "items": _OBJECT}
_TEXT_OR_OBJECTS = {"anyOf": [_TEXT, _OBJECTS]}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}, "minItems": 1}
_TEXT_OR_IDS = {"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1}]}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "object", "required": ["role"], "properties": {"role": _TEXT}},
}


def _number(least: float, most: float) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


_SHAPES: Mapping[str, dict[str, Any]] = {
    "add_special": _BOOLEAN,
    "add_special_tokens": _BOOLEAN,
    "best_of": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "content": _TEXT,
    "dimensions": {"type": "integer", "minimum": 1},
    "echo": _BOOLEAN,
    "encoding_format": {"enum": ["float", "base64"]},
    "frequency_penalty": _number(-2, 2),
    "include": {"type": "array", "items": _TEXT},
    "input": _TEXT_OR_OBJECTS,
    "instructions": _TEXT,
    "logit_bias": {"type": "object", "additionalProperties": _number(-100, 100)},
    "max_completion_tokens": _LIMIT,
    "max_output_tokens": _LIMIT,
    "max_tokens": _LIMIT,
    "messages": _MESSAGES,
    "min_p": _number(0, 1),
    "model": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES},
    "n": {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES},
    "parallel_tool_calls": _BOOLEAN,
    "prediction": _OBJECT,
    "presence_penalty": _number(-2, 2),
    "reasoning": _OBJECT,
    "reasoning_effort": {"enum": list(REASONING_EFFORTS)},
    "repeat_penalty": _number(0.01, 10),
    "repetition_penalty": _number(0.01, 10),
    "response_format": _OBJECT,
    "return_token_ids": _BOOLEAN,
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 4}]},
    "stop_sequences": {"type": "array", "items": _TEXT, "maxItems": 4},
    "stream": _BOOLEAN,
    "stream_options": _OBJECT,
    "system": _TEXT_OR_OBJECTS,
    "temperature": _number(0, 2),
    "text": _OBJECT,
    "thinking": _OBJECT,
    "tokens": _IDS,
    "tool_choice": {"anyOf": [_TEXT, _OBJECT]},
    "tools": _OBJECTS,
    "top_k": {"type": "integer", "minimum": 0},
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
}
_OF_PATHS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"logprobs": _BOOLEAN},
    "/v1/completions": {"logprobs": {"type": "integer", "minimum": 0, "maximum": 20}, "prompt": _TEXT_OR_IDS},
    "/v1/embeddings": {"input": _TEXT_OR_IDS},
    "/tokenize": {"prompt": _TEXT},
}
_NOTHING: Mapping[str, Harmless] = {}
_REQUESTS: Mapping[str, tuple[str, Iterable[str], Mapping[str, Harmless], tuple[str, ...]]] = {
    "/v1/chat/completions": ("A chat's answer", CHAT_IMPLEMENTED, CHAT_HARMLESS, ("model", "messages")),
    "/v1/completions": ("A text that goes on", COMPLETIONS_IMPLEMENTED, COMPLETIONS_HARMLESS, ("model", "prompt")),
    "/v1/responses": ("A response", RESPONSES_IMPLEMENTED, RESPONSES_HARMLESS, ("model", "input")),
    "/v1/messages": ("An answer for Anthropic's clients", MESSAGES_IMPLEMENTED, MESSAGES_HARMLESS,
                     ("model", "messages", "max_tokens")),
    "/v1/messages/count_tokens": ("Tokens of a conversation",
                                  ("model", "messages", "system", "thinking", "tool_choice", "tools"),
                                  _NOTHING, ("model", "messages")),
    "/v1/embeddings": ("Vectors of texts", EMBEDDINGS_IMPLEMENTED, EMBEDDINGS_HARMLESS, ("model", "input")),
    "/tokenize": ("Tokens of a text", TOKENIZE, _NOTHING, ()),
    "/detokenize": ("Text of tokens", DETOKENIZE, _NOTHING, ("tokens",)),
}  # fmt: skip
_TYPE_NAMES = {str: "string", bool: "boolean", dict: "object", list: "array"}
_READS = {
    "/v1/models": "Models that can be routed from here",
    "/v1/models/{id}": "One of them; ids may hold slashes",
    "/health": "Whether a model can be routed",
    "/readyz": "The same",
    "/livez": "Whether the process answers",
    "/metrics": "Counts, in Prometheus' text format",
    "/openapi.json": "This document",
}
_ERROR = {
    "description": "An error",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ACCESS_STATUSES = ("401", "403", "429")
_STATUSES = ("400", "401", "403", "404", "408", "413", "429", "500", "502", "503", "504")


def openapi_document(version: str) -> dict[str, Any]:
    """The document; ``version`` is the node's."""
    paths: dict[str, Any] = {path: {"get": _read_operation(path, told)} for path, told in _READS.items()}
    paths |= {path: {"post": _write_operation(path)} for path in _REQUESTS}
    return {
        "openapi": VERSION,
        "info": {"title": "p2pmesh", "version": version},
        "paths": paths,
        "security": [{}, {"key": []}],
        "components": {
            "schemas": {"Error": _error_schema()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _read_operation(path: str, told: str) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": told, "responses": {"200": {"description": told}, "503": _ERROR}}
    operation["responses"] |= dict.fromkeys(_ACCESS_STATUSES, _ERROR)
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
        operation["responses"]["404"] = _ERROR
    return operation


def _write_operation(path: str) -> dict[str, Any]:
    told, implemented, harmless, required = _REQUESTS[path]
    names = sorted({*implemented, *harmless})
    schema = {
        "type": "object",
        "required": list(required),
        "properties": {name: _shape_of(path, name, harmless) for name in names},
        "additionalProperties": False,
    }
    content: dict[str, Any] = {"application/json": {"schema": _OBJECT}}
    if "stream" in names:
        content["text/event-stream"] = {}  # 3.1 has no words for the events of a stream
    return {
        "summary": told,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": told, "content": content}, **dict.fromkeys(_STATUSES, _ERROR)},
    }


def _shape_of(path: str, name: str, harmless: Mapping[str, Harmless]) -> dict[str, Any]:
    if name in harmless:
        rule = harmless[name]
        return {"type": [*(_TYPE_NAMES[kind] for kind in rule.types), "null"], "description": f"only {rule.allowed}"}
    return _OF_PATHS.get(path, {}).get(name) or _SHAPES[name]


def _error_schema() -> dict[str, Any]:
    maybe_text = {"type": ["string", "null"]}
    fields = {"message": _TEXT, "type": _TEXT, "param": maybe_text, "code": maybe_text}
    error = {"type": "object", "required": ["message", "type"], "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}
