"""A relay of one's own, nostr-sdk's, as a process: ``python -m p2pmesh.adapters.nostr.local_relay PORT`` (0: any).

For measurements and tests. It listens on loopback, prints its URL, keeps what it is told in memory, and ends with its
standard input, so it outlives nobody.
"""

import asyncio
import sys

import nostr_sdk


async def _run(port: int) -> None:
    builder = nostr_sdk.LocalRelayBuilder().addr("127.0.0.1")
    relay = (builder.port(port) if port else builder).build()
    await relay.run()
    print(str(await relay.url()).rstrip("/"), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1])))
