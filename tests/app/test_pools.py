"""Which pools ``up`` looks for."""

import subprocess
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2pmesh.adapters.identity import NodeIdentity
from p2pmesh.app.config import UpOptions
from p2pmesh.app.events import Event, EventName
from p2pmesh.app.pool_options import PoolChoice
from p2pmesh.app.pools import Pools
from p2pmesh.base.ids import MeshId
from p2pmesh.cli.output import describe_event
from p2pmesh.core.pool_choice import Wanted
from p2pmesh.node.pool_finder import PoolFinder, Search

USELESS, REFUSING = MeshId("a" * 32), MeshId("b" * 32)


class Finder(PoolFinder):
    """Finds nothing, and keeps what was looked for."""

    def __init__(self) -> None:
        self.asked: list[Wanted] = []

    async def search(self, wanted: Wanted) -> Search:
        self.asked.append(wanted)
        return Search((), 0, True, 0)

    def note_shut(self, addresses: tuple[str, ...]) -> None:
        pass


async def test_a_pool_that_the_operator_avoids_is_not_looked_for_nor_one_that_let_nobody_in(tmp_path: Path) -> None:
    choice = PoolChoice(is_searching=True, relays=("ws://127.0.0.1:9",), avoided=frozenset({USELESS}))
    identity = NodeIdentity(Ed25519PrivateKey.generate())
    pools = Pools(UpOptions(tmp_path, pool=choice), identity, lambda name, fields: None)
    pools.finder = finder = Finder()
    await pools.search()
    pools.avoid(REFUSING)
    await pools.search()
    assert [one.besides for one in finder.asked] == [{USELESS}, {USELESS, REFUSING}]


async def test_a_search_that_no_relay_answers_says_what_each_said_and_what_to_do(tmp_path: Path) -> None:
    told: list[Event] = []
    choice = PoolChoice(is_searching=True, relays=("ws://127.0.0.1:9",))
    identity = NodeIdentity(Ed25519PrivateKey.generate())
    await Pools(
        UpOptions(tmp_path, pool=choice), identity, lambda name, fields: told.append(Event(EventName(name), fields))
    ).search()
    [searched] = told
    [line] = describe_event(searched)
    assert not searched.fields["has_answer"]
    assert "ws://127.0.0.1:9: " in line
    assert "connection refused" in line.lower()
    assert "--nostr-relay" in line


def test_a_node_that_is_in_no_pool_loads_nothing_of_nostr() -> None:
    """Thirteen mebibytes of every node's memory."""
    command = "import sys, p2pmesh.app.up; sys.exit('nostr_sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], timeout=60, check=False).returncode == 0
