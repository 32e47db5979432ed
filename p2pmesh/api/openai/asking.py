"""Who asks, as far as a request says so: the session and the client that ``core.affinity`` ties to a driver.

A session is what ``prompt_cache_key`` or the header ``x-session-id`` names, a client what ``safety_identifier`` or
``user`` does (``metadata.user_id`` in Anthropic's shape). They choose among drivers, never the answer, and stay here.
"""

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from p2pmesh.core.affinity import Asker

_SESSION_HEADER = b"x-session-id"


def asker_of(body: Mapping[str, Any], scope: Scope) -> Asker:
    """What a request and its headers say; the fields were checked before."""
    header = dict(scope["headers"]).get(_SESSION_HEADER, b"").decode("latin-1")
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    return Asker(
        _first_text(body.get("prompt_cache_key"), header),
        _first_text(body.get("safety_identifier"), body.get("user"), user),
    )


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")
