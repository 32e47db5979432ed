"""Who asks, as far as a request says so: the session and the client that ``core.affinity`` ties to a driver.

A session is what ``prompt_cache_key`` or the header ``x-session-id`` names, a client what ``safety_identifier`` or
``user`` does (``metadata.user_id`` in Anthropic's shape). They choose among drivers, never the answer, and stay here.
Turns at a model go by account: the API key where one counts, else the address that a request came from with the client
that it names.
"""

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from p2pmesh.api.access import KEY_ID
from p2pmesh.core.affinity import Asker

_SESSION_HEADER = b"x-session-id"
_OF_KEY = "key "


def asker_of(body: Mapping[str, Any], scope: Scope) -> Asker:
    """What a request and its headers say; the fields were checked before."""
    header = dict(scope["headers"]).get(_SESSION_HEADER, b"").decode("latin-1")
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    client = _first_text(body.get("safety_identifier"), body.get("user"), user)
    return Asker(_first_text(body.get("prompt_cache_key"), header), client, account_of(scope, client))


def account_of(scope: Scope, client: str = "") -> str:
    """Who has a key has one account, whatever names it uses; a space divides, since no address or id has one."""
    key_id: str | None = scope.get(KEY_ID)
    if key_id:
        return _OF_KEY + key_id
    address = scope.get("client")
    return f"address {address[0]} {client}" if address else ""


def key_of(account: str) -> str | None:
    """The id of the key whose account it is; None where it is that of an address."""
    return account.removeprefix(_OF_KEY) if account.startswith(_OF_KEY) else None


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")
