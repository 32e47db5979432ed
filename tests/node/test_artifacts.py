"""Files between nodes: from several at once, from those that are left, resumed; and with whom the operator allows."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import Digest, LayerRange, PeerId, owner_id_of_key
from p2pmesh.base.quantities import KIB
from p2pmesh.core.artifact_policy import ArtifactTransfer
from p2pmesh.core.ownership import TrustStore
from p2pmesh.node.artifact_sources import FileOrigin, WantedFile
from p2pmesh.node.artifacts import MAX_GIVEN_TO_A_PEER
from p2pmesh.node.node import Node
from p2pmesh.node.transfer import MAX_KNOWN, TransferCounts
from p2pmesh.ports.models import ArtifactReception, ModelFile, StageArtifact
from p2pmesh.ports.network import Provider
from p2pmesh.wire.announcement import HeldModel
from p2pmesh.wire.messages.artifacts import ArtifactChunk, FetchArtifact, FetchPieceList, PrepareArtifact
from p2pmesh.wire.pieces import PieceList
from tests.fakes.mesh import PATIENCE_S, Mesh, MeshNode, open_mesh
from tests.fakes.models import FakeModelStore, fake_model, pieces_of
from tests.node.test_ownership import claim_for
from tests.wire.keys import OWNER

MODEL = fake_model()
DATA = bytes(range(256)) * 4096 * 12 + b"the end"
"""12 MiB and a little: 49 pieces, and large enough that others are searched."""
PIECES = pieces_of(DATA)


def holder(data: bytes = DATA, **changes: Any) -> FakeModelStore:
    """A store that has the file; its disk gives 6.4 MB/s."""
    store = FakeModelStore()
    digest = Digest(hashlib.sha256(data).hexdigest())
    store.files[digest] = data
    store.portion_s = 0.01
    for name, value in changes.items():
        setattr(store, name, value)
    return store


DIGEST = next(iter(holder().files))
WANTED = WantedFile(DIGEST, len(DATA), PIECES.digest)


class Takers:
    """A mesh of one that named the file, others that may have it, and one that wants it."""

    def __init__(self, mesh: Mesh, origin: MeshNode, taker: MeshNode, others: list[MeshNode]) -> None:
        self.mesh, self.origin, self.taker, self.others = mesh, origin, taker, others
        self.progress: list[int] = []

    async def obtain(self, wanted: WantedFile = WANTED, **known: Any) -> TransferCounts:
        async def progress(done_bytes: int) -> None:
            self.progress.append(done_bytes)

        origin = FileOrigin(self.origin.peer, (), **known)
        with trio.fail_after(PATIENCE_S * 4):
            artifact, counts = await self.taker.node.artifacts.obtain(wanted, origin, progress)
        self.taker.store.release(artifact.digest)
        assert self.taker.store.files[wanted.digest] == DATA
        assert self.taker.store.holds.total() == 0
        return counts


async def takers(mesh: Mesh, origin: FakeModelStore, *others: FakeModelStore, **given: Any) -> Takers:
    """Others are found in the records."""
    founder = await mesh.found("origin", store=origin, settings={"artifact_transfer": ArtifactTransfer.OPEN} | given)
    taker = await mesh.join("taker", founder, settings=given)
    nodes = [
        await mesh.join(f"other-{number}", founder, store=store, settings=given) for number, store in enumerate(others)
    ]
    provide(taker.node, [node for node in nodes if DIGEST in node.store.files])
    return Takers(mesh, founder, taker, nodes)


def provide(node: Node, providers: list[MeshNode], provided: Digest = DIGEST) -> None:
    async def find(digest: Digest) -> tuple[Provider, ...]:
        await trio.sleep(0.05)
        return tuple(Provider(one.peer, one.network.addresses()) for one in providers) if digest == provided else ()

    node.artifacts.search_by(find)


async def test_a_file_comes_from_all_who_have_it_at_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder(), holder())
        began = trio.current_time()
        counts = await world.obtain()
        assert set(counts.sources) == {world.origin.peer, *(other.peer for other in world.others)}
        assert sum(counts.sources.values()) == counts.fetched_bytes == len(DATA)
        assert counts.wasted_bytes <= 16 * 256 * KIB
        assert trio.current_time() - began < len(DATA) / 6.4e6  # sooner than one alone could
        assert world.progress == sorted(world.progress)
        status = world.taker.node.status()["artifacts"]
        assert (status["mode"], status["fetched_bytes"], status["under_way"]) == ("open", len(DATA), [])
        assert world.origin.node.status()["artifacts"]["given_bytes"] >= counts.sources[world.origin.peer]


async def test_a_file_that_is_here_is_not_fetched(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        await world.obtain()
        assert (await world.obtain()).fetched_bytes == 0


async def test_a_node_that_has_been_up_for_long_fetches_too(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        await trio.sleep(3600)
        assert (await world.obtain()).fetched_bytes == len(DATA)


async def test_what_is_given_waits_for_tokens(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(portion_s=0.0))
        world.origin.node.artifacts.grants.is_busy = lambda: True
        began = trio.current_time()
        await world.obtain()
        assert trio.current_time() - began >= len(DATA) / (9 * 1024 * KIB)


async def test_two_who_want_the_same_file_fetch_it_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        counts: list[TransferCounts] = []

        async def obtain() -> None:
            counts.append(await world.obtain())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(obtain)
            nursery.start_soon(obtain)
        assert sorted(one.fetched_bytes for one in counts) == [0, len(DATA)]


async def test_the_others_finish_what_a_lost_source_began(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder())

        async def kill_soon() -> None:
            await trio.sleep(0.25)
            await mesh.kill(world.others[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_soon)
            counts = await world.obtain()
        assert 0 < counts.sources[world.others[0].peer] < len(DATA) // 2
        assert counts.wasted_bytes <= 20 * 256 * KIB
        told = world.taker.told("artifact_source_dropped")
        assert {(one["peer_id"], one["cause"]) for one in told} == {(world.others[0].peer, "lost")}


async def test_a_transfer_that_was_broken_off_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        with trio.move_on_after(0.4):
            await world.obtain()
        have = sum(map(len, world.taker.store.partial[DIGEST].values()))
        assert have > 1024 * KIB
        counts = await world.obtain()
        assert (counts.resumed_bytes, counts.fetched_bytes) == (have, len(DATA) - have)


class SlowAtFirst:
    """An ``ArtifactReception`` whose first piece takes longer than one may; it is written whoever is cancelled."""

    def __init__(self, reception: ArtifactReception) -> None:
        self._reception = reception
        self._is_slow = True

    @property
    def have(self) -> tuple[int, ...]:
        return self._reception.have

    async def write_piece(self, piece: int, data: bytes) -> None:
        was_slow, self._is_slow = self._is_slow, False
        with trio.CancelScope(shield=True):
            await trio.sleep(30.0 * was_slow)
            await self._reception.write_piece(piece, data)


async def test_a_piece_that_is_written_while_its_request_is_given_up_counts_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        receive = world.taker.store.receive_artifact

        @asynccontextmanager
        async def receive_slowly(digest: Digest, pieces: PieceList) -> AsyncIterator[ArtifactReception]:
            async with receive(digest, pieces) as reception:
                yield SlowAtFirst(reception)

        world.taker.store.receive_artifact = receive_slowly
        counts = await world.obtain()
        assert counts.fetched_bytes == sum(counts.sources.values()) == len(DATA)


# --- hostile sources


async def test_made_up_holders_are_few_and_stop_nothing(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder())
        known = 0

        async def find(digest: Digest) -> tuple[Provider, ...]:
            made_up = tuple(Provider(PeerId(f"made-up-{number}"), ("/ip4/127.0.0.1/tcp/9",)) for number in range(200))
            return (Provider(world.others[0].peer, world.others[0].network.addresses()), *made_up)

        world.taker.node.artifacts.search_by(find)

        async def watch() -> None:
            nonlocal known
            while True:
                await trio.sleep(0.1)
                known = max([known, *(len(one._addresses) for one in world.taker.node.artifacts._under_way.values())])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            counts = await world.obtain()
            nursery.cancel_scope.cancel()
        assert world.others[0].peer in counts.sources
        assert 2 < known <= MAX_KNOWN


def wrong(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


async def test_whoever_sends_wrong_bytes_is_dropped_and_scored_and_the_others_finish(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder(damage=wrong), holder())
        bad = world.others[0].peer
        counts = await world.obtain()
        told = world.taker.told("artifact_source_dropped")
        assert [(one["peer_id"], one["cause"], one["digest"]) for one in told] == [(bad, "wrong", DIGEST)]
        assert points(world.taker, bad) == 50
        assert points(world.taker, world.others[1].peer) == points(world.taker, world.origin.peer) == 0
        assert counts.wasted_bytes <= 20 * 256 * KIB


def points(node: MeshNode, peer: PeerId) -> int:
    conduct = node.node.overlay.conduct
    return conduct._machine.points(peer, conduct._clock.now())


async def serve_like(node: MeshNode, answer: Callable[[Any, FetchArtifact], Any]) -> None:
    """The node answers requests for bytes so instead."""
    node.node.overlay.serve_exchange(FetchArtifact, answer)


async def answers_short(stream: Any, asked: FetchArtifact) -> None:
    await stream.send(ArtifactChunk(DATA[asked.offset : asked.offset + 1000]))
    await stream.finish()


async def answers_without_end(stream: Any, asked: FetchArtifact) -> None:
    data = DATA[asked.offset : asked.offset + asked.size_bytes]
    for start in range(0, len(data), 64 * KIB):
        await stream.send(ArtifactChunk(data[start : start + 64 * KIB] + b"more"))
    while True:
        await stream.send(ArtifactChunk(bytes(64 * KIB)))


async def answers_in_a_trickle(stream: Any, asked: FetchArtifact) -> None:
    for offset in range(asked.offset, asked.offset + asked.size_bytes):
        await stream.send(ArtifactChunk(DATA[offset : offset + 1]))
        await trio.sleep(5)


async def answers_nothing(stream: Any, asked: FetchArtifact) -> None:
    await trio.sleep_forever()


async def answers_with_nonsense(stream: Any, asked: FetchArtifact) -> None:
    await stream.send(PrepareArtifact("0" * 64, "0" * 64, 0, 1))
    await stream.finish()


@pytest.mark.parametrize(
    ("answer", "cause", "is_scored"),
    [
        (answers_short, "lost", False),
        (answers_without_end, "wrong", True),
        (answers_in_a_trickle, "slow", False),
        (answers_nothing, "slow", False),
        (answers_with_nonsense, "wrong", True),
    ],
)
async def test_a_hostile_source_costs_little_and_stops_nothing(
    answer: Callable[[Any, FetchArtifact], Any], cause: str, is_scored: bool, autojump_clock: MockClock
) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(portion_s=1.0), holder())
        await serve_like(world.others[0], answer)
        counts = await world.obtain()
        told = world.taker.told("artifact_source_dropped")
        assert {(one["peer_id"], one["cause"]) for one in told} == {(world.others[0].peer, cause)}
        assert counts.wasted_bytes <= 30 * 256 * KIB
        assert (points(world.taker, world.others[0].peer) > 0) is is_scored


async def test_trouble_of_a_source_that_may_pass_is_no_refusal_for_ever(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        serve, calls = world.origin.node.artifacts._serve, [0]

        async def in_trouble_at_first(stream: Any, asked: FetchArtifact) -> None:
            calls[0] += 1
            if calls[0] == 1:
                raise Refused(ErrorCode.NOT_ADMITTED, "say hello first")
            await serve(stream, asked)

        await serve_like(world.origin, in_trouble_at_first)
        assert (await world.obtain()).fetched_bytes == len(DATA)


async def test_a_single_source_that_sends_wrong_bytes_ends_it_with_its_name(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(damage=wrong))
        with pytest.raises(P2PMeshError) as raised:
            await world.obtain()
        assert raised.value.code is ErrorCode.ARTIFACT_CORRUPT
        assert world.origin.peer in raised.value.message
        assert points(world.taker, world.origin.peer) == 50


async def test_whoever_names_a_list_that_is_not_the_files_is_blamed_and_no_source(autojump_clock: MockClock) -> None:
    """The origin gives other bytes under the digest, with a list that fits them."""
    async with open_mesh() as mesh:
        other = DATA[:-1] + b"!"
        world = await takers(mesh, holder(other), holder())
        world.origin.store.files = {DIGEST: other}
        named = WantedFile(DIGEST, len(other), pieces_of(other).digest)
        with pytest.raises(P2PMeshError) as raised:
            await world.obtain(named)
        assert raised.value.code is ErrorCode.ARTIFACT_CORRUPT
        assert points(world.taker, world.origin.peer) == 50
        assert points(world.taker, world.others[0].peer) == 0
        assert ("unknown" in {one["cause"] for one in world.taker.told("artifact_source_dropped")}) is True


async def test_a_wrong_piece_list_is_blamed_and_another_one_is_asked(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder())

        async def wrong_list(stream: Any, asked: FetchPieceList) -> None:
            await stream.send(ArtifactChunk(wrong(PIECES.hashes)))
            await stream.finish()

        world.origin.node.overlay.serve_exchange(FetchPieceList, wrong_list)
        await world.obtain()
        assert points(world.taker, world.origin.peer) == 50


async def test_a_piece_list_in_a_trickle_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder())

        async def trickle(stream: Any, asked: FetchPieceList) -> None:
            for byte in PIECES.hashes:
                await stream.send(ArtifactChunk(bytes([byte])))
                await trio.sleep(5)

        world.origin.node.overlay.serve_exchange(FetchPieceList, trickle)
        began = trio.current_time()
        await world.obtain()
        assert trio.current_time() - began < 60


async def test_a_refusal_of_a_piece_list_is_no_offence_whatever_it_says(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder())

        async def refuse(stream: Any, asked: FetchPieceList) -> None:
            raise Refused(ErrorCode.ARTIFACT_CORRUPT, "what lies here is damaged")

        world.origin.node.overlay.serve_exchange(FetchPieceList, refuse)
        await world.obtain()
        assert points(world.taker, world.origin.peer) == 0


# --- whom with


async def test_a_list_of_another_file_gets_nothing_of_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        for question in (FetchArtifact(DIGEST, "0" * 64, 0, 10), FetchPieceList(DIGEST, "0" * 64)):
            assert await refusal_of(world.taker, world.origin, question) is ErrorCode.ARTIFACT_UNKNOWN


async def test_bytes_beyond_the_end_are_refused(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        question = FetchArtifact(DIGEST, PIECES.digest, len(DATA) - 1, 2)
        assert await refusal_of(world.taker, world.origin, question) is ErrorCode.REQUEST_INVALID


async def test_more_requests_than_a_peer_may_have_open_are_refused(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(portion_s=100.0))
        question = FetchArtifact(DIGEST, PIECES.digest, 0, 10)
        streams = [
            await world.taker.node.overlay.open_exchange(world.origin.peer, question)
            for _ in range(MAX_GIVEN_TO_A_PEER)
        ]
        await trio.testing.wait_all_tasks_blocked()
        assert await refusal_of(world.taker, world.origin, question) is ErrorCode.OVERLOADED
        for stream in streams:
            await stream.reset()


async def refusal_of(asker: MeshNode, asked: MeshNode, question: Any) -> ErrorCode:
    stream = await asker.node.overlay.open_exchange(asked.peer, question)
    with pytest.raises(P2PMeshError) as raised:
        await stream.expect(ArtifactChunk, 10)
    await stream.reset()
    return raised.value.code


async def test_off_gives_nothing_but_what_a_run_needs_and_asks_nobody_else(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder(), artifact_transfer=ArtifactTransfer.OFF)
        with pytest.raises(P2PMeshError) as raised:
            await world.obtain()
        assert raised.value.code is ErrorCode.ARTIFACT_UNKNOWN
        world.origin.node.artifacts.grants.is_granted = lambda digest, peer: (
            (digest, peer) == (DIGEST, world.taker.peer)
        )
        counts = await world.obtain()
        assert set(counts.sources) == {world.origin.peer}
        assert world.others[0].node.status()["artifacts"]["given_bytes"] == 0
        assert await refusal_of(world.others[0], world.origin, FetchPieceList(DIGEST, PIECES.digest)) is (
            ErrorCode.ARTIFACT_UNKNOWN
        )


@pytest.mark.parametrize("mode", list(ArtifactTransfer))
async def test_a_run_gives_its_stages_to_its_placement_in_any_mode(
    mode: ArtifactTransfer, autojump_clock: MockClock
) -> None:
    async with open_mesh() as mesh:
        given = {"artifact_transfer": mode}
        driver = await mesh.found("driver", store=FakeModelStore(MODEL), settings=given)
        other = await mesh.join("other", driver, settings=given)
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        (fetched,) = other.told("stage_fetched")
        assert fetched["sources"] == [{"peer_id": driver.peer, "bytes": fetched["fetched_bytes"]}]


async def test_trusted_exchanges_with_nodes_of_listed_owners_alone(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        given = {
            "settings": {"artifact_transfer": ArtifactTransfer.TRUSTED},
            "trust": TrustStore(trusted_owners=MappingProxyType({owner_id_of_key(OWNER.public_key): "a friend"})),
        }
        origin = await mesh.found("origin", store=holder(), ownership=claim_for("origin"), **given)
        names = {"listed": claim_for("listed"), "other": b""}
        nodes = [
            await mesh.join(name, origin, store=holder(), ownership=claim, **given) for name, claim in names.items()
        ]
        taker = await mesh.join("taker", origin, ownership=claim_for("taker"), **given)
        provide(taker.node, nodes)
        for node in nodes:
            await taker.node.overlay.ensure_admitted(node.peer, node.network.addresses())
        counts = await Takers(mesh, origin, taker, nodes).obtain()
        assert set(counts.sources) == {origin.peer, nodes[0].peer}
        question = FetchPieceList(DIGEST, PIECES.digest)
        assert await refusal_of(nodes[1], origin, question) is ErrorCode.ARTIFACT_UNKNOWN


# --- cut on request


async def test_a_peer_that_has_the_model_cuts_what_another_lacks(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), FakeModelStore(MODEL))
        other = world.others[0]
        artifact = await other.store.cut(MODEL, LayerRange(2, 4))
        other.store.release(artifact.digest)
        data = other.store.files.pop(artifact.digest)
        other.node.artifacts.grants.find_model = {MODEL.digest: MODEL}.get
        other.node.overlay.board.change_own(on_disk=(HeldModel("fake", MODEL.digest),))
        await wait_announced(world.taker, other.peer)
        wanted = WantedFile(artifact.digest, len(data), pieces_of(data).digest)
        origin = FileOrigin(world.origin.peer, (), MODEL.digest, LayerRange(2, 4))

        async def progress(_: int) -> None:
            pass

        with trio.fail_after(PATIENCE_S):
            found, counts = await world.taker.node.artifacts.obtain(wanted, origin, progress)
        assert counts.sources == {other.peer: len(data)}
        assert world.taker.store.files[found.digest] == data


async def cutting(world: Takers, cutter: MeshNode) -> list[PeerId]:
    """A peer that is asked to cut the file and never comes to an end; who asked it."""
    asked: list[PeerId] = []

    async def cut(stream: Any, question: PrepareArtifact) -> None:
        asked.append(stream.remote_peer)
        await trio.sleep_forever()

    cutter.node.overlay.serve_exchange(PrepareArtifact, cut)
    cutter.node.overlay.board.change_own(on_disk=(HeldModel("fake", MODEL.digest),))
    await wait_announced(world.taker, cutter.peer)
    return asked


CUT_OF = {"model_digest": MODEL.digest, "layers": LayerRange(2, 4)}


async def test_no_lost_source_waits_for_a_peer_that_is_cutting(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), FakeModelStore())
        asked = await cutting(world, world.others[0])
        serve, calls = world.origin.node.artifacts._serve, [0]

        async def lost_at_first(stream: Any, question: FetchArtifact) -> None:
            calls[0] += 1
            await (serve(stream, question) if calls[0] > 1 else stream.finish())

        await serve_like(world.origin, lost_at_first)
        began = trio.current_time()
        assert (await world.obtain(**CUT_OF)).fetched_bytes == len(DATA)
        assert trio.current_time() - began < 30
        assert asked == [world.taker.peer]  # and not once more by the search that followed


async def test_a_piece_list_does_not_wait_for_a_peer_that_is_cutting(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder(), holder(), FakeModelStore())
        await cutting(world, world.others[1])
        await refuse_list(world.origin)
        began = trio.current_time()
        assert (await world.obtain(**CUT_OF)).fetched_bytes == len(DATA)
        assert trio.current_time() - began < 30


async def refuse_list(node: MeshNode) -> None:
    async def refuse(stream: Any, question: FetchPieceList) -> None:
        await stream.finish()

    node.node.overlay.serve_exchange(FetchPieceList, refuse)


async def wait_announced(node: MeshNode, peer: PeerId) -> None:
    board = node.node.overlay.board
    with trio.fail_after(PATIENCE_S):
        while not (said := board.find(peer)) or not said.on_disk:
            await board.changes.wait_beyond(board.changes.count)


@pytest.mark.parametrize(
    "question",
    [
        PrepareArtifact("0" * 64, "0" * 64, 0, 1),
        PrepareArtifact("0" * 64, MODEL.digest, 0, 1),
        PrepareArtifact("0" * 64, MODEL.digest, 0, 1000),
    ],
)
async def test_a_stage_that_cannot_be_cut_is_refused(question: PrepareArtifact, autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, FakeModelStore(MODEL))
        world.origin.node.artifacts.grants.find_model = {MODEL.digest: MODEL}.get
        assert await refusal_of(world.taker, world.origin, question) is ErrorCode.ARTIFACT_UNKNOWN
        assert world.origin.store.holds.total() == 0


async def test_few_cuts_are_made_for_others(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, FakeModelStore(MODEL))
        world.origin.node.artifacts.grants.find_model = {MODEL.digest: MODEL}.get
        question = PrepareArtifact("0" * 64, MODEL.digest, 0, 1)
        codes = [await refusal_of(world.taker, world.origin, question) for _ in range(10)]
        assert codes == [ErrorCode.ARTIFACT_UNKNOWN] * 8 + [ErrorCode.OVERLOADED] * 2
        await trio.sleep(61)
        assert await refusal_of(world.taker, world.origin, question) is ErrorCode.ARTIFACT_UNKNOWN


async def test_a_caller_that_is_cancelled_at_any_moment_holds_nothing(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        for tenth in range(1, 12):
            with trio.move_on_after(tenth / 10) as scope:
                await world.obtain()
            await trio.testing.wait_all_tasks_blocked()
            assert world.taker.store.holds.total() == 0
        assert not scope.cancelled_caught
        assert world.taker.node.status()["artifacts"]["under_way"] == []


async def test_a_full_disk_is_said_so(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        world = await takers(mesh, holder())
        world.taker.store.full_after = 3
        with pytest.raises(P2PMeshError) as raised:
            await world.obtain()
        assert raised.value.code is ErrorCode.DISK_FULL
        assert points(world.taker, world.origin.peer) == 0
        world.taker.store.full_after = None
        assert (await world.obtain()).resumed_bytes == 3 * PIECES.piece_bytes


@pytest.mark.parametrize("is_driver", [True, False])
async def test_a_peer_that_reads_a_large_model_for_minutes_is_not_taken_for_dead(
    is_driver: bool, autojump_clock: MockClock
) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=FakeModelStore(MODEL))
        joiner = await mesh.join("joiner", driver, store=FakeModelStore(MODEL))
        slow = driver.store if is_driver else joiner.store
        cut = slow.cut

        async def cut_slowly(model: ModelFile, layers: LayerRange) -> StageArtifact:
            await trio.sleep(150)
            return await cut(model, layers)

        slow.cut = cut_slowly
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert joiner.told("stage_failed") == []
        assert sum(joiner.store.holds.values()) == 1


# --- fragments


def package_store(*models: ModelFile) -> FakeModelStore:
    """Of a node that has the model as a package, or assembles stages of it, which are as long as their fragments."""
    store = FakeModelStore(*models)
    store.is_packaged = bool(models)
    store.stage_repeats = 40_000
    return store


async def packaged(mesh: Mesh, joiners: int, mode: ArtifactTransfer = ArtifactTransfer.OPEN) -> list[MeshNode]:
    """A driver whose model is a layer package, served in two stages, and joiners."""
    settings = {"artifact_transfer": mode}
    driver = await mesh.found("driver", store=package_store(MODEL), settings=settings)
    others = [await mesh.join(f"joiner-{n}", driver, store=package_store(), settings=settings) for n in range(joiners)]
    mesh.serve(driver, MODEL, stage_count=2)
    await driver.wait_told("pipeline_ready")
    return [driver, *others]


def layer_file(layer: int) -> Digest:
    return Digest(hashlib.sha256(f"layer {layer} ".encode() * 50_000).hexdigest())


@pytest.mark.parametrize("mode", list(ArtifactTransfer))
async def test_a_stage_of_a_package_is_assembled_from_just_its_fragments(
    mode: ArtifactTransfer, autojump_clock: MockClock
) -> None:
    async with open_mesh() as mesh:
        driver, joiner = await packaged(mesh, 1, mode)
        (ready,) = driver.told("pipeline_ready")
        start, end = next(stage["layers"] for stage in ready["stages"] if stage["peer_id"] == joiner.peer)
        (fetched,) = joiner.told("stage_fetched")
        layers = [layer for layer in range(6) if layer_file(layer) in joiner.store.files]
        assert layers == list(range(start, end))
        assert fetched["fetched_bytes"] == len(b"manifest") + sum(len(f"layer {n} ") * 50_000 for n in layers)
        held = [digest for digest, count in joiner.store.holds.items() if count]
        assert held == [joiner.engine.spec.artifact_digest]


async def test_fragments_that_are_here_are_not_fetched_again(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver, joiner = await packaged(mesh, 1)
        joiner.store.files = {d: f for d, f in joiner.store.files.items() if d != joiner.engine.spec.artifact_digest}
        joiner.engine.kill()
        await driver.wait_told("pipeline_ready", times=2)
        first, second = joiner.told("stage_fetched")
        assert (second["fetched_bytes"], second["resumed_bytes"]) == (0, first["fetched_bytes"])


async def test_fragments_come_from_others_too_and_from_different_ones_at_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=package_store(MODEL))
        joiner = await mesh.join("joiner", driver, store=package_store())
        other = await mesh.join("other", driver, memory_bytes=0)
        other.store.is_packaged = True
        await other.store.fragments_of(MODEL, LayerRange(0, 6))
        for node in (driver, other):
            node.store.portion_s = 0.1
        manifest = Digest(hashlib.sha256(b"manifest").hexdigest())
        provide(joiner.node, [other], manifest)
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        (fetched,) = joiner.told("stage_fetched")
        assert {source["peer_id"] for source in fetched["sources"]} == {driver.peer, other.peer}


async def test_fragments_that_make_nothing_are_no_end(autojump_clock: MockClock) -> None:
    """The stage's own file is fetched instead."""
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=package_store(MODEL))
        joiner = await mesh.join("joiner", driver, store=package_store())
        joiner.store.assembling = ConfigError(ErrorCode.PACKAGE_INVALID, "no package")
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert joiner.engine.spec.artifact_digest in joiner.store.files
        assert joiner.store.holds.total() == 1


async def test_a_fragment_whose_list_cannot_be_had_is_no_end(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=package_store(MODEL))
        joiner = await mesh.join("joiner", driver, store=package_store())
        serve = driver.node.artifacts._serve_piece_list

        async def break_off(stream: Any, asked: FetchPieceList) -> None:
            await (stream.finish() if asked.digest in map(layer_file, range(6)) else serve(stream, asked))

        driver.node.overlay.serve_exchange(FetchPieceList, break_off)
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert joiner.told("stage_failed") == []
        assert joiner.engine.spec.artifact_digest in joiner.store.files


async def test_fragments_that_are_much_more_than_the_stage_are_not_fetched(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        driver = await mesh.found("driver", store=package_store(MODEL))
        joiner = await mesh.join("joiner", driver, store=package_store())
        for node in (driver, joiner):
            node.store.stage_repeats = 10_000
        mesh.serve(driver, MODEL, stage_count=2)
        await driver.wait_told("pipeline_ready")
        assert list(joiner.store.files) == [joiner.engine.spec.artifact_digest]
