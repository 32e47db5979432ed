"""What schemathesis is told beside our OpenAPI document, so that its requests get past the first refusal.

The document cannot tell which models a node serves, nor which parameters go together; of bodies drawn from it alone
nearly all are refused. So three of four become a sound request with a few of the drawn parameters in it. Answers are
kept short, since it is requests that are tried here. The seed of the run decides all else.
"""

import json
import os
from typing import Any
from zlib import crc32

import schemathesis

MODEL = os.environ["CLIENT_MODEL"]
MAX_TOKENS = 4
MAX_DRAWN = 3
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": MAX_TOKENS}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": MAX_TOKENS},
    "/v1/responses": {"model": MODEL, "input": "hi", "max_output_tokens": MAX_TOKENS},
    "/v1/messages": _CHAT,
    "/v1/messages/count_tokens": {"model": MODEL, "messages": _CHAT["messages"]},
    "/v1/embeddings": {"model": MODEL, "input": "hi"},
    "/tokenize": {"model": MODEL, "prompt": "hi"},
    "/detokenize": {"model": MODEL, "tokens": [5]},
}


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Three of four bodies become sound but for up to ``MAX_DRAWN`` of their own parameters."""
    sound = SOUND.get(context.operation.path)
    if sound is None or not isinstance(body, dict):
        return body
    draw = crc32(json.dumps(body, sort_keys=True, default=repr).encode())
    if draw % 4 == 0:
        return _short(body)
    drawn = sorted(body.keys() - {"model"}, key=lambda name: crc32(f"{draw}{name}".encode()))
    return _short({**sound, **{name: body[name] for name in drawn[: draw // 4 % (MAX_DRAWN + 1)]}})


def _short(body: dict[str, Any]) -> dict[str, Any]:
    """With no limit above ``MAX_TOKENS``, and few choices."""
    limits = {name: MAX_TOKENS for name in _LIMITS if _is_above(body.get(name), MAX_TOKENS)}
    choices = {name: 2 for name in ("n", "best_of") if _is_above(body.get(name), 2)}
    return {**body, **limits, **choices}


def _is_above(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > most
