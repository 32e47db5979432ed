"""A real Nostr relay, nostr-sdk's own, as a process: ``python -m tests.fakes.local_relay PORT`` prints its URL.

What it stores is in memory, so one that was killed and started again knows nothing. Port 0 is any.
"""

import asyncio
import sys

import nostr_sdk


async def _run(port: int) -> None:
    builder = nostr_sdk.LocalRelayBuilder().addr("127.0.0.1")
    relay = (builder.port(port) if port else builder).build()
    await relay.run()
    print(await relay.url(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1])))
