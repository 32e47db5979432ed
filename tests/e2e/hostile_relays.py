"""Two relays at one address: nostr-sdk's own, which keeps what it takes of a file's events, and one that hands on all.

``python -m tests.e2e.hostile_relays ADDRESS FILE``, with a JSON list of texts in FILE.
Prints both URLs and how many the first one took; ends with its standard input.
"""

import asyncio
import json
import sys
from pathlib import Path

import nostr_sdk
import trio
import trio_websocket


async def _run_honest(address: str) -> str:
    limit = nostr_sdk.RateLimit(max_reqs=1000, notes_per_minute=100_000)
    relay = nostr_sdk.LocalRelayBuilder().addr(address).rate_limit(limit).build()
    await relay.run()
    _kept.append(relay)
    return str(await relay.url()).rstrip("/")


_kept: list[nostr_sdk.LocalRelay] = []


async def _give(url: str, texts: list[str]) -> int:
    """How many events a relay took."""
    taken = 0
    async with trio_websocket.open_websocket_url(url) as socket:
        for text in texts:
            await socket.send_message(f'["EVENT",{text}]')
            answer = json.loads(await socket.get_message())
            taken += answer[0] == "OK" and answer[2] is True
    return taken


async def _hand_on(request: trio_websocket.WebSocketRequest, texts: list[str]) -> None:
    socket = await request.accept()
    try:
        while True:
            asked = json.loads(await socket.get_message())
            if asked[0] == "REQ":
                for text in texts if "until" not in asked[2] else ():
                    await socket.send_message(f'["EVENT","{asked[1]}",{text}]')
                await socket.send_message(json.dumps(["EOSE", asked[1]]))
            elif asked[0] == "EVENT":
                await socket.send_message(json.dumps(["OK", asked[1]["id"], False, "blocked: no"]))
    except trio_websocket.ConnectionClosed:
        return


async def _main(address: str, texts: list[str]) -> None:
    honest = await trio.to_thread.run_sync(asyncio.run, _run_honest(address))
    taken = await _give(honest, texts)
    async with trio.open_nursery() as nursery:

        async def listen(task_status: trio.TaskStatus[trio_websocket.WebSocketServer]) -> None:
            async def serve(request: trio_websocket.WebSocketRequest) -> None:
                await _hand_on(request, texts)

            await trio_websocket.serve_websocket(serve, address, 0, None, task_status=task_status)

        server = await nursery.start(lambda task_status: listen(task_status))
        print(honest, f"ws://{address}:{server.port}", taken, flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main, sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
