"""A node of its own process that gossips: says who it is in each message, prints every message that it hears.

Arguments: the seed of its key in hex, the address to dial, its name. The topic is ``TOPIC``.
"""

import sys

import trio

from p2pmesh.adapters.identity import identity_of_seed
from p2pmesh.adapters.p2p.host import Libp2pNetwork, open_network
from p2pmesh.base.ids import PeerId
from p2pmesh.ports.network import Subscription

TOPIC = "test/gossip"
REPEAT_S = 0.2


async def tell(network: Libp2pNetwork, name: str) -> None:
    count = 0
    while True:
        count += 1
        await network.publish(TOPIC, f"{name} {count}".encode())
        await trio.sleep(REPEAT_S)


async def hear(subscription: Subscription) -> None:
    while True:
        _, data = await subscription.receive()
        sys.stdout.write(data.decode() + "\n")
        sys.stdout.flush()


async def main(seed: str, address: str, name: str) -> None:
    async with open_network(identity_of_seed(bytes.fromhex(seed)), ("/ip4/127.0.0.1/tcp/0",)) as network:
        subscription = await network.subscribe(TOPIC, lambda data: True)
        witness = PeerId(address.rpartition("/p2p/")[2])
        await network.dial(witness, (address,), 10)
        network.admit(witness)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, network, name)
            nursery.start_soon(hear, subscription)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
