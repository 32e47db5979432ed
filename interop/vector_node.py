"""A node that knows only what `protocols/vectors` says: it answers their hello and gossips one announcement.

It stands between two runs of the whole node: a foreign peer that meets it has the transport, the framing and the
gossip right, whatever the state of the rest.
"""

import json
import sys
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.identity import Ed25519Verifier, identity_of_seed
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.limits import CONTROL_PROTOCOL, MAX_UNADMITTED_MESSAGE_BYTES
from p2pmesh.ports.network import ByteStream
from p2pmesh.wire.announcement import decode_announcement, topic_of
from p2pmesh.wire.control import decode_control
from p2pmesh.wire.messages.admission import Hello
from p2pmesh.wire.varint import decode_varint

VECTORS = Path(__file__).parents[1] / "protocols" / "vectors" / "control.json"
REPEAT_S = 0.5
ECHO_PROTOCOL = "/interop/echo/1"
ECHO_BYTES = 8 * 1024 * 1024
ECHO_PIECE_BYTES = 64 * 1024


def vector(cases: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The valid case of that name."""
    return next(case for case in cases if case["name"] == name)


async def read_message(stream: ByteStream) -> Any:
    """One control message."""
    prefix = b""
    length = None
    while length is None:
        prefix += await stream.receive_exactly(1)
        length = decode_varint(prefix, MAX_UNADMITTED_MESSAGE_BYTES)
    return decode_control(await stream.receive_exactly(length))


async def echo(stream: ByteStream) -> None:
    """Gives back ``ECHO_BYTES`` as they come."""
    for _ in range(ECHO_BYTES // ECHO_PIECE_BYTES):
        await stream.send(await stream.receive_exactly(ECHO_PIECE_BYTES))


async def gossip(network: Libp2pNetwork, topic: str, announcement: bytes) -> None:
    """Repeats the announcement, as nodes do, only faster."""
    await network.subscribe(topic, lambda data: True)
    while True:
        await network.publish(topic, announcement)
        await trio.sleep(REPEAT_S)


async def main() -> None:
    """Runs until killed; says its address, the hello it expects and the topic in one line of JSON."""
    vectors = json.loads(VECTORS.read_text())
    hello = vector(vectors["valid"], "hello of a joiner")
    welcome = vector(vectors["valid"], "welcome by the founder")
    topic = topic_of(welcome["value"]["mesh_id"])
    verifier = Ed25519Verifier()

    async def answer_hello(stream: ByteStream) -> None:
        message = await read_message(stream)
        if not isinstance(message, Hello):
            raise TypeError("not a hello")
        speaker = decode_announcement(message.announcement, verifier.is_signature_of, verifier.peer_id_of)
        if speaker.peer_id != stream.remote_peer:
            raise ValueError("a hello of somebody else")
        network.admit(stream.remote_peer)
        await stream.send(bytes.fromhex(welcome["bytes"]))

    identity = identity_of_seed(bytes.fromhex(vectors["keys"]["founder"]["seed"]))
    async with open_network(identity, ("/ip4/127.0.0.1/tcp/0",)) as network, trio.open_nursery() as nursery:
        network.serve(CONTROL_PROTOCOL, answer_hello)
        network.serve(ECHO_PROTOCOL, echo)
        nursery.start_soon(gossip, network, topic, bytes.fromhex(welcome["value"]["announcement"]))
        facts = {
            "address": network.addresses()[0],
            "seed": vectors["keys"]["joiner"]["seed"],
            "hello": hello["bytes"],
            "topic": topic,
            "echo_bytes": ECHO_BYTES,
            "answer": welcome["bytes"],
        }
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
