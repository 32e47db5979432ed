"""A node of its own process, for tests that kill or freeze it: echoes on one protocol, says its address on stdout."""

import sys

import trio

from p2pmesh.adapters.identity import new_identity
from p2pmesh.adapters.p2p.host import open_network
from p2pmesh.ports.network import ByteStream

ECHO = "/test/echo/1"


async def echo(stream: ByteStream) -> None:
    """Messages with a length of 4 bytes."""
    while True:
        length = int.from_bytes(await stream.receive_exactly(4), "big")
        await stream.send(await stream.receive_exactly(length))


async def main() -> None:
    async with open_network(new_identity(), ("/ip4/127.0.0.1/tcp/0",)) as network:
        network.serve(ECHO, echo)
        sys.stdout.write(f"{network.peer_id} {network.addresses()[0]}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
