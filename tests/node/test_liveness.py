"""Whole nodes over the fake network: who dies, leaves, lies, restarts or is reached by some only."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError, RemoteProtocolError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.limits import CONTROL_PROTOCOL
from p2pmesh.core import connections
from p2pmesh.core.connections import ConnectionPolicy
from p2pmesh.core.shards import shard_bits_of
from p2pmesh.node import liveness
from p2pmesh.node.channels import MessageStream
from p2pmesh.node.liveness import MAX_NOTES_PER_SPEAKER, MAX_RELAYS
from p2pmesh.wire.announcement import ServedModel
from p2pmesh.wire.liveness import (
    DownReport,
    Leaving,
    Note,
    decode_note,
    decode_proof,
    encode_note,
    model_topic_of,
    topic_beside,
    topic_of,
)
from p2pmesh.wire.messages.liveness import Farewell, Probe, ProbeAnswer, ProbeReport, ProbeRequest
from tests.fakes.identity import FakeVerifier, fake_identity
from tests.fakes.mesh import PATIENCE_S, Mesh, MeshNode, MockedClock, open_mesh

MODEL = ServedModel("phantom", "ab" * 32, bytes(16), 1, 4096)
NONCE = bytes(range(16))
CHECKS = (FakeVerifier().is_signature_of, FakeVerifier().peer_id_of)
CONNECTED_BOUND_S = 11.0
"""The protocol's 10 s, and what a fake network's turns take."""
KILLED_BOUND_S = 20.0


async def crowd(mesh: Mesh, *names: str) -> tuple[MeshNode, ...]:
    """A founder and members, who all know each other; each is connected to the founder at least."""
    founder = await mesh.found()
    members = [await mesh.join(name, founder) for name in names]
    nodes = (founder, *members)
    for node in nodes:
        board = node.node.overlay.board
        with trio.fail_after(PATIENCE_S):
            while len(board.others()) < len(names):
                await board.changes.wait_beyond(board.changes.count)
    return nodes


async def told_of(node: MeshNode, name: str, peer: PeerId, within_s: float = PATIENCE_S) -> dict[str, Any]:
    """The first event of a name about a peer."""
    with trio.fail_after(within_s):
        while True:
            seen = node.changes.count
            for fields in node.told(name):
                if fields["peer_id"] == peer:
                    return fields
            await node.changes.wait_beyond(seen)


def names_told(node: MeshNode, peer: PeerId) -> list[str]:
    """Names of the events about a peer's health, in order."""
    health = ("peer_suspected", "peer_recovered", "peer_failed", "peer_left")
    return [name for name, fields in node.reports if name in health and fields["peer_id"] == peer]


def health_at(node: MeshNode, peer: PeerId) -> dict[str, Any]:
    """What the status says of a peer that counts."""
    return next(dict(shown) for shown in node.node.status()["peers"] if shown["peer_id"] == peer)


def note_of(name: str, note: Note) -> bytes:
    identity = fake_identity(name)
    return encode_note(note, identity.public_key, identity.sign)


def report(mesh_id: str, reporter: str, victim: MeshNode, ago_ms: int = 0) -> bytes:
    """A report of a test's member about another."""
    own = victim.node.overlay.board.own()
    issued = MockedClock().unix_ms() - ago_ms
    return note_of(reporter, DownReport(mesh_id, fake_identity(reporter).peer_id, own.peer_id, own.incarnation, issued))


# --- the dead ---------------------------------------------------------------------
async def test_a_killed_peer_is_dropped_by_all_within_the_bound_with_its_models(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        *others, victim = await crowd(mesh, *"abcdef", "victim")
        victim.node.overlay.board.change_own(models=(MODEL,))
        for node in others:
            await node.wait_routable("phantom")
        assert not all(node.node.overlay.is_admitted(victim.peer) for node in others)
        await mesh.kill(victim)
        killed_at = trio.current_time()
        for node in others:
            fields = await told_of(node, "peer_failed", victim.peer)
            assert fields["name"] == "victim"
            assert node.node.routable_models() == {}
        assert CONNECTED_BOUND_S - 2 <= trio.current_time() - killed_at <= KILLED_BOUND_S
        (gone,) = others[1].node.status()["gone_peers"]
        assert (gone["peer_id"], gone["health"]) == (victim.peer, "failed")
        await trio.sleep(600)
        for node in others:
            assert names_told(node, victim.peer) == ["peer_suspected", "peer_failed"]
            assert node.node.status()["gone_peers"] == []
            assert len(node.node.status()["peers"]) == len(others) - 1


async def test_nobody_is_doubted_while_nothing_happens(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        nodes = await crowd(mesh, "a", "b", "c")
        await trio.sleep(1800)
        for node in nodes:
            assert not [name for name, _ in node.reports if name not in ("peer_joined", "usage")]
            assert {peer["health"] for peer in node.node.status()["peers"]} == {"alive"}
            assert all(peer["is_direct"] and peer["last_heard_s"] <= 60 for peer in node.node.status()["peers"])


async def test_a_peer_that_leaves_is_dropped_at_once_and_stays_away(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        *others, leaver = await crowd(mesh, "a", "b", "leaver")
        leaver.node.overlay.board.change_own(models=(MODEL,))
        for node in others:
            await node.wait_routable("phantom")
        with trio.fail_after(2):
            await leaver.node.drain(1)
            for node in others:
                await told_of(node, "peer_left", leaver.peer)
                assert node.node.routable_models() == {}
        await trio.sleep(60)  # it is still connected, and silent
        await mesh.kill(leaver)
        await trio.sleep(60)
        for node in others:
            assert names_told(node, leaver.peer) == ["peer_left"]
            assert node.node.status()["gone_peers"][0]["health"] == "left"


async def test_leaving_is_said_twice_for_those_whom_gossip_misses_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, leaver = await crowd(mesh, "leaver")
        heard: list[bytes] = []

        def listen(data: bytes) -> bool:
            heard.append(data)
            return True

        await founder.network.subscribe(topic_of(founder.node.overlay.mesh_id), listen)
        await leaver.node.drain(1)
        said = [decode_note(data, founder.node.overlay.mesh_id, *CHECKS) for data in heard]
        assert [(type(note), note.peer_id) for note in said] == [(Leaving, leaver.peer)] * 2


async def test_a_restart_within_moments_is_no_failure(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, other, restarted = await crowd(mesh, "other", "restarted")
        invite = founder.node.overlay.make_invite()
        await mesh.kill(restarted)
        await trio.sleep(4)
        again = await mesh.start("restarted", invite)
        await again.node.overlay.join()
        again.node.overlay.board.change_own(models=(MODEL,))
        with trio.fail_after(2):  # two heartbeats of gossip
            await founder.wait_routable("phantom")
            await other.wait_routable("phantom")
        await trio.sleep(120)
        for node in (founder, other):
            assert "peer_failed" not in names_told(node, restarted.peer)
            assert health_at(node, restarted.peer)["health"] == "alive"


async def test_a_peer_that_reconnects_within_moments_stays_routable_all_the_while(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, member = await crowd(mesh, "member")
        member.node.overlay.board.change_own(models=(MODEL,))
        await founder.wait_routable("phantom")
        mesh.overlay.disconnect(founder.peer, member.peer)
        await told_of(founder, "peer_suspected", member.peer)
        assert "phantom" in founder.node.routable_models()
        await told_of(founder, "peer_recovered", member.peer, within_s=5)
        await trio.sleep(60)
        assert names_told(founder, member.peer) == ["peer_suspected", "peer_recovered"]
        assert founder.told("not_routable") == []


async def test_a_peer_that_was_cut_off_for_long_is_believed_again_once_it_answers(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        *others, lonely = await crowd(mesh, "a", "lonely")
        for node in others:
            mesh.overlay.cut(node.peer, lonely.peer)
        for node in others:
            await told_of(node, "peer_failed", lonely.peer)
            await told_of(lonely, "peer_failed", node.peer)
        for node in others:
            mesh.overlay.mend(node.peer, lonely.peer)
        await lonely.node.overlay.ensure_admitted(others[0].peer, others[0].network.addresses())
        for node in others:
            board = node.node.overlay.board
            with trio.fail_after(60):
                while board.find(lonely.peer) is None:
                    await board.changes.wait_beyond(board.changes.count)


def delay_answers(node: MeshNode, seconds: float) -> None:
    """Its answers to probes take so long from now on."""
    answer = node.node.control_plane.liveness._answer_probe

    async def slowly(stream: MessageStream, asked: Probe) -> None:
        await trio.sleep(seconds)
        await answer(stream, asked)

    node.node.overlay.serve_exchange(Probe, slowly)


@pytest.mark.parametrize("seconds", [2, 5])
async def test_a_peer_that_is_slow_is_not_even_doubted(autojump_clock: MockClock, seconds: float) -> None:
    async with open_mesh() as mesh:
        *others, slow = await crowd(mesh, "a", "b", "slow")
        delay_answers(slow, seconds)
        await trio.sleep(600)
        for node in others:
            assert names_told(node, slow.peer) == []
            assert (health_at(node, slow.peer)["rtt_us"] or 0) >= seconds * 1_000_000


async def test_a_peer_that_answers_nothing_is_given_up_though_its_connections_stand(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        *others, stuck = await crowd(mesh, "a", "b", "stuck")
        await trio.sleep(60)
        delay_answers(stuck, 10_000)
        stuck.node.overlay.board.stop_announcing()
        stuck_at = trio.current_time()
        for node in others:
            await told_of(node, "peer_failed", stuck.peer)
        # the longest time between two probes of one of three, two rounds of questions, two suspicions
        assert trio.current_time() - stuck_at <= (2 * 3 - 1) * 10 + 2 * (8 + 10)
        assert [name for name, _ in others[0].reports if name == "reporter_muted"] == []


async def test_peers_that_cut_each_other_off_do_not_spend_their_time_on_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the other's hello and refuses its welcome: every probe connects, admits, and is cut off."""
    async with open_mesh() as mesh:
        founder, a = await crowd(mesh, "a")
        hellos = {founder.peer: 0, a.peer: 0}

        def fall_out(node: MeshNode, other: MeshNode) -> None:
            def refuse(*_: Any) -> Any:
                hellos[node.peer] += 1
                mesh.overlay.disconnect(node.peer, other.peer)
                raise RemoteProtocolError(ErrorCode.OWNERSHIP_REFUSED, "not by these rules")

            monkeypatch.setattr(node.node.overlay.credentials, "check_welcome", refuse)
            monkeypatch.setattr(node.node.overlay, "stay_joined", trio.sleep_forever)

        fall_out(founder, a)
        fall_out(a, founder)
        mesh.overlay.disconnect(founder.peer, a.peer)
        await trio.sleep(60)
        assert 0 < sum(hellos.values()) <= 12


# --- who is reached by some only ---------------------------------------------------
async def test_a_peer_that_only_a_helper_reaches_counts_and_the_asymmetry_is_told_once(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        hub, a, b = await crowd(mesh, "a", "b")
        await trio.sleep(60)  # probes have connected everybody
        mesh.overlay.cut(a.peer, b.peer)
        told = await told_of(a, "visibility_asymmetric", b.peer)
        assert told == {"peer_id": b.peer, "unreached_by": a.peer, "witness": hub.peer}
        shown = health_at(a, b.peer)
        assert (shown["health"], shown["is_direct"], shown["reached_by"]) == ("alive", False, hub.peer)
        assert a.node.status()["asymmetries"] == [{"peer_id": b.peer, "unreached_by": a.peer}]
        await trio.sleep(1800)
        assert len(a.told("visibility_asymmetric")) == 1
        assert "peer_failed" not in names_told(a, b.peer)
        assert health_at(hub, b.peer)["health"] == "alive"
        await trio.sleep(1900)
        assert len(a.told("visibility_asymmetric")) == 2
        mesh.overlay.mend(a.peer, b.peer)
        await trio.sleep(120)
        assert health_at(a, b.peer)["is_direct"]
        assert [node.node.status()["asymmetries"] for node in (a, b)] == [[], []]


# --- liars ------------------------------------------------------------------------
async def test_a_member_that_reports_healthy_peers_is_muted_and_nobody_drops_them(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b, liar = await crowd(mesh, "a", "b", "liar")
        topic = topic_of(founder.node.overlay.mesh_id)
        for victim in (a, b, founder):
            await liar.network.publish(topic, report(founder.node.overlay.mesh_id, "liar", victim))
        for node in (founder, a, b):
            with trio.fail_after(5):
                assert await node.wait_told("reporter_muted") == {"peer_id": liar.peer, "name": "liar"}
        for _ in range(50):
            await liar.network.publish(topic, report(founder.node.overlay.mesh_id, "liar", a))
            await trio.sleep(1)
        for node in (founder, a, b):
            assert len(node.told("reporter_muted")) == 1
            assert [name for name, _ in node.reports if name in ("peer_suspected", "peer_failed", "peer_left")] == []


async def test_a_peer_that_is_reported_speaks_up(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, liar = await crowd(mesh, "a", "liar")
        board = founder.node.overlay.board
        before = board.find(a.peer)
        assert before is not None
        await liar.network.publish(topic_of(founder.node.overlay.mesh_id), report(before.mesh_id, "liar", a))
        with trio.fail_after(3):
            while (now := board.find(a.peer)) is None or now.sequence <= before.sequence:
                await board.handled.wait_beyond(board.handled.count)


async def test_a_true_report_of_the_life_before_mutes_nobody(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, honest, restarted = await crowd(mesh, "honest", "restarted")
        said = report(founder.node.overlay.mesh_id, "honest", restarted)
        await mesh.kill(restarted)
        await trio.sleep(0.1)  # an incarnation is the time of a start
        again = await mesh.start("restarted", founder.node.overlay.make_invite())
        await again.node.overlay.join()
        await honest.network.publish(topic_of(founder.node.overlay.mesh_id), said)
        await trio.sleep(30)
        assert [node.told("reporter_muted") for node in (founder, again)] == [[], []]
        assert again.told("visibility_asymmetric") == []
        now = report(founder.node.overlay.mesh_id, "honest", again)
        await honest.network.publish(topic_of(founder.node.overlay.mesh_id), now)
        assert await again.wait_told("reporter_muted") == {"peer_id": honest.peer, "name": "honest"}
        assert again.told("visibility_asymmetric") == []
        assert again.node.status()["asymmetries"] == []


async def test_a_report_counts_once_however_often_it_is_said(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, honest = await crowd(mesh, "a", "honest")
        said = report(founder.node.overlay.mesh_id, "honest", a)
        note = founder.node.control_plane.liveness._decode(said)
        founder.node.control_plane.liveness._seen[honest.peer, a.peer, note.issued_unix_ms] = None
        await honest.network.publish(topic_of(founder.node.overlay.mesh_id), said)
        await trio.sleep(30)
        assert founder.told("reporter_muted") == []


async def test_notes_that_are_old_foreign_forged_or_too_many_are_not_passed_on(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await crowd(mesh, "a", "b")
        mesh_id = founder.node.overlay.mesh_id
        is_passed = founder.node.control_plane.liveness._is_worth_passing
        now = MockedClock().unix_ms()
        assert is_passed(report(mesh_id, "b", a))
        assert not is_passed(b"")
        assert not is_passed(report(mesh_id, "b", a, ago_ms=90_001))
        assert not is_passed(report(mesh_id, "b", a, ago_ms=-30_001))
        assert not is_passed(report("0" * 32, "b", a))
        assert not is_passed(note_of("b", DownReport(mesh_id, a.peer, b.peer, 1, now)))
        assert not is_passed(note_of("b", Leaving(mesh_id, a.peer, 1, 1, now)))
        passed = [is_passed(report(mesh_id, "b", a, ago_ms=n)) for n in range(2 * MAX_NOTES_PER_SPEAKER)]
        assert passed.count(True) == MAX_NOTES_PER_SPEAKER - 1
        assert is_passed(report(mesh_id, "a", b))
        await trio.sleep(61)
        assert is_passed(report(mesh_id, "b", a))


async def test_nobody_says_farewell_for_another(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await crowd(mesh, "a", "b")
        own = b.node.overlay.board.own()
        leaving = note_of("b", Leaving(own.mesh_id, own.peer_id, own.incarnation, 99, MockedClock().unix_ms()))
        stream = await a.node.overlay.open_exchange(founder.peer, Farewell(leaving))
        with pytest.raises(P2PMeshError) as raised:
            await stream.expect(ProbeAnswer, 5)
        assert raised.value.code is ErrorCode.SIGNATURE_INVALID
        assert names_told(founder, b.peer) == []


# --- helping ----------------------------------------------------------------------
async def ask_helper(asker: MeshNode, helper: MeshNode, peer: PeerId) -> bytes:
    """The proof that a helper brings; empty for none."""
    stream = await asker.node.overlay.open_exchange(helper.peer, ProbeRequest(NONCE, peer))
    said: ProbeReport = await stream.expect(ProbeReport, 10)
    return said.proof


async def test_a_helper_brings_a_proof_that_it_could_not_make_up(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await crowd(mesh, "a", "b")
        proof = await ask_helper(a, founder, b.peer)
        verifier = FakeVerifier()
        read = decode_proof(proof, b.peer, NONCE, verifier.is_signature_of, verifier.peer_id_of)
        assert read.incarnation == b.node.overlay.board.own().incarnation


async def test_a_helper_asks_only_for_peers_in_its_view(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a = await crowd(mesh, "a")
        stranger = fake_identity("stranger").peer_id
        for peer in (stranger, a.peer, founder.peer):
            assert await ask_helper(a, founder, peer) == b""


async def test_a_helper_helps_few_at_once(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a, b = await crowd(mesh, "a", "b")
        founder.node.control_plane.liveness._relays = MAX_RELAYS
        with pytest.raises(P2PMeshError) as raised:
            await ask_helper(a, founder, b.peer)
        assert raised.value.code is ErrorCode.OVERLOADED
        founder.node.control_plane.liveness._relays = 0
        assert await ask_helper(a, founder, b.peer) != b""
        assert founder.node.control_plane.liveness._relays == 0


async def test_an_answer_brings_news_to_who_knows_less(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a = await crowd(mesh, "a")
        own = founder.node.overlay.board.own()
        for known, is_news in ((own.sequence - 1, True), (2**53, False)):
            raw = await a.network.open_stream(founder.peer, CONTROL_PROTOCOL, 10)
            stream = MessageStream(raw)
            await stream.send(Probe(NONCE, own.incarnation, known))
            answer: ProbeAnswer = await stream.expect(ProbeAnswer, 10)
            assert bool(answer.announcement) is is_news


async def test_a_node_of_a_large_overlay_with_enough_connections_only_knocks(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "is_large", lambda live, has_shards: True)
    monkeypatch.setattr(connections, "choose_idle", lambda standing: ())
    monkeypatch.setattr(liveness, "CONNECTION_POLICY", ConnectionPolicy(opened_below=1))
    async with open_mesh() as mesh:
        nodes = await crowd(mesh, "a", "b", "c")
        await trio.sleep(300)
        for node in nodes[1:]:
            assert node.network.connected_peers() == {nodes[0].peer}
            assert {peer["health"] for peer in node.node.status()["peers"]} == {"alive"}
            assert {peer["last_heard_s"] < 60 for peer in node.node.status()["peers"]} == {True}
        assert {name for node in nodes for name, _ in node.reports} == {"peer_joined"}


async def test_notes_are_heard_beside_every_topic_of_announcements(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder, a = await crowd(mesh, "a")
        topics, mesh_id = founder.node.overlay.board.topics, founder.node.overlay.mesh_id

        def heard() -> set[str]:
            return {topic for topic, held in founder.network.subscriptions.items() if held and "/liveness" in topic}

        assert {topic_beside(topic) for topic in topics.heard} == heard()
        before = heard()
        for number in range(256):
            topics.note_peer(fake_identity(f"crowd {number}").peer_id, 1)
        topics.hear_model(MODEL.digest)
        await trio.sleep(1)
        assert topics.depth > 0
        assert {topic_beside(topic) for topic in topics.heard} == heard() != before
        assert model_topic_of(mesh_id, MODEL.digest) in heard()
        own = founder.node.overlay.board.own()
        said = replace(own, shard_depth=2, models=(MODEL,))
        bits = shard_bits_of(founder.peer, 2)
        assert founder.node.control_plane.liveness._topics_about(said) == (
            topic_of(mesh_id, bits),
            topic_of(mesh_id, bits[:1]),
            model_topic_of(mesh_id, MODEL.digest),
        )
        assert a.node.control_plane.liveness._topics_about(replace(said, shard_depth=0))[0] == topic_of(mesh_id)
