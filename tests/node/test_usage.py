"""What machines give and get is counted where it passes, told from time to time, and kept."""

import trio
from trio.testing import MockClock

from p2pmesh.core.usage import Totals
from p2pmesh.node.usage import TELL_EVERY_S
from tests.fakes.mesh import open_mesh
from tests.fakes.models import FakeModelStore, fake_model

MODEL = fake_model()


class FakeUsageStore:
    def __init__(self, kept: Totals | None = None) -> None:
        self.kept = kept

    def restored(self) -> Totals | None:
        return self.kept

    async def save(self, totals: Totals) -> None:
        self.kept = totals


async def test_each_peer_of_a_run_counts_the_tokens_of_whom_it_works_for(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        stores = {name: FakeUsageStore() for name in ("driver", "second")}
        driver = await mesh.found("driver", store=FakeModelStore(MODEL), usage=stores["driver"])
        second = await mesh.join("second", driver, usage=stores["second"])
        client = await mesh.join("client", driver, memory_bytes=0)
        mesh.serve(driver, MODEL, stage_count=2)
        await client.wait_routable()
        assert len(await client.ask(mesh.request(max_tokens=20))) == 20
        await driver.ask(mesh.request(max_tokens=5))

        used = driver.node.status()["usage"]
        rows = {row["peer_id"]: row for row in used["users"]}
        assert (rows[client.peer]["tokens"], rows[client.peer]["name"], rows[client.peer]["requests"]) == (
            20,
            "client",
            1,
        )
        assert (rows[None]["tokens"], rows[None]["name"]) == (5, "clients of this node")
        later = second.node.status()["usage"]
        assert [(row["peer_id"], row["name"]) for row in later["users"]] == [(driver.peer, "driver")]
        assert later["users"][0]["tokens"] >= 23  # of each answer but the first one, and those that were probed
        given = [driver.node.status()["usage"]["given_layers"], later["given_layers"]]
        assert (sum(given), min(given) > 0) == (MODEL.index.layer_count, True)
        assert later["given_bytes"] > 0
        assert later["sent_bytes"] > 0
        assert later["received_bytes"] > 1000

        await trio.sleep(TELL_EVERY_S)
        told = await second.wait_told("usage")
        assert told["users"][0]["peer_id"] == driver.peer
        assert (told["window_s"], told["uptime_s"]) == (TELL_EVERY_S, TELL_EVERY_S)
        await trio.sleep(TELL_EVERY_S)
        again = await second.wait_told("usage", 2)
        assert (again["tokens"], again["users"], again["tokens_in_all"]) == (0, [], told["tokens"])
        kept = stores["second"].kept
        assert kept is not None
        assert kept.tokens == told["tokens"]
        assert kept.giving_s == kept.up_s > TELL_EVERY_S


async def test_counters_go_on_after_a_restart(autojump_clock: MockClock) -> None:
    store = FakeUsageStore(Totals(since_unix_s=5, up_s=100, tokens=1000))
    async with open_mesh() as mesh:
        node = await mesh.found("node", usage=store)
        await trio.sleep(30)
        used = node.node.status()["usage"]
        assert (used["since_unix_s"], used["tokens"], used["up_s"], used["uptime_s"]) == (5, 1000, 130, 30)
    assert store.kept is not None
    assert store.kept.up_s >= 130


async def test_a_node_that_is_only_there_tells_nothing(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        node = await mesh.found("node")
        await trio.sleep(3 * TELL_EVERY_S)
        assert node.told("usage") == []
