"""Trust as nodes live it: opened claims, the store that changes, placement, routing and the status page."""

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.ids import PeerId, owner_id_of_key
from p2pmesh.core.ownership import OwnershipStatus, TrustPolicy, TrustStore
from p2pmesh.node.ownership import PeerTrust
from p2pmesh.wire.announcement import Announcement
from p2pmesh.wire.generation import GenerationStarted
from p2pmesh.wire.ownership import LIFE_MS, OwnershipClaim, encode_claim
from p2pmesh.wire.stage import FrameKind
from tests.fakes.clock import FakeClock
from tests.fakes.identity import fake_identity
from tests.fakes.mesh import UNIX_MS_AT_START, MeshNode, expected, open_mesh
from tests.fakes.models import FakeModelStore, fake_model
from tests.node.test_ingress import events_of
from tests.wire.keys import JOINER, OWNER, STRANGER, verify

OWNER_ID = owner_id_of_key(OWNER.public_key)
MODEL = fake_model()
PREFER = TrustStore(TrustPolicy.PREFER_OWNED)
REQUIRE = TrustStore(TrustPolicy.REQUIRE_OWNED)


def claim_of(peer: PeerId, life_ms: int = LIFE_MS, label: str = "", issued_ms: int = UNIX_MS_AT_START) -> bytes:
    claim = OwnershipClaim(1, peer.encode()[-16:], peer, label, issued_ms, issued_ms + life_ms)
    return encode_claim(claim, OWNER.public_key, OWNER.sign)


def claim_for(name: str, life_ms: int = LIFE_MS) -> bytes:
    """A claim on the fake node of this name."""
    return claim_of(fake_identity(name).peer_id, life_ms, name)


def said_by(peer: PeerId, claim: bytes) -> Announcement:
    return Announcement(peer, "0" * 32, "n", "1", 1, 1, 0, (), 0, 0, (), ownership=claim)


# --- PeerTrust alone -------------------------------------------------------------
class Verifications:
    """Counts what is really checked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, key: bytes, message: bytes, signature: bytes) -> bool:
        self.count += 1
        return verify(key, message, signature)


async def test_a_claim_is_opened_once_and_judged_by_the_clock_each_time() -> None:
    clock, checked = FakeClock(), Verifications()
    trust = PeerTrust(checked, clock, REQUIRE)
    claim = claim_of(JOINER.peer_id, life_ms=1000, issued_ms=clock.unix_ms())
    assert trust.admits(JOINER.peer_id, claim)
    assert not trust.admits(STRANGER.peer_id, claim)
    clock.advance(micros=40_000_000)
    assert trust.assess(JOINER.peer_id, claim).status is OwnershipStatus.EXPIRED
    assert not trust.admits(JOINER.peer_id, claim)
    assert checked.count == 1


async def test_the_table_of_opened_claims_is_bounded() -> None:
    checked = Verifications()
    trust = PeerTrust(checked, FakeClock(), REQUIRE, capacity=2)
    claims = [claim_of(JOINER.peer_id, life_ms) for life_ms in (1, 2, 3)]
    for claim in (*claims, claims[2], claims[0]):
        trust.assess(JOINER.peer_id, claim)
    assert checked.count == 4  # the first was given up for the third


async def test_under_off_nothing_is_looked_at() -> None:
    checked = Verifications()
    trust = PeerTrust(checked, FakeClock(), TrustStore())
    assert trust.admits(JOINER.peer_id, b"garbage")
    assert trust.rank(said_by(JOINER.peer_id, claim_of(JOINER.peer_id))) == 0
    assert checked.count == 0


async def test_a_changed_store_counts_at_once_and_is_told_if_it_differs() -> None:
    trust = PeerTrust(verify, FakeClock(), TrustStore())
    trust.change(TrustStore())
    assert trust.changes.count == 0
    trust.change(REQUIRE)
    assert trust.changes.count == 1
    assert trust.policy is TrustPolicy.REQUIRE_OWNED
    assert trust.admitted([said_by(JOINER.peer_id, b"")]) == ()


async def test_verified_peers_rank_first_under_prefer_owned() -> None:
    clock = FakeClock()
    trust = PeerTrust(verify, clock, PREFER)
    claim = claim_of(JOINER.peer_id, issued_ms=clock.unix_ms())
    assert [trust.rank(said_by(JOINER.peer_id, shown)) for shown in (claim, b"")] == [0, 1]


# --- nodes -------------------------------------------------------------------------
async def stages_on(node: MeshNode, times: int = 1) -> set[str]:
    placed = await node.wait_told("placement", times)
    return {stage["peer_id"] for stage in placed["stages"]}


async def test_an_owned_peer_gets_the_stage_that_a_larger_stranger_could_hold(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        store = FakeModelStore(MODEL)
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=store, trust=PREFER)
        await mesh.join("stranger", coordinator, memory_bytes=1 << 34)
        own = await mesh.join("own", coordinator, ownership=claim_for("own"))
        mesh.serve(coordinator, MODEL)
        assert await stages_on(coordinator) == {own.peer}


async def test_a_stranger_gets_the_stage_where_no_owned_peer_can_hold_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        store = FakeModelStore(MODEL)
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=store, trust=PREFER)
        stranger = await mesh.join("stranger", coordinator)
        await mesh.join("own", coordinator, ownership=claim_for("own"), memory_bytes=1)
        mesh.serve(coordinator, MODEL)
        assert await stages_on(coordinator) == {stranger.peer}


async def test_a_peer_whose_claim_ran_out_since_gets_no_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        store = FakeModelStore(MODEL)
        coordinator = await mesh.found("coordinator", memory_bytes=0, store=store, trust=REQUIRE)
        short = claim_for("short", life_ms=60_000)
        await mesh.join("short", coordinator, ownership=short, trust=TrustStore())
        long = await mesh.join("long", coordinator, ownership=claim_for("long"), memory_bytes=1 << 29)
        await trio.sleep(120)
        mesh.serve(coordinator, MODEL)
        assert await stages_on(coordinator) == {long.peer}


async def test_requests_go_to_owned_drivers_first_and_to_admitted_ones_only(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL))
        mesh.serve(founder, MODEL)
        client = await mesh.join("client", founder, memory_bytes=0)
        await client.wait_routable()
        trust = client.node.overlay.trust
        trust.change(REQUIRE)
        assert client.node.routable_models() == {}
        trust.change(PREFER)
        request = mesh.request()
        assert await client.ask(request) == expected(request)


async def test_the_router_prefers_the_owned_driver(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", store=FakeModelStore(MODEL))
        owned = await mesh.join("owned", founder, store=FakeModelStore(MODEL), ownership=claim_for("owned"))
        client = await mesh.join("client", founder, memory_bytes=0, trust=PREFER)
        for node in (founder, owned):
            mesh.serve(node, MODEL)
            await node.wait_told("pipeline_ready")
        board = client.node.overlay.board
        with trio.fail_after(600):
            while sum(bool(said.models) for said in board.others()) < 2:
                await board.changes.wait_beyond(board.changes.count)
        probes = founder.engine.count(FrameKind.PREFILL)
        for _ in range(8):
            request = mesh.request()
            assert await client.ask(request) == expected(request)
        assert founder.engine.count(FrameKind.PREFILL) == probes
        assert owned.engine.count(FrameKind.PREFILL) >= 8


async def test_the_status_page_tells_owner_label_and_status_of_each_peer(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        trust = TrustStore(TrustPolicy.PREFER_OWNED).trusting(OWNER_ID, "me")
        founder = await mesh.found("founder", trust=trust, ownership=claim_for("founder"))
        own = await mesh.join("own", founder, ownership=claim_for("own"))
        stranger = await mesh.join("stranger", founder)
        status = founder.node.status()
        assert (status["trust_policy"], status["ownership"], status["node_label"]) == (
            "prefer-owned", "verified", "founder",
        )  # fmt: skip
        peers = {peer["peer_id"]: peer for peer in status["peers"]}
        shown = peers[own.peer]
        assert (shown["ownership"], shown["owner_id"], shown["owner_label"], shown["node_label"]) == (
            "verified", OWNER_ID, "me", "own",
        )  # fmt: skip
        assert shown["claim_expires_unix_ms"] == UNIX_MS_AT_START + LIFE_MS
        assert (peers[stranger.peer]["ownership"], peers[stranger.peer]["owner_id"]) == ("unsigned", None)


async def test_a_renewed_claim_reaches_the_peers(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        own = await mesh.join("own", founder, ownership=claim_for("own"))
        renewed = claim_for("own", life_ms=LIFE_MS + 1)
        own.node.change_ownership(renewed)
        board = founder.node.overlay.board
        with trio.fail_after(600):
            while (said := board.find(own.peer)) is None or said.ownership != renewed:
                await board.changes.wait_beyond(board.changes.count)


async def test_a_member_whose_claim_runs_out_is_put_out_and_one_that_renews_stays(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder", trust=REQUIRE, ownership=claim_for("founder"))
        short = await mesh.join("short", founder, ownership=claim_for("short", life_ms=300_000))
        renews = await mesh.join("renews", founder, ownership=claim_for("renews", life_ms=300_000))
        await trio.sleep(200)
        renews.node.change_ownership(claim_for("renews"))
        await trio.sleep(60)
        assert founder.node.overlay.is_admitted(short.peer)
        refused = await founder.wait_told("peer_refused")
        assert (refused["peer_id"], refused["code"]) == (short.peer, "ownership_refused")
        await trio.sleep(200)
        assert not founder.node.overlay.is_admitted(short.peer)
        assert founder.node.overlay.is_admitted(renews.peer)
        assert {told["peer_id"] for told in founder.told("peer_refused")} == {short.peer}


async def test_a_changed_trust_counts_for_those_who_are_here(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found("founder")
        stranger = await mesh.join("stranger", founder)
        own = await mesh.join("own", founder, ownership=claim_for("own"))
        founder.node.change_trust(REQUIRE)
        refused = await founder.wait_told("peer_refused")
        assert (refused["peer_id"], refused["code"]) == (stranger.peer, "ownership_refused")
        assert founder.node.overlay.is_admitted(own.peer)


@pytest.mark.parametrize(("claims", "is_verified"), [(("driver", "peer"), True), (("driver",), False), ((), False)])
async def test_an_answer_tells_whether_each_peer_of_its_route_has_a_verified_owner(
    autojump_clock: MockClock, claims: tuple[str, ...], is_verified: bool
) -> None:
    async with open_mesh() as mesh:
        given = {name: claim_for(name) if name in claims else b"" for name in ("driver", "peer")}
        driver = await mesh.found("driver", store=FakeModelStore(MODEL), ownership=given["driver"])
        await mesh.join("peer", driver, ownership=given["peer"])
        asked = await mesh.join("asked", driver, memory_bytes=0)
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        for node in (driver, asked):
            await node.wait_routable()
            events = await events_of(node, mesh.request(), {})
            assert isinstance(events[0], GenerationStarted)
            assert len(events[0].stages) == 2
            assert events[0].is_verified is is_verified
