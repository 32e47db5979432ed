"""The trust store and the claim of a running node: read at its start, followed in its home, and renewed in time.

An operator's ``p2pmesh auth`` changes files; this carries the change into the node within seconds. A damaged trust
store ends the start, since nobody may guess whom to trust; later, what was read before stays in force. A damaged or
foreign claim is told and left out. The rules are ``core.ownership``'s.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from p2pmesh.adapters.home_lock import hold_records
from p2pmesh.adapters.owner_keystore import load_owner_key, owner_key_missing, read_keystore_facts
from p2pmesh.adapters.trust_file import CLAIM_FILE, TRUST_FILE, load_claim, load_trust, save_claim
from p2pmesh.app import events
from p2pmesh.app.claims import OwnerFiles, as_utc, open_own_claim, sign_claim
from p2pmesh.app.config import PASSPHRASE_VARIABLE
from p2pmesh.app.events import Emit
from p2pmesh.app.passphrase import PassphraseSources
from p2pmesh.base.errors import ConfigError, ErrorCode, P2PMeshError
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import UnixMillis
from p2pmesh.core.ownership import TrustPolicy, TrustStore, renewal_due
from p2pmesh.node.node import Node
from p2pmesh.ports.clock import Clock
from p2pmesh.wire.ownership import SignedClaim

LOOK_EVERY_S = 5.0
RENEW_AGAIN_S = 900.0
"""After a renewal that failed, and a notice about it; one that a person must make is told again after 24 of these."""
NOTICES_EVERY = 24
KEYCHAIN_PATIENCE_S = 30.0
"""A keychain may wait for a person to unlock it, who is not there."""


RunBlocking = Callable[[Callable[[], bytes]], Awaitable[bytes]]
"""Runs what blocks; a cancellation need not wait for its end."""


@dataclass(frozen=True, slots=True)
class OwnershipOptions:
    """What ``up`` was told; ``policy`` None is that of the trust store."""

    files: OwnerFiles
    sources: PassphraseSources
    policy: TrustPolicy | None = None


def passphrase_sources(file: str | None) -> PassphraseSources:
    """Where a running node finds the passphrase. The variable is taken away, so that no child process inherits it."""
    given = os.environ.pop(PASSPHRASE_VARIABLE, None)
    return PassphraseSources(Path(file) if file else None, {} if given is None else {PASSPHRASE_VARIABLE: given})


def check_owner_key(options: OwnershipOptions, emit: Emit, *, is_key_named: bool) -> None:
    """Refuses at the start what would else be found out when the claim is due: ``ConfigError``.

    What was typed must be there and be sound. A passphrase that does not open the key is told: the node can run for
    days without it.
    """
    passphrase = options.sources.given()
    try:
        facts = read_keystore_facts(options.files.keystore)
        if facts is None and is_key_named:
            raise owner_key_missing(options.files.keystore)
        if facts is not None and passphrase is not None:
            with options.sources.naming():
                load_owner_key(options.files.keystore, passphrase)
    except ConfigError as error:
        if is_key_named and error.code is not ErrorCode.PASSPHRASE_WRONG:
            raise
        emit(events.error(ConfigError(error.code, f"{error.message}; until then this node's claim is not renewed")))


class OwnershipWatch:
    """Reads what the home says of a node, follows it, and renews the claim while the node runs.

    Made before anything is started: ``ConfigError`` if the trust store is damaged.
    """

    def __init__(
        self,
        options: OwnershipOptions,
        peer: PeerId,
        emit: Emit,
        run_blocking: RunBlocking | None = None,
    ) -> None:
        self._options = options
        self._run_blocking = run_blocking or _run_in_thread
        self._peer = peer
        self._emit = emit
        self._seen = self._signatures()
        self._renew_at_s = 0.0
        self._renewals_missed = 0
        self.trust = self._read_trust()
        """With the policy of the command line, if that names one."""
        self.claim = self._read_claim()
        """Sealed; empty if there is none that this node can show."""

    async def run(self, node: Node, clock: Clock) -> None:
        """Until cancelled; nothing here ends the node."""
        while True:
            self._follow(node)
            await self._renew_if_due(node, clock)
            await trio.sleep(LOOK_EVERY_S)

    # --- following -------------------------------------------------------------
    def _follow(self, node: Node) -> None:
        seen = self._signatures()
        is_other_trust, is_other_claim = (now != before for now, before in zip(seen, self._seen, strict=True))
        self._seen = seen
        if is_other_trust:
            try:
                self.trust = self._read_trust()
                node.change_trust(self.trust)
            except P2PMeshError as error:  # what was read before stays in force
                self._emit(events.error(error))
        if is_other_claim:
            self._show(node, self._read_claim())

    def _show(self, node: Node, claim: bytes) -> None:
        self.claim = claim
        self._renew_at_s = 0.0
        self._renewals_missed = 0
        node.change_ownership(claim)

    def _read_trust(self) -> TrustStore:
        trust = load_trust(self._options.files.home)
        return trust if self._options.policy is None else replace(trust, policy=self._options.policy)

    def _read_claim(self) -> bytes:
        """What is wrong with a claim is told; the node lives on without it."""
        try:
            claim = load_claim(self._options.files.home)
            if claim is not None:
                self._check(open_own_claim(claim))
        except ConfigError as error:
            self._emit(events.error(error))
            return b""
        return claim or b""

    def _check(self, signed: SignedClaim) -> None:
        if signed.claim.peer_id != self._peer:
            named = signed.claim.peer_id
            message = f"the claim in this home is of node {named}, not of this one; sign it with p2pmesh auth sign-node"
            raise ConfigError(ErrorCode.CLAIM_INVALID, message)

    def _signatures(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        home = self._options.files.home
        return _signature_of(home / TRUST_FILE), _signature_of(home / CLAIM_FILE)

    # --- renewing --------------------------------------------------------------
    async def _renew_if_due(self, node: Node, clock: Clock) -> None:
        if not self.claim or trio.current_time() < self._renew_at_s:
            return
        signed, now = open_own_claim(self.claim), clock.unix_ms()
        if not renewal_due(signed.claim, now):
            return
        self._renew_at_s = trio.current_time() + RENEW_AGAIN_S
        try:
            renewed = await self._renew(signed, now)
        except P2PMeshError as error:
            self._note_missed(signed, now, error.message)
            return
        self._show(node, renewed)
        fresh = open_own_claim(renewed)
        expires = fresh.claim.expires_unix_ms
        self._emit(
            events.claim_renewed(fresh.owner_id, expires, f"this node's claim was renewed until {as_utc(expires)}")
        )

    async def _renew(self, signed: SignedClaim, now: UnixMillis) -> bytes:
        """A claim like ``signed`` that begins now, saved; in a thread, since Argon2id and a keychain take time."""
        work = partial(_renew_in_files, self._options, signed, now)
        with trio.move_on_after(KEYCHAIN_PATIENCE_S):
            return await self._run_blocking(work)
        raise ConfigError(ErrorCode.PASSPHRASE_MISSING, "the keychain does not answer; run p2pmesh auth renew-node")

    def _note_missed(self, signed: SignedClaim, now: UnixMillis, reason: str) -> None:
        if self._renewals_missed % NOTICES_EVERY == 0:
            expires = signed.claim.expires_unix_ms
            verb = "has expired" if now > expires else "expires"
            message = f"this node's claim {verb} at {as_utc(expires)} and was not renewed: {reason}"
            self._emit(events.claim_expires(expires, message))
        self._renewals_missed += 1


async def _run_in_thread(work: Callable[[], bytes]) -> bytes:
    # libp2p brings stubs of an older trio, which do not know the keyword
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)  # type: ignore[call-arg]


def _renew_in_files(options: OwnershipOptions, signed: SignedClaim, now: UnixMillis) -> bytes:
    """Raises ``P2PMeshError`` that says what a person has to do."""
    facts = read_keystore_facts(options.files.keystore)
    if facts is None:
        raise ConfigError(
            ErrorCode.OWNER_KEY_MISSING, "its owner's key is elsewhere; sign it there, take it with --claim"
        )
    if facts.owner_id != signed.owner_id:
        raise ConfigError(ErrorCode.CLAIM_INVALID, "it is another owner's than the key; run p2pmesh auth sign-node")
    passphrase = options.sources.unattended(facts)
    if passphrase is None:
        raise ConfigError(ErrorCode.PASSPHRASE_MISSING, "its passphrase is not at hand; run p2pmesh auth renew-node")
    with options.sources.naming():
        owner = load_owner_key(options.files.keystore, passphrase)
    claim = sign_claim(owner, PeerId(signed.claim.peer_id), signed.claim.label, signed.claim.life_ms, now)
    with hold_records(options.files.home):
        save_claim(options.files.home, claim)
    return claim


def _signature_of(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced; empty if it is not there or cannot be seen."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return (facts.st_ino, facts.st_mtime_ns, facts.st_size)
