"""An HTTP client that speaks ASGI straight to an application: no sockets, so that a mock clock rules its time."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio
from starlette.types import ASGIApp, Message


@dataclass
class AsgiClient:
    """One exchange. ``before_send`` may hold a send up, as a client that does not read would."""

    body: bytes = b""
    pieces: int = 1
    before_send: Callable[[Message], Awaitable[None]] | None = None
    gone: trio.Event = field(default_factory=trio.Event)
    sent: list[Message] = field(default_factory=list)
    _next_piece: int = 0

    async def run(self, app: ASGIApp, path: str, method: str = "POST", headers: dict[str, str] | None = None) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._next_piece >= self.pieces:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        size = -(-len(self.body) // self.pieces)
        start = self._next_piece * size
        self._next_piece += 1
        more = self._next_piece < self.pieces
        return {"type": "http.request", "body": self.body[start : start + size], "more_body": more}

    async def _send(self, message: Message) -> None:
        if self.before_send is not None:
            await self.before_send(message)
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def text(self) -> str:
        return b"".join(message["body"] for message in self.sent[1:]).decode()

    @property
    def is_complete(self) -> bool:
        last = self.sent[-1] if self.sent else {"type": ""}
        return last["type"] == "http.response.body" and not last.get("more_body", False)

    def json(self) -> Any:
        return json.loads(self.text)

    def events(self) -> list[Any]:
        """The ``data:`` events of a stream, the end mark as it is."""
        blocks = [block for block in self.text.split("\n\n") if block.startswith("data: ")]
        payloads = [block.removeprefix("data: ") for block in blocks]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]
