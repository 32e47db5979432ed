"""The trust store and the claim of a running node: read, followed, renewed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.adapters.identity import Ed25519Verifier
from p2pmesh.adapters.owner_keystore import KdfCost, OwnerKey, save_owner_key
from p2pmesh.adapters.trust_file import CLAIM_FILE, TRUST_FILE, load_claim, save_claim, save_trust
from p2pmesh.app.claims import OwnerFiles
from p2pmesh.app.events import Event
from p2pmesh.app.ownership import (
    KEYCHAIN_PATIENCE_S,
    LOOK_EVERY_S,
    OwnershipOptions,
    OwnershipWatch,
    RunBlocking,
    check_owner_key,
    passphrase_sources,
)
from p2pmesh.app.passphrase import PassphraseSources
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.core.ownership import TrustPolicy, TrustStore
from p2pmesh.wire.ownership import LIFE_MS, RENEWAL_MS, OwnershipClaim, decode_claim, encode_claim
from tests.fakes.clock import FakeClock
from tests.fakes.mesh import MeshNode, open_mesh
from tests.wire.keys import JOINER

PASSPHRASE = "correct horse"
verify = Ed25519Verifier().is_signature_of
OWNER = OwnerKey.generate()


async def at_once(work: Callable[[], bytes]) -> bytes:
    """No thread: a jumping clock would not wait for it."""
    await trio.lowlevel.checkpoint()
    return work()


async def never(work: Callable[[], bytes]) -> bytes:
    """A keychain that waits for a person."""
    await trio.sleep_forever()
    return work()


class Home:
    """The home of a node, and what its watch has told."""

    def __init__(self, path: Path, sources: PassphraseSources) -> None:
        self.path = path
        self.sources = sources
        self.events: list[Event] = []
        self.clock = FakeClock()
        self.run_blocking: RunBlocking = at_once

    def sign(self, peer: PeerId, life_ms: int = LIFE_MS, owner: OwnerKey = OWNER) -> bytes:
        now = self.clock.unix_ms()
        claim = OwnershipClaim(1, bytes(16), peer, "kitchen", now, now + life_ms)
        sealed = encode_claim(claim, owner.public_key, owner.sign)
        save_claim(self.path, sealed)
        return sealed

    def watch(self, peer: PeerId, policy: TrustPolicy | None = None) -> OwnershipWatch:
        options = OwnershipOptions(OwnerFiles.of(self.path, None), self.sources, policy)
        return OwnershipWatch(options, peer, self.events.append, self.run_blocking)

    def told(self, name: str) -> list[dict[str, Any]]:
        return [dict(event.fields) for event in self.events if event.name.value == name]

    def pass_ms(self, milliseconds: int) -> None:
        self.clock.advance(micros=milliseconds * 1000)


def sources(passphrase: str | None = PASSPHRASE) -> PassphraseSources:
    return PassphraseSources(None, {} if passphrase is None else {"P2PMESH_OWNER_PASSPHRASE": passphrase})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    save_owner_key(tmp_path / "owner.key", OWNER, PASSPHRASE, cost=KdfCost(memory_kib=8, iterations=1))
    return Home(tmp_path, sources())


def announced(node: MeshNode) -> bytes:
    return node.node.overlay.board.own().ownership


async def looks(times: int = 2) -> None:
    """Lets the watch look at its files."""
    await trio.sleep(times * LOOK_EVERY_S)


# --- at the start -----------------------------------------------------------------
def check(home: Path, key: str | None, passphrases: PassphraseSources, told: list[Event]) -> ErrorCode | None:
    options = OwnershipOptions(OwnerFiles.of(home, key), passphrases)
    try:
        check_owner_key(options, told.append, is_key_named=key is not None)
    except ConfigError as error:
        return error.code
    return None


def test_a_key_or_passphrase_file_that_cannot_be_used_is_refused_at_the_start(home: Home, tmp_path: Path) -> None:
    told: list[Event] = []
    good, broken = str(tmp_path / "owner.key"), tmp_path / "broken.key"
    broken.write_text("{}")
    (tmp_path / "empty").write_text("\n")
    no_file = PassphraseSources(tmp_path / "none", {})
    assert check(tmp_path, good, sources(), told) is None
    assert check(tmp_path, None, sources(None), told) is None
    assert check(tmp_path, str(tmp_path / "none.key"), sources(None), told) is ErrorCode.OWNER_KEY_MISSING
    assert check(tmp_path, str(broken), sources(None), told) is ErrorCode.HOME_UNUSABLE
    assert check(tmp_path, None, no_file, told) is ErrorCode.CONFIG_INVALID
    assert check(tmp_path, None, PassphraseSources(tmp_path / "empty", {}), told) is ErrorCode.CONFIG_INVALID
    assert told == []


def test_a_wrong_passphrase_is_told_at_the_start(home: Home, tmp_path: Path) -> None:
    told: list[Event] = []
    assert check(tmp_path, str(tmp_path / "owner.key"), sources("another"), told) is None
    assert [event.fields["code"] for event in told] == ["passphrase_wrong"]


def test_an_empty_home_trusts_by_default_and_shows_no_claim(tmp_path: Path) -> None:
    watch = Home(tmp_path, sources()).watch(JOINER.peer_id)
    assert (watch.trust, watch.claim) == (TrustStore(), b"")


def test_the_policy_of_the_command_line_stands_over_that_of_the_store(home: Home) -> None:
    save_trust(home.path, TrustStore(TrustPolicy.ALLOWLIST, {OWNER.owner_id: "me"}))
    assert home.watch(JOINER.peer_id).trust.policy is TrustPolicy.ALLOWLIST
    over = home.watch(JOINER.peer_id, TrustPolicy.REQUIRE_OWNED).trust
    assert (over.policy, dict(over.trusted_owners)) == (TrustPolicy.REQUIRE_OWNED, {OWNER.owner_id: "me"})


def test_a_damaged_trust_store_ends_the_start(home: Home) -> None:
    (home.path / TRUST_FILE).write_text("{}")
    with pytest.raises(ConfigError) as error:
        home.watch(JOINER.peer_id)
    assert error.value.code is ErrorCode.HOME_UNUSABLE


def damage(home: Home) -> None:
    (home.path / CLAIM_FILE).write_text("nonsense")


def forge(home: Home) -> None:
    save_claim(home.path, b"no envelope")


def copy_from_another_node(home: Home) -> None:
    home.sign(PeerId("1" * 40))


@pytest.mark.parametrize("spoil", [damage, forge, copy_from_another_node])
def test_a_claim_that_cannot_be_shown_is_told_and_left_out(home: Home, spoil: Callable[[Home], None]) -> None:
    spoil(home)
    assert home.watch(JOINER.peer_id).claim == b""
    assert [told["code"] for told in home.told("error")] == ["claim_invalid"]


def test_the_passphrase_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PMESH_OWNER_PASSPHRASE", PASSPHRASE)
    found = passphrase_sources(None)
    assert "P2PMESH_OWNER_PASSPHRASE" not in os.environ
    assert found.environment == {"P2PMESH_OWNER_PASSPHRASE": PASSPHRASE}
    assert passphrase_sources("file").file == Path("file")


# --- while the node runs -------------------------------------------------------------
async def test_changes_of_the_files_reach_the_node(home: Home, autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        node = await mesh.found()
        watch = home.watch(node.peer)
        nursery.start_soon(watch.run, node.node, home.clock)
        await looks()
        assert announced(node) == b""
        claim = home.sign(node.peer)
        save_trust(home.path, TrustStore(TrustPolicy.REQUIRE_OWNED))
        await looks()
        assert announced(node) == claim
        assert node.node.overlay.trust.policy is TrustPolicy.REQUIRE_OWNED
        (home.path / CLAIM_FILE).unlink()
        await looks()
        assert announced(node) == b""
        nursery.cancel_scope.cancel()


async def test_a_store_that_is_damaged_meanwhile_changes_nothing(home: Home, autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        node = await mesh.found()
        save_trust(home.path, TrustStore(TrustPolicy.REQUIRE_OWNED))
        watch = home.watch(node.peer)
        node.node.change_trust(watch.trust)
        nursery.start_soon(watch.run, node.node, home.clock)
        (home.path / TRUST_FILE).write_text("{")
        await looks(4)
        assert node.node.overlay.trust.policy is TrustPolicy.REQUIRE_OWNED
        assert [told["code"] for told in home.told("error")] == ["home_unusable"]
        nursery.cancel_scope.cancel()


async def test_a_claim_is_renewed_when_it_is_due_and_not_before(home: Home, autojump_clock: MockClock) -> None:
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        node = await mesh.found()
        first = home.sign(node.peer)
        nursery.start_soon(home.watch(node.peer).run, node.node, home.clock)
        home.pass_ms(LIFE_MS - RENEWAL_MS - 1)
        await looks()
        assert home.events == []
        home.pass_ms(1)
        await looks(6)
        renewed = load_claim(home.path)
        assert renewed is not None
        assert renewed != first
        assert announced(node) == renewed
        claim = decode_claim(renewed, verify).claim
        assert (claim.label, claim.peer_id, claim.life_ms) == ("kitchen", node.peer, LIFE_MS)
        assert claim.expires_unix_ms == home.clock.unix_ms() + LIFE_MS
        assert [told["expires_unix_ms"] for told in home.told("claim_renewed")] == [claim.expires_unix_ms]
        nursery.cancel_scope.cancel()


async def notices(home: Home, hours: int, owner: OwnerKey = OWNER) -> list[dict[str, Any]]:
    """What a watch tells in so many hours after its claim is due."""
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        node = await mesh.found()
        before = home.sign(node.peer, owner=owner)
        home.pass_ms(LIFE_MS - RENEWAL_MS)
        nursery.start_soon(home.watch(node.peer).run, node.node, home.clock)
        for _ in range(hours):
            await trio.sleep(3600)
            home.pass_ms(3_600_000)
        assert load_claim(home.path) == before
        nursery.cancel_scope.cancel()
    return home.told("claim_expires")


async def test_without_a_passphrase_the_operator_is_told_now_and_then(
    home: Home, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2pmesh.app.ownership.LOOK_EVERY_S", 450.0)  # 43 hours in fewer steps
    home.sources = sources(None)
    told = await notices(home, 43)
    assert len(told) == 8  # every six hours
    assert "p2pmesh auth renew-node" in told[0]["message"]
    assert "expires at" in told[0]["message"]
    assert "has expired at" in told[-1]["message"]


async def test_a_wrong_passphrase_is_told(home: Home, autojump_clock: MockClock) -> None:
    home.sources = sources("wrong")
    assert "passphrase does not open" in (await notices(home, 1))[0]["message"]


async def test_a_claim_of_another_owner_is_not_renewed_with_this_key(home: Home, autojump_clock: MockClock) -> None:
    assert "another owner's" in (await notices(home, 1, OwnerKey.generate()))[0]["message"]


async def test_a_node_that_was_signed_elsewhere_says_so(home: Home, autojump_clock: MockClock) -> None:
    (home.path / "owner.key").unlink()
    assert "elsewhere" in (await notices(home, 1))[0]["message"]


async def test_a_keychain_that_waits_for_a_person_does_not_hold_the_node(home: Home, autojump_clock: MockClock) -> None:
    home.run_blocking = never
    async with open_mesh() as mesh, trio.open_nursery() as nursery:
        node = await mesh.found()
        home.sign(node.peer)
        home.pass_ms(LIFE_MS)
        nursery.start_soon(home.watch(node.peer).run, node.node, home.clock)
        await trio.sleep(2 * KEYCHAIN_PATIENCE_S)
        assert "does not answer" in home.told("claim_expires")[0]["message"]
        save_trust(home.path, TrustStore(TrustPolicy.REQUIRE_OWNED))
        await looks()
        assert node.node.overlay.trust.policy is TrustPolicy.REQUIRE_OWNED
        nursery.cancel_scope.cancel()


async def test_renewal_in_a_real_thread(home: Home) -> None:
    home.sign(JOINER.peer_id)
    watch = OwnershipWatch(OwnershipOptions(OwnerFiles.of(home.path, None), home.sources), JOINER.peer_id, print)
    before = decode_claim(watch.claim, verify)
    renewed = decode_claim(await watch._renew(before, home.clock.unix_ms()), verify)
    assert renewed.claim.certificate_id != before.claim.certificate_id
