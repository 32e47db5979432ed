"""Coordinators that die, are cut off, leave and come back, over fake engines: requests go on, and nobody acts twice."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused, RemoteProtocolError
from p2pmesh.core.claims import Claim, ClaimLost, ClaimPolicy
from p2pmesh.core.grants import Deny, Grant
from p2pmesh.node.claims import HeldClaim
from p2pmesh.node.run import WATCH_AGAIN_S
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.node.vigil import ANSWER_S
from p2pmesh.wire.messages.claims import ClaimDenied, ClaimRun
from p2pmesh.wire.messages.runs import FollowStage, LoadStage, StageStatus
from p2pmesh.wire.stage import WireDtype
from tests.fakes.grants import FakeGrantStore
from tests.fakes.mesh import Mesh, MeshNode, expected, open_mesh, read_tokens
from tests.fakes.models import FakeModelStore, fake_model
from tests.node.test_stage_run import Puppet, held_stage, load_order
from tests.node.test_vigil import freeze

MODEL = fake_model()
LEASE_S = ClaimPolicy().lease_us / 1e6
OTHER_RUN = bytes(range(16))


class Trio:
    """A hub, a coordinator that holds no stage, and the two peers of its run in the order of their stages."""

    def __init__(self, mesh: Mesh, hub: MeshNode, coordinator: MeshNode, stages: list[MeshNode]) -> None:
        self.mesh = mesh
        self.hub = hub
        self.coordinator = coordinator
        self.first, self.second = stages

    @property
    def run_ids(self) -> set[bytes]:
        """Of the stages that are up."""
        runs = (run for node in (self.first, self.second) for run in node.node.table.runs())
        return {run.load.run_id for run in runs}

    async def ask(self) -> None:
        request = self.mesh.request()
        assert await self.first.ask(request) == expected(request)


async def served(mesh: Mesh, **stage_store: FakeModelStore) -> Trio:
    hub = await mesh.found("hub", memory_bytes=0)
    coordinator = await mesh.join("coordinator", hub, memory_bytes=0, store=FakeModelStore(MODEL))
    peers = [await mesh.join(f"peer-{n}", hub, **stage_store) for n in range(2)]
    mesh.serve(coordinator, MODEL, stage_count=2)
    ready = await coordinator.wait_told("pipeline_ready")
    by_id = {node.peer: node for node in peers}
    return Trio(mesh, hub, coordinator, [by_id[stage["peer_id"]] for stage in ready["stages"]])


async def test_requests_go_on_when_the_coordinator_dies_and_the_next_peer_takes_over(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        run_ids = three.run_ids
        request = mesh.request(max_tokens=2000)
        async with three.first.node.generate(request) as events:
            tokens = await read_tokens(events, at_most=5)
            await mesh.kill(three.coordinator)
            tokens += await read_tokens(events)
        assert tokens == expected(request)
        killed_at = trio.current_time()
        taken = await three.first.wait_told("run_taken_over")
        assert taken["from"] == three.coordinator.peer
        assert taken["term"] == 2
        assert trio.current_time() - killed_at <= LEASE_S + 1
        assert "fake" in three.first.node.routable_models()
        assert three.run_ids == run_ids
        assert three.second.told("run_taken_over") == []
        await trio.sleep(300)
        await three.ask()
        assert three.run_ids == run_ids
        (placement,) = three.first.node.status()["placements"]
        assert placement["phase"] == "serving"


async def test_a_coordinator_that_leaves_hands_over_at_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        started = trio.current_time()
        await three.coordinator.node.drain(5)
        await three.first.wait_told("run_taken_over")
        assert trio.current_time() - started < 2
        await mesh.kill(three.coordinator)
        await three.ask()


async def test_a_successor_that_dies_has_a_successor(autojump_clock: MockClock) -> None:
    """With its stage the run is over; who has the model places it anew."""
    async with open_mesh() as mesh:
        three = await served(mesh, store=FakeModelStore(MODEL))
        await mesh.kill(three.coordinator)
        await three.first.wait_told("run_taken_over")
        spare = await mesh.join("spare", three.hub)
        three.second.engine.kill("killed by SIGKILL")
        withdrawn = await three.first.wait_told("model_withdrawn")
        assert "SIGKILL" in withdrawn["message"]
        ready = await three.first.wait_told("pipeline_ready")
        assert {stage["peer_id"] for stage in ready["stages"]} <= {three.first.peer, three.second.peer, spare.peer}
        await three.first.wait_routable()
        await three.ask()


async def taken_over(three: Trio) -> None:
    """The first peer coordinates, and has heard of every stage."""
    await three.first.wait_told("run_taken_over")
    await trio.sleep(5)


async def test_a_successor_without_the_model_orders_the_same_stages_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        await mesh.kill(three.coordinator)
        await taken_over(three)
        run_ids = three.run_ids
        three.second.engine.kill()
        ready = await three.first.wait_told("pipeline_ready")
        assert [stage["peer_id"] for stage in ready["stages"]] == [three.first.peer, three.second.peer]
        await three.first.wait_routable()
        await three.ask()
        assert three.run_ids.isdisjoint(run_ids)
        three.first.engine.kill()
        await three.first.wait_told("pipeline_ready", times=2)
        await three.first.wait_routable()
        await three.ask()


async def test_a_successor_without_the_model_has_a_lost_stage_cut_by_whoever_has_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        await mesh.kill(three.coordinator)
        await taken_over(three)
        await mesh.kill(three.second)
        await three.first.wait_told("waiting_for_peers")
        spare = await mesh.join("spare", three.hub)
        holder = await mesh.join("holder", three.hub, memory_bytes=0, store=FakeModelStore(MODEL))
        holder.node.files.note(MODEL)
        ready = await three.first.wait_told("pipeline_ready")
        assert [stage["peer_id"] for stage in ready["stages"]] == [three.first.peer, spare.peer]
        await three.first.wait_routable()
        await three.ask()


async def test_a_run_that_was_taken_over_has_spare_engines(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        await mesh.kill(three.coordinator)
        await taken_over(three)
        holder = await mesh.join("holder", three.hub, memory_bytes=0, store=FakeModelStore(MODEL))
        holder.node.files.note(MODEL)
        spare = await mesh.join("spare", three.hub)
        await trio.sleep(90)
        assert len(spare.launcher.engines) == 2
        await mesh.kill(three.second)
        ready = await three.first.wait_told("pipeline_ready")
        assert [stage["peer_id"] for stage in ready["stages"]] == [three.first.peer, spare.peer]
        assert len(spare.told("stage_ready")) == 1
        await three.first.wait_routable()
        await three.ask()


async def test_a_successor_gives_way_to_whoever_serves_the_model_by_itself(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        await mesh.kill(three.coordinator)
        await taken_over(three)
        await mesh.kill(three.second)
        await three.first.wait_told("waiting_for_peers")
        assert three.first.node.coordinators.successions.coordinators
        owner = await mesh.join("owner", three.hub, store=FakeModelStore(MODEL))
        mesh.serve(owner, MODEL, stage_count=2)
        await owner.wait_told("pipeline_ready")
        await trio.sleep(60)
        assert three.first.node.coordinators.successions.coordinators == []
        assert owner.told("model_withdrawn") == []


async def test_a_successor_that_finds_nobody_gives_up_and_frees_all(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        await mesh.kill(three.coordinator)
        await taken_over(three)
        await mesh.kill(three.second)
        await trio.sleep(700)
        assert three.first.node.coordinators.successions.coordinators == []
        assert three.run_ids == set()
        assert three.first.node.stages.free_bytes == three.first.node.overlay.board.own().memory_bytes


async def test_a_coordinator_that_is_cut_off_steps_down_and_comes_back_to_a_refusal(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        run_ids = three.run_ids
        old = three.coordinator.node.claims.leased(MODEL.digest)
        assert old is not None
        for node in (three.first, three.second):
            mesh.overlay.cut(three.coordinator.peer, node.peer)
        withdrawn = await three.coordinator.wait_told("model_withdrawn")
        assert three.coordinator.told("run_taken_over") == []
        await three.first.wait_told("run_taken_over")
        for node in (three.first, three.second):
            mesh.overlay.mend(three.coordinator.peer, node.peer)
        await three.coordinator.node.overlay.ensure_admitted(three.first.peer, three.first.network.addresses())
        answer = await three.coordinator.node.claims.ask(three.first.peer, old)
        assert isinstance(answer, Deny)
        assert (answer.code, answer.term) == (ErrorCode.TERM_STALE, 2)
        assert withdrawn["code"]
        await trio.sleep(400)
        assert three.run_ids == run_ids
        assert len(three.coordinator.told("pipeline_ready")) == 1
        await three.ask()


async def test_a_coordinator_that_restarts_does_not_cut_the_run_that_went_on(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        grants = FakeGrantStore()
        hub = await mesh.found("hub", memory_bytes=0)
        given = {"memory_bytes": 0, "store": FakeModelStore(MODEL), "grants": grants}
        coordinator = await mesh.join("coordinator", hub, **given)
        peers = [await mesh.join(f"peer-{n}", hub) for n in range(2)]
        mesh.serve(coordinator, MODEL, stage_count=2)
        ready = await coordinator.wait_told("pipeline_ready")
        driver = next(node for node in peers if node.peer == ready["stages"][0]["peer_id"])
        await mesh.kill(coordinator)
        assert [grant.term for grant in grants.grants] == [1]
        again = await mesh.join("coordinator", hub, **given)
        mesh.serve(again, MODEL, stage_count=2)
        await driver.wait_told("run_taken_over")
        await trio.sleep(120)
        assert again.told("pipeline_ready") == []
        assert [run.load.run_id.hex() for run in driver.node.table.runs()] == [ready["run_id"]]
        request = mesh.request()
        assert await driver.ask(request) == expected(request)


async def test_a_node_that_restarts_says_that_it_waits_for_its_own_claim(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        hub = await mesh.found("hub", memory_bytes=0)
        given = {"store": FakeModelStore(MODEL), "grants": FakeGrantStore()}
        node = await mesh.join("node", hub, **given)
        mesh.serve(node, MODEL)
        await node.wait_told("pipeline_ready")
        await mesh.kill(node)
        again = await mesh.join("node", hub, **given)
        mesh.serve(again, MODEL)
        await again.wait_told("pipeline_ready")
        (waited,) = again.told("waiting_for_peers")
        assert waited["message"].startswith("this node coordinated it until a moment ago")


async def test_a_node_that_was_stopped_politely_serves_at_once_after_a_restart(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        hub = await mesh.found("hub", memory_bytes=0)
        grants = FakeGrantStore()
        given = {"store": FakeModelStore(MODEL), "grants": grants}
        node = await mesh.join("node", hub, **given)
        async with trio.open_nursery() as serving:
            options = ServingOptions(None, 4096, 4, WireDtype.F32)
            serving.start_soon(node.node.coordinators.serve_model, MODEL, options)
            await node.wait_told("pipeline_ready")
            await node.node.drain(5)
            serving.cancel_scope.cancel()
        assert [(grant.term, grant.lease_us) for grant in grants.grants] == [(1, 0)]
        await mesh.kill(node)
        again = await mesh.join("node", hub, **given)
        mesh.serve(again, MODEL)
        await again.wait_told("pipeline_ready")
        assert again.told("waiting_for_peers") == []
        assert [grant.term for grant in grants.grants] == [2]


async def test_a_release_that_cannot_be_stored_stands_in_nobodys_way(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        grants = FakeGrantStore()
        one = await mesh.found("one", grants=grants)
        ways = one.node.claims
        over, other = (Claim(digest * 32, OTHER_RUN, 1, (one.peer,), 15_000_000) for digest in ("ab", "cd"))
        for claim in (over, other):
            assert await ways.ask(one.peer, claim) == Grant(1)
        grants.is_full = True
        await ways.tell_release(one.peer, over, True)
        assert ways.leased(over.model) is None
        assert await ways.ask(one.peer, other) == Grant(1)  # a renewal
        with pytest.raises(ConfigError):
            await ways.ask(one.peer, replace(over, term=2))
        grants.is_full = False
        await ways.tell_release(one.peer, other, True)
        assert [(grant.term, grant.lease_us > 0) for grant in grants.grants] == [(1, False), (2, True)]


async def test_of_two_that_want_the_same_peers_one_serves_and_the_other_stands_by(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        one = await mesh.found("one", store=FakeModelStore(MODEL))
        other = await mesh.join("other", one, store=FakeModelStore(MODEL))
        for node in (one, other):
            mesh.serve(node, MODEL, stage_count=2)
        await trio.sleep(60)
        winner, standby = (one, other) if one.told("pipeline_ready") else (other, one)
        await trio.sleep(100)
        assert len(winner.told("pipeline_ready")) == 1
        assert standby.told("pipeline_ready") == []
        assert any("stands by" in told["message"] for told in standby.told("waiting_for_peers"))
        third = await mesh.join("third", standby) if standby is one else None
        await mesh.kill(winner)
        if third is not None:
            await standby.wait_told("pipeline_ready")


async def test_who_finds_all_peers_busy_with_the_model_says_so_and_answers_through_their_run(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh)
        late = await mesh.join("late", three.hub, store=FakeModelStore(MODEL))
        mesh.serve(late, MODEL, stage_count=3)
        request = mesh.request()
        assert await late.ask(request) == expected(request)
        await trio.sleep(120)
        assert late.told("pipeline_ready") == []
        (waiting, *_) = (told["message"] for told in late.told("waiting_for_peers") if "3 stages" in told["message"])
        assert "1 is here; 2 more peers hold the model for a run of another coordinator" in waiting
        assert f"left out for {LEASE_S:.0f} s at most" in waiting
        assert waiting.endswith("until then requests here are answered through that run")
        assert not any("start" in told["message"] for told in late.told("waiting_for_peers"))
        request = mesh.request()
        assert await late.ask(request) == expected(request)


async def test_a_peer_whose_stage_does_not_load_is_replaced(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        liar = await mesh.join("liar", driver, memory_bytes=2**40)
        liar.launcher.failure = RemoteProtocolError(ErrorCode.ENGINE_LOAD_FAILED, "out of memory")
        honest = await mesh.join("honest", driver)
        mesh.serve(driver, MODEL, stage_count=2)
        first = await driver.wait_told("placement")
        assert liar.peer in {stage["peer_id"] for stage in first["stages"]}
        ready = await driver.wait_told("pipeline_ready")
        assert {stage["peer_id"] for stage in ready["stages"]} == {driver.peer, honest.peer}
        assert len(driver.told("model_withdrawn")) == 1


async def test_a_peer_that_loads_for_ever_is_replaced_however_often_it_says_so(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        slow = await mesh.join("slow", driver, memory_bytes=2**40)
        slow.launcher.load_s = 1e9
        honest = await mesh.join("honest", driver)
        mesh.serve(driver, MODEL, stage_count=2)
        await trio.sleep(600)  # a load may take so long
        assert not driver.told("model_withdrawn")
        withdrawn = await driver.wait_told("model_withdrawn")
        assert withdrawn["code"] == ErrorCode.DEADLINE_EXCEEDED.value
        assert "whatever its peer reports" in withdrawn["message"]
        ready = await driver.wait_told("pipeline_ready")
        assert {stage["peer_id"] for stage in ready["stages"]} == {driver.peer, honest.peer}


async def test_a_promise_that_cannot_be_kept_on_disk_is_not_given(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        full, other = FakeGrantStore(), None
        full.is_full = True
        await mesh.join("full", driver, memory_bytes=2**40, grants=full)
        other = await mesh.join("other", driver)
        mesh.serve(driver, MODEL, stage_count=2)
        ready = await driver.wait_told("pipeline_ready")
        assert {stage["peer_id"] for stage in ready["stages"]} == {driver.peer, other.peer}


async def test_a_successor_notices_that_a_peer_froze(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh, store=FakeModelStore(MODEL))
        await mesh.kill(three.coordinator)
        await three.first.wait_told("run_taken_over")
        await trio.sleep(5)
        freeze(three.second)
        frozen_at = trio.current_time()
        withdrawn = await three.first.wait_told("model_withdrawn")
        assert withdrawn["stage"] == 1
        assert "does not answer" in withdrawn["message"]
        assert trio.current_time() - frozen_at < WATCH_AGAIN_S + 2 * ANSWER_S


async def test_a_successor_that_can_never_place_the_model_lives_on(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        three = await served(mesh, store=FakeModelStore(MODEL))

        async def refuse(model: object, options: object) -> None:
            raise Refused(ErrorCode.PLACEMENT_REFUSED, "fake cannot be placed: no peer could help")

        parts = three.first.node.coordinators.successions._parts
        three.first.node.coordinators.successions._parts = replace(parts, serve_model=refuse)
        await mesh.kill(three.coordinator)
        await three.first.wait_told("run_taken_over")
        three.second.engine.kill()
        waiting = await three.first.wait_told("waiting_for_peers")
        assert "no peer could help" in waiting["message"]
        await trio.sleep(5)
        assert not three.first.is_dead.is_set()
        assert await three.first.node.peers()


async def test_a_promise_that_was_not_stored_is_not_given_when_asked_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        full = FakeGrantStore()
        full.is_full = True
        one = await mesh.found("one", grants=full)
        claim = Claim("ab" * 32, OTHER_RUN, 1, (one.peer,), 15_000_000)
        for _ in range(2):
            with pytest.raises(ConfigError, match="no space left"):
                await one.node.claims.ask(one.peer, claim)
        full.is_full = False
        assert await one.node.claims.ask(one.peer, claim) == Grant(1)
        assert [grant.run_id for grant in full.grants] == [OTHER_RUN]


async def test_a_run_whose_claim_is_lost_meanwhile_is_not_published(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(held: HeldClaim) -> None:
        await held._perform(ClaimLost(ErrorCode.QUORUM_LOST, "too few renewed", ()))

    monkeypatch.setattr(HeldClaim, "note_serving", lose)
    async with open_mesh() as mesh:
        node = await mesh.found("node", store=FakeModelStore(MODEL))
        published: list[bytes] = []
        monkeypatch.setattr(node.node.drivers, "publish", lambda run_id, _: published.append(run_id))
        mesh.serve(node, MODEL)
        withdrawn = await node.wait_told("model_withdrawn")
        assert withdrawn["code"] == "quorum_lost"
        assert published == []


# --- fencing, word by word --------------------------------------------------------
async def refusal_code(puppet: Puppet, message: object, kind: type = StageStatus) -> ErrorCode:
    stream = await puppet.control(message)
    with pytest.raises(P2PMeshError) as raised:
        await stream.expect(kind, 30)
    return raised.value.code


async def test_no_stage_is_loaded_without_a_claim_or_under_an_old_term(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, _):
        unclaimed = await load_order(puppet, model_digest="ef" * 32)
        assert await refusal_code(puppet, unclaimed) is ErrorCode.TERM_STALE
        of_another_run = await load_order(puppet, run_id=OTHER_RUN)
        assert await refusal_code(puppet, of_another_run) is ErrorCode.TERM_CONFLICT
        too_early = await load_order(puppet, term=2)
        assert await refusal_code(puppet, too_early) is ErrorCode.TERM_STALE
        assert len(puppet.victim.node.table.runs()) == 1


async def test_a_stranger_follows_no_stage(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, _, _):
        order = await load_order(puppet)
        unknown = FollowStage(order.model_digest, OTHER_RUN, 1)
        assert await refusal_code(puppet, unknown) is ErrorCode.TERM_CONFLICT
        following = await puppet.control(FollowStage(order.model_digest, order.run_id, 1))
        assert await following.expect(LoadStage, 10) == order
        states = [(await following.expect(StageStatus, 10)).state for _ in range(3)]
        assert states[-1] == "ready"


async def test_a_run_that_does_not_serve_ends_with_its_coordinators_stream(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, _):
        await load.reset()
        await trio.sleep(1)
        assert not puppet.victim.node.table.runs()


async def test_a_run_that_serves_outlives_its_coordinators_stream_but_not_its_claim(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, held_stage(mesh) as (puppet, load, _):
        order = await load_order(puppet)
        peers = (puppet.identity.peer_id, puppet.victim.peer)
        await puppet.control(ClaimRun(order.model_digest, order.run_id, 1, 15_000, peers, True))
        await trio.sleep(1)
        await load.reset()
        await trio.sleep(80)
        assert puppet.victim.node.table.runs()
        denied = await puppet.control(ClaimRun(order.model_digest, OTHER_RUN, 99, 15_000, peers, False))
        assert (await denied.expect(ClaimDenied, 10)).code == "model_leased"
        await trio.sleep(2000)
        assert not puppet.victim.node.table.runs()


async def test_a_node_answers_claims_of_peers_as_its_own(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        one = await mesh.found("one")
        other = await mesh.join("other", one)
        claim = Claim("ab" * 32, OTHER_RUN, 1, (one.peer, other.peer), 15_000_000)
        assert await one.node.claims.ask(other.peer, claim) == Grant(1)
        assert await one.node.claims.ask(one.peer, claim) == Grant(1)
        rival = Claim("ab" * 32, bytes(16), 2, (other.peer, one.peer), 15_000_000)
        denied = await other.node.claims.ask(one.peer, rival)
        assert isinstance(denied, Deny)
        assert denied.code is ErrorCode.MODEL_LEASED
        await one.node.claims.tell_release(one.peer, claim, True)
        assert await other.node.claims.ask(one.peer, rival) == Grant(2)
