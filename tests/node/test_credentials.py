"""Invites, passes and revocations between whole nodes: who comes in, comes back, and is put out."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.base.errors import ErrorCode, P2PMeshError, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.core.invite_ledger import InviteLedger
from p2pmesh.core.ownership import TrustPolicy, TrustStore
from p2pmesh.core.standing import Founding
from p2pmesh.node.route_queries import query_routes
from p2pmesh.wire.invite import decode_invite
from p2pmesh.wire.ownership import LIFE_MS as CLAIM_LIFE_MS
from p2pmesh.wire.ownership import VERSION, OwnershipClaim, encode_claim
from p2pmesh.wire.requirements import MeshRequirements
from tests.fakes.credentials import FakeCredentialStore
from tests.fakes.identity import FakeVerifier, fake_identity
from tests.fakes.mesh import UNIX_MS_AT_START, Mesh, MeshNode, open_mesh

DAY_S = 24 * 3600.0
OWNER = fake_identity("owner")
PATIENCE_S = 120.0


def signed(name: str) -> bytes:
    """The owner's claim on a node."""
    peer = fake_identity(name).peer_id
    claim = OwnershipClaim(VERSION, bytes(16), peer, name, UNIX_MS_AT_START, UNIX_MS_AT_START + CLAIM_LIFE_MS)
    return encode_claim(claim, OWNER.public_key, OWNER.sign)


async def create(founder: MeshNode, max_uses: int = 0, life_s: float = DAY_S) -> str:
    return await founder.node.overlay.credentials.founders_desk().create(int(life_s * 1000), max_uses)


def invite_id(line: str) -> str:
    return decode_invite(line, FakeVerifier().is_signature_of).invite_id.hex()


async def refused_joining(node: MeshNode) -> P2PMeshError:
    with pytest.raises(P2PMeshError) as raised:
        await node.node.overlay.join()
    return raised.value


async def started_again(mesh: Mesh, node: MeshNode, name: str, invite: str | None, **given: Any) -> MeshNode:
    """The node killed, and another run of the same home."""
    kept = node.credentials.memberships[-1]
    await mesh.kill(node)
    return await mesh.start(name, invite, membership=kept, credentials=node.credentials, **given)


async def wait_gone(node: MeshNode, other: MeshNode) -> None:
    """Until ``node`` has told that it put ``other`` out, and has closed the connection."""
    with trio.fail_after(PATIENCE_S):
        while other.peer not in [told["peer_id"] for told in node.told("peer_refused")]:
            await node.changes.wait_beyond(node.changes.count)
    await trio.sleep(1)
    assert not node.node.overlay.is_admitted(other.peer)


# --- passes --------------------------------------------------------------------
async def test_a_member_comes_back_by_its_pass_when_its_invite_has_expired(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder)
        member = await mesh.start("member", invite)
        await member.node.overlay.join()
        mesh.pass_days(10)
        again = await started_again(mesh, member, "member", invite)
        await again.node.overlay.join()
        assert founder.node.overlay.is_admitted(again.peer)
        third = await started_again(mesh, again, "member", None)
        await third.node.overlay.join()
        assert founder.node.overlay.is_admitted(third.peer)


async def test_a_pass_is_worth_nothing_to_another_node(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        stolen = member.credentials.memberships[-1]
        thief = await mesh.start("thief", None, membership=stolen)
        error = await refused_joining(thief)
        assert error.message.startswith("direct_proof_sender_id_mismatch: ")
        assert not founder.node.overlay.is_admitted(thief.peer)


async def test_members_let_each_other_in_while_the_founder_is_away(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder)
        first = await mesh.start("first", invite)
        await first.node.overlay.join()
        await mesh.kill(founder)
        second = await mesh.start("second", invite)
        await second.node.overlay.ensure_admitted(first.peer, first.network.addresses())
        assert len(second.node.overlay.credentials.passes) == 2
        mesh.pass_days(2)
        again = await started_again(mesh, second, "second", invite)
        await again.node.overlay.ensure_admitted(first.peer, first.network.addresses())
        assert first.node.overlay.is_admitted(again.peer)


async def test_the_founder_shortens_a_chain(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        first = await mesh.join("first", founder)
        second = await mesh.start("second", await create(founder))
        await second.node.overlay.ensure_admitted(first.peer, first.network.addresses())
        assert len(second.node.overlay.credentials.passes) == 2
        await second.node.overlay.ensure_admitted(founder.peer, founder.network.addresses())
        assert len(second.node.overlay.credentials.passes) == 1
        assert second.credentials.memberships[-1].passes == second.node.overlay.credentials.passes


async def test_a_member_that_stays_renews_its_pass_in_the_second_half_of_its_life(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        first = member.node.overlay.credentials.passes
        mesh.pass_days(14)
        await trio.sleep(3700)
        assert member.node.overlay.credentials.passes == first
        mesh.pass_days(2)
        await trio.sleep(3700)
        assert member.node.overlay.credentials.passes != first
        mesh.pass_days(25)
        again = await started_again(mesh, member, "member", None)
        await again.node.overlay.join()
        assert founder.node.overlay.is_admitted(again.peer)


async def test_an_old_pass_is_not_enough(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        kept = member.credentials.memberships[-1]
        await mesh.kill(member)
        mesh.pass_days(31)
        again = await mesh.start("member", None, membership=kept)
        assert (await refused_joining(again)).code is ErrorCode.PASS_EXPIRED


async def test_a_founder_whose_clock_runs_ahead_takes_the_invite_that_a_refused_pass_gives_way_to(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        kept = member.credentials.memberships[-1]
        await mesh.kill(member)
        await mesh.kill(founder)
        late = await mesh.start("founder", None, wall_offset_ms=31 * 24 * 3600 * 1000)
        fresh = await create(late)
        again = await mesh.start("member", fresh, membership=kept)
        await again.node.overlay.join()
        assert late.node.overlay.is_admitted(again.peer)
        assert [told["code"] for told in late.told("peer_refused")] == ["pass_expired"]


async def test_an_invite_is_never_shown_back_nor_kept(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        line = member.node.overlay.make_invite()
        assert line not in repr(member.credentials.memberships)
        assert line not in repr(founder.credentials.ledgers)
        assert line not in repr(member.reports) + repr(founder.reports)


async def test_a_home_that_cannot_be_written_costs_the_next_rejoining_only(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        store = FakeCredentialStore()
        store.is_full = True
        member = await mesh.join("member", founder, credentials=store)
        assert founder.node.overlay.is_admitted(member.peer)
        assert member.told("error")[0]["code"] == "home_unusable"


async def test_a_peer_that_only_says_it_is_a_member_gets_nothing_of_a_joiner(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder)
        await mesh.kill(founder)
        impostor = await mesh.start("impostor", invite)  # in the mesh by an invite alone: nobody let it in
        joiner = await mesh.start("joiner", invite)
        with pytest.raises(Refused) as raised:
            await joiner.node.overlay.ensure_admitted(impostor.peer, impostor.network.addresses())
        assert raised.value.code is ErrorCode.INVITE_MISSING
        assert impostor.peer in raised.value.message
        assert not joiner.node.overlay.is_admitted(impostor.peer)


# --- counted invites -------------------------------------------------------------
async def test_an_invite_for_one_lets_one_in(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder, max_uses=1)
        first = await mesh.start("first", invite)
        await first.node.overlay.join()
        second = await mesh.start("second", invite)
        error = await refused_joining(second)
        assert error.code is ErrorCode.INVITE_EXHAUSTED
        assert error.message.startswith("bootstrap_token_exhausted: ")
        with pytest.raises(Refused):
            first.node.overlay.make_invite()


async def test_a_use_is_on_disk_before_the_welcome_and_none_is_given_without(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder, max_uses=1)
        first = await mesh.start("first", invite)
        founder.credentials.is_full = True
        await refused_joining(first)
        assert not founder.node.overlay.is_admitted(first.peer)
        founder.credentials.is_full = False
        await first.node.overlay.join()
        entry = founder.credentials.ledgers[-1].find(invite_id(invite))
        assert entry is not None
        assert entry.peers == (first.peer,)


async def test_a_founder_that_was_killed_does_not_count_from_anew(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder, max_uses=1)
        first = await mesh.start("first", invite)
        await first.node.overlay.join()
        ledger = founder.credentials.ledgers[-1]
        await mesh.kill(founder)
        requirements = MeshRequirements(fake_identity("founder").public_key)
        again = await mesh.start("founder", None, founding=Founding(requirements, ledger))
        second = await mesh.start("second", invite)
        with pytest.raises(P2PMeshError) as raised:
            await second.node.overlay.ensure_admitted(again.peer, again.network.addresses())
        assert raised.value.code is ErrorCode.INVITE_EXHAUSTED
        forgetful = await started_without_ledger(mesh, again, requirements)
        with pytest.raises(P2PMeshError) as raised:
            await second.node.overlay.ensure_admitted(forgetful.peer, forgetful.network.addresses())
        assert raised.value.message.startswith("bootstrap_token_invalid: the founder has no record")


async def started_without_ledger(mesh: Mesh, founder: MeshNode, requirements: MeshRequirements) -> MeshNode:
    await mesh.kill(founder)
    return await mesh.start("founder", None, founding=Founding(requirements, InviteLedger()))


async def test_many_at_once_get_no_use_too_many(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        invite = await create(founder, max_uses=3)
        joiners = [await mesh.start(f"joiner {n}", invite) for n in range(8)]
        codes: list[ErrorCode] = []

        async def join(node: MeshNode) -> None:
            try:
                await node.node.overlay.join()
            except P2PMeshError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            for joiner in joiners:
                nursery.start_soon(join, joiner)
        assert codes == [ErrorCode.INVITE_EXHAUSTED] * 5


async def test_a_counted_invite_is_not_taken_by_a_member(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        joiner = await mesh.start("joiner", await create(founder, max_uses=2))
        with pytest.raises(P2PMeshError) as raised:
            await joiner.node.overlay.ensure_admitted(member.peer, member.network.addresses())
        assert raised.value.message.startswith("bootstrap_token_founder_only: ")


async def test_the_invite_that_a_founder_shows_is_the_same_after_a_restart(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        desk = founder.node.overlay.credentials.founders_desk()
        first = await desk.stand()
        assert await desk.stand() == first
        ledger = founder.credentials.ledgers[-1]
        await mesh.kill(founder)
        requirements = MeshRequirements(fake_identity("founder").public_key)
        again = await mesh.start("founder", None, founding=Founding(requirements, ledger))
        desk = again.node.overlay.credentials.founders_desk()
        shown = await desk.stand()
        assert (invite_id(shown), shown != first) == (invite_id(first), True)  # another port, the same invite
        assert len(desk.ledger.invites) == 1


async def test_a_founder_shows_another_invite_when_that_is_old_or_revoked(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        desk = founder.node.overlay.credentials.founders_desk()
        first = await desk.stand()
        seen = desk.revoked.count
        await founder.node.overlay.revocations.revoke_invite(invite_id(first), is_expelling=False)
        assert desk.revoked.count > seen
        second = await desk.stand()
        mesh.pass_days(0.4)
        assert await desk.stand() == second
        mesh.pass_days(0.2)
        assert len({invite_id(line) for line in (first, second, await desk.stand())}) == 3


# --- revocation ------------------------------------------------------------------
async def test_a_revoked_invite_is_refused_by_a_member_too(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        invite = await create(founder)
        await founder.node.overlay.revocations.revoke_invite(invite_id(invite), is_expelling=False)
        await trio.sleep(2)
        late = await mesh.start("late", invite)
        for node in (founder, member):
            with pytest.raises(P2PMeshError) as raised:
                await late.node.overlay.ensure_admitted(node.peer, node.network.addresses())
            assert raised.value.code is ErrorCode.INVITE_REVOKED
        assert member.node.overlay.credentials.revocation.sequence == 1


async def test_a_removed_peer_is_put_out_everywhere_and_its_pass_is_over(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        bad = await mesh.join("bad", founder)
        await bad.node.overlay.ensure_admitted(member.peer, member.network.addresses())
        await founder.node.overlay.revocations.remove_peer(bad.peer)
        await wait_gone(founder, bad)
        await wait_gone(member, bad)
        told = await bad.wait_told("put_out")
        assert told["code"] == "peer_removed"
        assert told["message"].startswith("direct_proof_revoked: ")
        assert founder.node.overlay.is_admitted(member.peer)
        again = await started_again(mesh, bad, "bad", None)
        assert (await refused_joining(again)).code is ErrorCode.PEER_REMOVED
        assert not founder.node.overlay.is_admitted(again.peer)


async def test_a_removed_peer_cannot_hide_behind_a_fresh_invite(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        bad = await mesh.join("bad", founder)
        await founder.node.overlay.revocations.remove_peer(bad.peer)
        await mesh.kill(bad)
        again = await mesh.start("bad", await create(founder))
        assert (await refused_joining(again)).code is ErrorCode.PEER_REMOVED


async def test_a_member_that_is_put_out_says_so_once_asks_seldom_and_comes_back_when_it_is_readmitted(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        bad = await mesh.join("bad", founder)
        nursery.start_soon(bad.node.overlay.stay_joined)
        await trio.sleep(120)
        assert bad.node.status()["admission"]["standing"] == "member"
        await founder.node.overlay.revocations.remove_peer(bad.peer)
        await trio.sleep(7200)
        (told,) = bad.told("put_out")
        assert f"p2pmesh peer readmit {bad.peer}" in told["message"]
        assert [name for name, _ in bad.reports if name not in ("peer_joined", "put_out", "usage")] == []
        status = bad.node.status()
        assert (status["admission"]["standing"], status["peers"]) == ("put_out", [])
        assert status["admission"]["put_out"]["code"] == "peer_removed"
        for node in (founder, member):
            assert len([one for one in node.told("peer_refused") if one["peer_id"] == bad.peer]) <= 3
            assert len(node.node.status()["admission"]["recent_refusals"]) <= 1
            assert bad.peer not in [peer["peer_id"] for peer in node.node.status()["peers"]]
        (shown,) = founder.node.status()["admission"]["recent_refusals"]
        assert 10 <= shown["count"] <= 20  # a pass and an invite each quarter of an hour
        await founder.node.overlay.revocations.readmit_peer(bad.peer)
        await trio.sleep(1000)
        assert bad.node.status()["admission"]["standing"] == "member"
        assert {one["health"] for one in bad.node.status()["peers"]} == {"alive"}
        for node in (founder, member):
            assert bad.peer in [peer["peer_id"] for peer in node.node.status()["peers"]]
        nursery.cancel_scope.cancel()


async def test_a_readmitted_peer_that_starts_anew_comes_in_by_the_pass_that_it_kept(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        bad = await mesh.join("bad", founder)
        await founder.node.overlay.revocations.remove_peer(bad.peer)
        await wait_gone(founder, bad)
        again = await started_again(mesh, bad, "bad", None)
        assert (await refused_joining(again)).code is ErrorCode.PEER_REMOVED
        assert again.node.overlay.is_worth_waiting(await refused_joining(again))
        await founder.node.overlay.revocations.readmit_peer(bad.peer)
        await again.node.overlay.join()
        assert again.node.overlay.credentials.revocation.peers == ()
        with pytest.raises(Refused) as raised:
            await founder.node.overlay.revocations.readmit_peer(bad.peer)
        assert raised.value.code is ErrorCode.REQUEST_INVALID


async def test_a_member_that_starts_anew_never_lists_a_removed_peer(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        bad = await mesh.join("bad", founder)
        await founder.node.overlay.revocations.remove_peer(bad.peer)
        await wait_gone(member, bad)
        again = await started_again(mesh, member, "member", None)
        bad.node.overlay.board.speak_up()
        bad.node.overlay.board.change_own(free_bytes=5)
        seen: set[str] = set()
        for _ in range(120):
            await trio.sleep(0.5)
            seen |= {one.peer_id for one in again.node.overlay.board.others()}
        assert bad.peer not in seen
        assert again.told("peer_refused") == []


async def test_a_removed_peer_is_nobody_to_come_back_by(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        bad = await mesh.join("bad", founder)
        await member.node.overlay.ensure_admitted(bad.peer, bad.network.addresses())
        assert bad.peer in dict(member.node.overlay.credentials.bootstrap())
        nursery.start_soon(member.node.overlay.stay_joined)
        await trio.sleep(120)
        await founder.node.overlay.revocations.remove_peer(bad.peer)
        await wait_gone(member, bad)
        joined = bad.told("peer_joined")
        mesh.overlay.cut(founder.peer, member.peer)
        await trio.sleep(300)
        assert {told["code"] for told in member.told("join_failed")} == {"peer_unreachable"}
        assert max(told["retry_s"] for told in member.told("join_failed")) == 60
        assert bad.told("peer_joined") == joined
        mesh.overlay.mend(founder.peer, member.peer)
        await trio.sleep(90)
        assert founder.node.overlay.is_admitted(member.peer)
        assert member.told("put_out") == []
        nursery.cancel_scope.cancel()


async def test_a_member_with_nothing_left_to_show_ends_and_one_that_was_never_in_does_not_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        mesh.overlay.cut(founder.peer, member.peer)
        await trio.sleep(60)
        mesh.pass_days(40)
        mesh.overlay.mend(founder.peer, member.peer)
        with pytest.raises(P2PMeshError) as raised:
            await member.node.overlay.stay_joined()
        assert raised.value.code in (ErrorCode.PASS_EXPIRED, ErrorCode.INVITE_EXPIRED)
        late = await mesh.start("late", await create(founder, max_uses=1))
        await founder.node.overlay.revocations.revoke_invite(
            invite_id(late.node.overlay.credentials._invite_text), is_expelling=False
        )
        assert not late.node.overlay.is_worth_waiting(await refused_joining(late))
        assert late.told("put_out") == []


async def test_expelling_an_invite_puts_out_those_who_came_by_it_and_their_guests(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        leaked = await create(founder)
        intruder = await mesh.start("intruder", leaked)
        await intruder.node.overlay.join()
        guest = await mesh.start("guest", leaked)
        await guest.node.overlay.ensure_admitted(intruder.peer, intruder.network.addresses())
        kept = guest.credentials.memberships[-1]
        assert len(kept.passes) == 2
        honest = await mesh.join("honest", founder)
        await founder.node.overlay.revocations.revoke_invite(invite_id(leaked), is_expelling=True)
        await wait_gone(founder, intruder)
        assert founder.node.overlay.is_admitted(honest.peer)
        with pytest.raises(P2PMeshError):
            await guest.node.overlay.ensure_admitted(founder.peer, founder.network.addresses())
        assert not founder.node.overlay.is_admitted(guest.peer)


async def test_an_innocent_guest_of_a_removed_peer_comes_back_by_an_invite(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        host = await mesh.join("host", founder)
        guest = await mesh.start("guest", await create(founder))
        await guest.node.overlay.ensure_admitted(host.peer, host.network.addresses())
        kept = guest.credentials.memberships[-1]
        assert len(kept.passes) == 2
        await mesh.kill(guest)
        await founder.node.overlay.revocations.remove_peer(host.peer)
        again = await mesh.start("guest", await create(founder), membership=kept)
        await again.node.overlay.ensure_admitted(founder.peer, founder.network.addresses())
        assert founder.node.overlay.is_admitted(again.peer)
        assert [told["code"] for told in founder.told("peer_refused")][-1] == "peer_removed"
        assert len(again.node.overlay.credentials.passes) == 1


async def test_a_member_comes_back_through_another_while_the_founder_is_away(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        first = await mesh.join("first", founder)
        second = await mesh.join("second", founder)
        await second.node.overlay.ensure_admitted(first.peer, first.network.addresses())
        kept = second.credentials.memberships[-1]
        assert {address.rpartition("/")[2] for address in kept.addresses} == {founder.peer, first.peer}
        await mesh.kill(founder)
        again = await started_again(mesh, second, "second", None)
        await again.node.overlay.join()
        assert first.node.overlay.is_admitted(again.peer)


async def test_a_revocation_outlives_the_restart_of_whoever_knows_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        invite = await create(founder)
        await founder.node.overlay.revocations.revoke_invite(invite_id(invite), is_expelling=False)
        await trio.sleep(2)
        await mesh.kill(founder)
        again = await started_again(mesh, member, "member", None)
        assert again.node.overlay.credentials.revocation.sequence == 1
        late = await mesh.start("late", invite)
        with pytest.raises(P2PMeshError) as raised:
            await late.node.overlay.ensure_admitted(again.peer, again.network.addresses())
        assert raised.value.code is ErrorCode.INVITE_REVOKED


async def test_a_member_that_was_away_hears_of_it_in_its_welcome(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        kept = member.credentials.memberships[-1]
        await mesh.kill(member)
        await founder.node.overlay.revocations.remove_peer(PeerId(fake_identity("somebody").peer_id))
        await trio.sleep(600)
        again = await mesh.start("member", None, membership=kept)
        await again.node.overlay.join()
        assert again.node.overlay.credentials.revocation.peers == (fake_identity("somebody").peer_id,)


async def test_a_founder_restored_from_a_backup_hears_its_own_word_from_its_members(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        removed = PeerId(fake_identity("somebody").peer_id)
        await founder.node.overlay.revocations.remove_peer(removed)
        await trio.sleep(2)
        await mesh.kill(founder)
        restored = await mesh.found()
        await restored.node.overlay.ensure_admitted(member.peer, member.network.addresses())
        await trio.sleep(2)
        assert restored.node.overlay.credentials.founders_desk().ledger.sequence == 1
        await restored.node.overlay.revocations.remove_peer(PeerId(fake_identity("other").peer_id))
        await trio.sleep(2)
        assert member.node.overlay.credentials.revocation.sequence == 2
        assert set(member.node.overlay.credentials.revocation.peers) == {removed, fake_identity("other").peer_id}


async def test_only_the_founder_makes_and_revokes(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        with pytest.raises(Refused, match="only the founder"):
            await member.node.overlay.revocations.remove_peer(founder.peer)
        with pytest.raises(Refused, match="founder cannot be removed"):
            await founder.node.overlay.revocations.remove_peer(founder.peer)


# --- terms -----------------------------------------------------------------------
def founding(**terms: Any) -> Founding:
    return Founding(replace(MeshRequirements(fake_identity("founder").public_key), **terms))


async def test_a_mesh_that_requires_an_owner_admits_the_signed_only(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(founding=founding(requires_owner=True), ownership=signed("founder"))
        invite = await create(founder)
        unsigned = await mesh.start("unsigned", invite)
        error = await refused_joining(unsigned)
        assert error.code is ErrorCode.OWNERSHIP_REFUSED
        assert error.message.startswith("owner_missing: ")
        assert founder.told("peer_refused")[0]["message"].startswith("owner_missing: ")
        mine = await mesh.start("mine", invite, ownership=signed("mine"))
        await mine.node.overlay.join()
        assert founder.node.overlay.is_admitted(mine.peer)


async def test_a_mesh_for_newer_software_refuses_the_older(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(founding=founding(version_min="0.2.0"), version="0.3.0")
        old = await mesh.start("old", await create(founder), version="0.1.9")
        error = await refused_joining(old)
        assert (error.code, error.message.partition(":")[0]) == (
            ErrorCode.VERSION_UNSUPPORTED,
            "node_version_below_minimum",
        )


async def test_another_trust_puts_out_who_is_here(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        mine = await mesh.join("mine", founder, ownership=signed("mine"))
        other = await mesh.join("other", founder)
        founder.node.overlay.trust.change(TrustStore(TrustPolicy.REQUIRE_OWNED))
        await wait_gone(founder, other)
        assert founder.node.overlay.is_admitted(mine.peer)
        assert (await other.wait_told("put_out"))["message"].startswith("trust_policy_denied: ")


async def test_who_is_trusted_no_more_says_so_once_and_returns_when_it_is(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        founder = await mesh.found()
        other = await mesh.join("other", founder)
        nursery.start_soon(other.node.overlay.stay_joined)
        await trio.sleep(120)
        founder.node.overlay.trust.change(TrustStore(TrustPolicy.REQUIRE_OWNED))
        await trio.sleep(3600)
        assert [name for name, _ in other.reports if name not in ("peer_joined", "usage")] == ["put_out"]
        assert other.node.status()["admission"]["put_out"]["code"] == "ownership_refused"
        assert founder.node.status()["peers"] == []
        assert len(founder.told("peer_refused")) <= 2
        founder.node.overlay.trust.change(TrustStore())
        await trio.sleep(1000)
        assert other.node.status()["admission"]["standing"] == "member"
        assert [peer["health"] for peer in founder.node.status()["peers"]] == ["alive"]
        nursery.cancel_scope.cancel()


async def test_the_status_tells_terms_and_refusals_and_no_proof(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(founding=founding(version_min="0.2.0"), version="0.3.0")
        invite = await create(founder)
        for number in range(20):
            await refused_joining(await mesh.start(f"old {number}", invite, version="0.1.9"))
        told = founder.node.status()["admission"]
        assert (told["founder"], told["requirements"]["version_min"]) == (founder.peer, "0.2.0")
        assert len(told["recent_refusals"]) == 16
        assert told["recent_refusals"][-1]["code"] == "version_unsupported"
        member = await mesh.join("member", founder, version="0.3.0")
        status = member.node.status()
        assert status["admission"]["pass_expires_unix_ms"] > UNIX_MS_AT_START
        assert invite not in repr(status) + repr(founder.node.status())


# --- route queries -----------------------------------------------------------------
async def test_anybody_may_ask_which_models_are_reached_and_is_not_admitted_by_it(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        identity = fake_identity("stranger")
        async with mesh.overlay.open_network(identity.peer_id) as network:
            table = await query_routes(network, founder.peer, founder.network.addresses())
            assert (table.mesh_id, table.routes) == (founder.node.overlay.mesh_id, ())
            assert not founder.node.overlay.is_admitted(identity.peer_id)


# --- public pools --------------------------------------------------------------------
def listed(node: MeshNode) -> str:
    line = node.node.overlay.credentials.listed_invite(node.network.addresses())
    assert line is not None
    return line


async def joined_by(mesh: Mesh, name: str, line: str) -> MeshNode:
    node = await mesh.start(name, line)
    await node.node.overlay.join()
    return node


async def test_members_of_a_public_pool_invite_while_its_founder_is_away(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(founding=founding(is_public=True))
        member = await joined_by(mesh, "member", listed(founder))
        await mesh.kill(founder)
        guest = await joined_by(mesh, "guest", listed(member))
        assert guest.node.overlay.is_admitted(member.peer)
        assert len(guest.node.overlay.credentials.passes) == 2
        last = await joined_by(mesh, "guest of the guest", listed(guest))
        assert last.node.overlay.is_admitted(guest.peer)


async def test_nobody_but_the_founder_invites_into_another_mesh(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        member = await mesh.join("member", founder)
        for node in (founder, member):
            assert node.node.overlay.credentials.listed_invite(node.network.addresses()) is None


async def test_the_lines_of_listings_are_one_invite_that_lives_minutes_and_is_counted(
    autojump_clock: MockClock,
) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(founding=founding(is_public=True))
        first = listed(founder)
        await trio.sleep(60)
        second = listed(founder)
        assert first != second
        assert invite_id(first) == invite_id(second)
        await joined_by(mesh, "one", first)
        await joined_by(mesh, "two", second)
        (entry,) = founder.node.overlay.credentials.founders_desk().ledger.invites
        assert (entry.is_listed, entry.uses) == (True, 2)
        late = await mesh.start("late", second)
        await trio.sleep(11 * 60)
        assert (await refused_joining(late)).code is ErrorCode.INVITE_EXPIRED


async def test_revoking_the_invite_of_listings_ends_those_of_members_too(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found(founding=founding(is_public=True))
        line = listed(founder)
        member = await joined_by(mesh, "member", line)
        members = listed(member)
        await founder.node.overlay.revocations.revoke_invite(invite_id(line), is_expelling=False)
        assert invite_id(listed(founder)) != invite_id(line)
        late = await mesh.start("late", members)
        await trio.sleep(2)
        assert member.node.overlay.credentials.revocation.sequence == 1
        assert (await refused_joining(late)).code is ErrorCode.INVITE_REVOKED


# --- an invite of a stranger -----------------------------------------------------
async def test_who_comes_by_a_listing_dials_nothing_else_that_its_invite_names(autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh:
        founder = await mesh.found()
        ways_in = (f"/ip4/127.0.0.2/tcp/4001/p2p/{founder.peer}",)
        joiner = await mesh.start("joiner", await create(founder), settings={"ways_in": ways_in})
        assert joiner.node.overlay.credentials.bootstrap() == ((founder.peer, ways_in),)
