"""Real relays for tests: nostr-sdk's own in this process, and one that says what a test tells it to."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import nostr_sdk
import trio
import trio_websocket

Say = Callable[[Any], Awaitable[None]]
Script = Callable[[list[Any], Say], Awaitable[None]]
"""Called with each message of the client, and the way to answer."""


@asynccontextmanager
async def local_relay(builder: nostr_sdk.LocalRelayBuilder | None = None) -> AsyncIterator[str]:
    """The URL of a relay that keeps what it is told in memory."""
    relay = (builder or nostr_sdk.LocalRelayBuilder()).addr("127.0.0.1").build()

    async def start() -> str:
        await relay.run()
        return str(await relay.url())

    url = await trio.to_thread.run_sync(asyncio.run, start())
    try:
        yield url.rstrip("/")
    finally:
        relay.shutdown()


async def stored_at(url: str, query: dict[str, Any]) -> list[dict[str, Any]]:
    """What a relay gives to a client of another make, events over or forged left out by it."""

    async def ask() -> list[str]:
        client = nostr_sdk.ClientBuilder().build()
        await client.add_relay(nostr_sdk.RelayUrl.parse(url))
        await client.connect(and_wait=timedelta(seconds=5))
        target = nostr_sdk.ReqTarget.auto([nostr_sdk.Filter.from_json(json.dumps(query))])
        found = await client.fetch_events(target, timeout=timedelta(seconds=5))
        await client.shutdown()
        return [event.as_json() for event in found]

    texts = await trio.to_thread.run_sync(asyncio.run, ask())
    return [json.loads(text) for text in texts]


@asynccontextmanager
async def scripted_relay(
    script: Script, greeting: Any = None, secured: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The URL of a relay that answers as the script says; ``greeting`` is sent when a client comes."""

    async def serve(request: trio_websocket.WebSocketRequest) -> None:
        socket = await request.accept()

        async def say(message: Any) -> None:
            await socket.send_message(message if isinstance(message, str) else json.dumps(message))

        try:
            if greeting is not None:
                await say(greeting)
            while True:
                await script(json.loads(await socket.get_message()), say)
        except trio_websocket.ConnectionClosed:
            return

    async with trio.open_nursery() as nursery:

        async def listen(task_status: Any) -> None:
            await trio_websocket.serve_websocket(serve, "127.0.0.1", 0, secured, task_status=task_status)

        server = await nursery.start(lambda task_status: listen(task_status))
        yield f"ws{'s' if secured else ''}://127.0.0.1:{server.port}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def answering_server(answer: bytes) -> AsyncIterator[str]:
    """The URL of something that gives one answer to whatever is said first, and waits."""

    async def serve(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.receive_some()
            await stream.send_all(answer)
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The URL of something that takes connections and never says a word."""

    async def keep(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, keep, 0)
        yield f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()
