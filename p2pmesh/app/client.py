"""Commands that talk to the node of a home over HTTP, as any other client does.

Blocking; a command has nothing else to do. Errors of the node come back under their own codes. Whether a node that
keeps silent lives is ``node_watch``'s.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from p2pmesh.api.errors import HTTP_ERRORS
from p2pmesh.api.invites import DEADLINE_HEADER
from p2pmesh.app.claims import now_unix_ms
from p2pmesh.app.config import ChatOptions
from p2pmesh.app.node_watch import NodeWatch
from p2pmesh.app.run_file import RunFile, read_run_file
from p2pmesh.app.silence import SILENCE_S
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, PeerUnavailable, Refused, RemoteProtocolError

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 120.0
"""Well above the ping interval of a stream, so that only a dead node runs into it."""

CONSOLE_TIMEOUT_S = 8.0
"""For what a node answers out of its memory and its files."""
CONSOLE_MARGIN_S = 2.0
"""So much before we stop waiting a change must have begun, or it is not made at all."""

MAX_EVENT_CHARACTERS = 1024 * 1024
_CODES = {row.api_code or code.value: code for code, row in HTTP_ERRORS.items()}


_UNBEGUN = "waiting: the answer has not begun; the prompt is being read, or the model is not ready; see p2pmesh status"
_STALLED = "waiting: the answer has stalled; a peer may be lost, and another is sought to go on; see p2pmesh status"


def run_chat(
    options: ChatOptions,
    write: Callable[[str], None],
    tell: Callable[[str], None] = lambda line: None,
    silence_s: float = SILENCE_S,
) -> None:
    """Streams the answer to one prompt into ``write``, of another thread, as it arises; ``tell`` hears of silences.

    Raises ``P2PMeshError``: the node's refusals under their own codes, ``NODE_UNRESPONSIVE`` within seconds for a node
    that answers nothing at all.
    """
    node, has_begun = read_run_file(options.home), False
    watch = NodeWatch(node, options.home, lambda: tell(_STALLED if has_begun else _UNBEGUN), silence_s)

    def chat() -> None:
        nonlocal has_begun
        headers, body = _bearer(node), _chat_body(options)
        with _node_errors(options.home), _client(node.api_url) as client:
            with client.stream("POST", "/v1/chat/completions", headers=headers, json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise _refusal(response)
                for event in _events(response, watch.lives):
                    text = _text_of(event)
                    has_begun = has_begun or bool(text)
                    watch.heard()
                    write(text)

    watch.during(chat)


def fetch_status(home: Path) -> dict[str, Any]:
    """What the console of the node in ``home`` tells."""
    return ask_console(home, "GET", "/api/status")


def ask_console(home: Path, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of the console of the node in ``home``; its refusals under their own codes."""
    node = read_run_file(home)

    def ask() -> dict[str, Any]:
        deadline_unix_ms = now_unix_ms() + int((CONSOLE_TIMEOUT_S - CONSOLE_MARGIN_S) * 1000)
        headers = {**_bearer(node), DEADLINE_HEADER: str(deadline_unix_ms)}
        with _node_errors(home), _client(node.console_url, CONSOLE_TIMEOUT_S) as client:
            response = client.request(method, path, headers=headers, json=body)
            if response.status_code != 200:
                raise _refusal(response)
            answer: dict[str, Any] = response.json()
            return answer

    return NodeWatch(node, home).during(ask)


def _client(base_url: str, read_timeout_s: float = READ_TIMEOUT_S) -> httpx.Client:
    timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
    # the node is on this machine: a proxy of the environment has no part in it
    return httpx.Client(base_url=base_url, timeout=timeout, trust_env=False)


def _bearer(node: RunFile) -> dict[str, str]:
    return {"authorization": f"Bearer {node.console_token}"}


@contextmanager
def _node_errors(home: Path) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError:
        message = f"the node of {home} does not answer; start it with p2pmesh up"
        raise ConfigError(ErrorCode.NODE_NOT_RUNNING, message) from None
    except httpx.TimeoutException:
        raise Refused(ErrorCode.DEADLINE_EXCEEDED, "the node did not answer in time; see its log") from None
    except httpx.HTTPError as error:
        message = f"the connection to the node broke ({type(error).__name__}); see the node's log"
        raise PeerUnavailable(ErrorCode.PEER_LOST, message) from None
    except (ValueError, httpx.InvalidURL):  # bytes that are not JSON, a run file that is not ours
        raise _not_ours() from None


def _chat_body(options: ChatOptions) -> dict[str, Any]:
    messages = [{"role": "user", "content": options.prompt}]
    if options.system is not None:
        messages.insert(0, {"role": "system", "content": options.system})
    chosen = {
        "max_completion_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return {"model": options.model, "messages": messages, "stream": True, **given}


def _events(response: httpx.Response, note_life: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream up to its end mark; comments only show that the node lives."""
    for line in response.iter_lines():
        note_life()
        if len(line) > MAX_EVENT_CHARACTERS:
            raise _not_ours()
        name, _, payload = line.partition(": ")
        if name != "data":
            continue
        if payload == "[DONE]":
            return
        event = json.loads(payload)
        if not isinstance(event, dict):
            raise _not_ours()
        if "error" in event:
            raise _error_in(event, "the node broke the answer off")
        yield event
    raise PeerUnavailable(ErrorCode.PEER_LOST, "the answer ended early; see the node's log")


def _text_of(event: dict[str, Any]) -> str:
    try:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    except (AttributeError, KeyError, TypeError):
        raise _not_ours() from None


def _refusal(response: httpx.Response) -> P2PMeshError:
    try:
        return _error_in(response.json(), f"the node answered {response.status_code}")
    except ValueError:
        return _not_ours()


def _error_in(body: Any, otherwise: str) -> P2PMeshError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return _not_ours()
    message = error.get("message")
    line = " ".join(message.split()) if isinstance(message, str) else otherwise
    return Refused(_CODES.get(str(error.get("code")), ErrorCode.INTERNAL), line)


def _not_ours() -> P2PMeshError:
    message = "what answers on the node's port is not a p2pmesh node of this version"
    return RemoteProtocolError(ErrorCode.MESSAGE_MALFORMED, message)
