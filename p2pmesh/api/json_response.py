"""Starlette responses for the handlers that answer at once, in the same JSON as ``exchange`` sends."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from p2pmesh.api.errors import error_body, error_headers, http_error
from p2pmesh.api.exchange import encode_json
from p2pmesh.base.errors import P2PMeshError


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value`` as JSON."""
    content = encode_json(value).encode("utf-8", "backslashreplace")
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def error_response(error: P2PMeshError, retry_after_s: int = 1) -> Response:
    """An error in OpenAI's shape."""
    headers = {name.decode(): value.decode() for name, value in error_headers(error, retry_after_s)}
    return json_response(error_body(error), status=http_error(error).status, headers=headers)
