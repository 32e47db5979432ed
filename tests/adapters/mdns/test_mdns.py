"""Real multicast on the loopback interface: two nodes see each other, pools among them, and part."""

import secrets
import threading
from dataclasses import replace
from functools import partial

import pytest
import trio
from zeroconf import ServiceInfo, Zeroconf

from p2pmesh.adapters.mdns import lan
from p2pmesh.adapters.mdns.lan import MdnsLan, open_lan
from p2pmesh.adapters.mdns.listings import LanListings, publisher_of
from p2pmesh.base.ids import MeshId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.addresses import InterfaceAddress
from p2pmesh.ports.lan import Lan
from p2pmesh.ports.relays import ListingQuery, PublishOutcome, RelayPhase, Relays
from p2pmesh.wire.lan_record import LanRecord, encode_txt, fingerprint_of
from p2pmesh.wire.listing import RejectionReason
from tests.fakes.clock import FakeClock
from tests.fakes.lan import FakeLink
from tests.wire.keys import FOUNDER, JOINER, STRANGER, verify
from tests.wire.lan_vectors import CHALLENGE, CLOSED
from tests.wire.listing_vectors import CONTENT, NOW_MS, invite_line

PATIENCE_S = 60.0
AT_HOME = CLOSED
OTHER = replace(CLOSED, peer=STRANGER.peer_id, fingerprint=fingerprint_of(FOUNDER.mesh_id, STRANGER.peer_id, CHALLENGE))


@pytest.fixture
def ours() -> str:
    """A service type of this test alone: it shares the loopback interface with every other run of it."""
    return f"_p2pm{secrets.token_hex(4)}._tcp.local."


class Loopback:
    """Nothing but the loopback interface, so that no test leaves the machine."""

    def survey(self) -> tuple[InterfaceAddress, ...]:
        return (InterfaceAddress("lo", "127.0.0.1", 8),)


async def wait_seen(lan: Lan, count: int) -> tuple[LanRecord, ...]:
    with trio.fail_after(PATIENCE_S):
        while True:
            changes = lan.changes
            if len(lan.seen()) == count:
                return lan.seen()
            await lan.wait_changed_beyond(changes)


async def test_the_fake_and_the_real_one_show_what_is_told_and_what_is_taken_back(ours: str) -> None:
    link = FakeLink()
    async with open_lan(Loopback(), ours) as first, open_lan(Loopback(), ours) as second:
        pairs: list[tuple[Lan, Lan]] = [(link.open(), link.open()), (first, second)]
        for one, other in pairs:
            one.tell(AT_HOME)
            other.tell(OTHER)
            assert await wait_seen(other, 1) == (AT_HOME,)
            assert await wait_seen(one, 1) == (OTHER,)
            one.tell(None)
            assert await wait_seen(other, 0) == ()
            assert one.state().is_listening


class SlowZeroconf:
    """Opens when it is let."""

    def __init__(self) -> None:
        self.is_let, self.is_begun, self.is_closed = threading.Event(), threading.Event(), threading.Event()

    def open(self, **_: object) -> "SlowZeroconf":
        self.is_begun.set()
        self.is_let.wait(PATIENCE_S)
        return self

    def close(self) -> None:
        self.is_closed.set()


async def test_what_opens_after_nobody_wants_it_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowZeroconf()
    monkeypatch.setattr(lan, "Zeroconf", slow.open)
    async with open_lan(Loopback()):
        assert await trio.to_thread.run_sync(slow.is_begun.wait, PATIENCE_S)
    slow.is_let.set()
    assert await trio.to_thread.run_sync(slow.is_closed.wait, PATIENCE_S)


async def test_bad_records_cost_themselves_alone(ours: str) -> None:
    def tell_garbage() -> None:
        bad = (
            {"svc": "p2pmesh", "schema": "1"},
            {"peer": b"\xff\xfe"},
            {},
            dict(encode_txt(AT_HOME)) | {"schema": "9"},
        )
        for index, fields in enumerate(bad):
            name = f"hostile-{index}.{ours}"
            info = ServiceInfo(ours, name, port=1, addresses=[bytes(4)], properties=fields, server="h.local.")
            stranger.register_service(info, cooperating_responders=True)

    async with open_lan(Loopback(), ours) as one, open_lan(Loopback(), ours) as other:
        stranger = await trio.to_thread.run_sync(partial(Zeroconf, interfaces=["127.0.0.1"], use_asyncio=False))
        try:
            await trio.to_thread.run_sync(tell_garbage)
            one.tell(AT_HOME)
            assert await wait_seen(other, 1) == (AT_HOME,)
            with trio.fail_after(PATIENCE_S):
                while other.state().refused < 4:
                    await other.wait_changed_beyond(other.changes)
            assert other.seen() == (AT_HOME,)
        finally:
            await trio.to_thread.run_sync(stranger.close)


async def test_two_nodes_find_each_other_and_see_each_other_leave(ours: str) -> None:
    async with open_lan(Loopback(), ours) as one:
        one.tell(AT_HOME)
        async with open_lan(Loopback(), ours) as other:
            other.tell(OTHER)
            assert await wait_seen(other, 1) == (AT_HOME,)
            assert await wait_seen(one, 1) == (OTHER,)
            state = one.state()
            assert (state.is_listening, state.seen, state.refused, state.detail) == (True, 1, 0, "")
        assert await wait_seen(one, 0) == ()


async def test_an_open_pool_is_a_listing_until_it_is_taken_back(ours: str) -> None:
    clock = FakeClock(unix_ms=UnixMillis(NOW_MS))
    content = replace(CONTENT, addresses=())
    in_pool = replace(AT_HOME, fingerprint=fingerprint_of(MeshId(CONTENT.mesh_id), JOINER.peer_id, CHALLENGE))
    async with open_lan(Loopback(), ours) as one, open_lan(Loopback(), ours) as other:
        pools: Relays = LanListings(one, JOINER.peer_id, clock, verify)
        reader: Relays = LanListings(other, STRANGER.peer_id, clock, verify)
        one.tell(in_pool)
        await wait_seen(other, 1)
        assert (await reader.fetch(ListingQuery(), 0.1)).listings == ()
        report = await pools.publish(content, 1.0)
        assert report.replies[0].outcome is PublishOutcome.ACCEPTED
        with trio.fail_after(PATIENCE_S):
            while not (found := await reader.fetch(ListingQuery(), PATIENCE_S)).listings:
                await trio.lowlevel.checkpoint()
        [listing] = found.listings
        assert listing.mesh_id == CONTENT.mesh_id
        assert listing.publisher == publisher_of(JOINER.peer_id) == pools.publisher
        assert listing.content == replace(content, addresses=AT_HOME.dialable)
        assert found.answered == ("mdns",)
        none = await reader.fetch(ListingQuery(publishers=("0" * 64,)), 1.0)
        assert none.listings == ()
        assert reader.states()[0].phase is RelayPhase.ANSWERING
        await pools.delete(1.0)
        with trio.fail_after(PATIENCE_S):
            while other.seen()[0].listing is not None:
                await other.wait_changed_beyond(other.changes)


class OnALan:
    """A machine that is on a network; nothing is sent there."""

    def survey(self) -> tuple[InterfaceAddress, ...]:
        return (InterfaceAddress("eth0", "10.77.0.1", 24),)


class SeenLan(MdnsLan):
    """That has seen given records, without multicast."""

    def __init__(self, *records: LanRecord) -> None:
        super().__init__(OnALan())
        self._seen = {record.peer: record for record in records}


async def test_a_listing_does_not_lead_to_services_of_the_readers_own_machine(autojump_clock: trio.abc.Clock) -> None:
    router, here = "/ip4/10.77.0.9/tcp/1", "/ip4/127.0.0.1/tcp/22"
    token = invite_line(addresses=(here,))
    mixed = replace(
        AT_HOME, listing=replace(CONTENT, invite_token=token, addresses=(f"{router}/p2p/{JOINER.peer_id}",))
    )
    only_here = replace(OTHER, listing=replace(CONTENT, invite_token=token, addresses=()))
    clock = FakeClock(unix_ms=UnixMillis(NOW_MS))
    found = await LanListings(SeenLan(mixed, only_here), "me", clock, verify).fetch(ListingQuery(), 1.0)
    assert [one.invite.addresses for one in found.listings] == [()]
    assert [one.first.reason for one in found.rejections] == [RejectionReason.NO_ADDRESS]


async def test_without_any_interface_that_works_it_says_so_and_tries_again() -> None:
    class Gone:
        def survey(self) -> tuple[InterfaceAddress, ...]:
            return (InterfaceAddress("eth9", "203.0.113.9", 24),)

    async with open_lan(Gone()) as lan:
        lan.tell(AT_HOME)
        with trio.fail_after(PATIENCE_S):
            while not lan.state().detail:
                await lan.wait_changed_beyond(lan.changes)
        assert not lan.state().is_listening
        assert "multicast DNS does not work here" in lan.state().detail


def test_who_asks_for_nothing_is_told_nothing() -> None:
    lan: Lan = MdnsLan(Loopback())
    assert lan.seen() == ()
    assert not lan.state().is_listening
