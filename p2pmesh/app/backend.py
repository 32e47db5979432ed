"""The node as the HTTP surface sees it, also before there is one: the ports answer 503 from the first moment."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from p2pmesh.api.backend import ModelListing
from p2pmesh.app.invites import describe_new
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import MICROS_PER_SECOND
from p2pmesh.core.affinity import NOBODY, Asker
from p2pmesh.core.auto_model import names_with_auto
from p2pmesh.core.invite_ledger import check_known
from p2pmesh.core.retry_after import pending_retry_after_s
from p2pmesh.node.node import Node
from p2pmesh.wire.generation import GenerationEvent, GenerationRequest, Prompt, ToolUse


class NodeBackend:
    """Implements ``api.backend.Backend``."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._started_unix_s = int(time.time())
        self._began_s = time.monotonic()

    def attach(self, node: Node) -> None:
        """The node is built."""
        self._node = node

    def detach(self) -> None:
        """The node ends; another follows."""
        self._node = None

    def models(self) -> tuple[ModelListing, ...]:
        """Routable models by name."""
        if self._node is None:
            return ()
        served = self._node.routable_models()
        listings = tuple(
            ModelListing(name, self._started_unix_s, context_tokens=model.context_tokens, stage_count=model.stage_count)
            for name, model in served.items()
        )
        more = (name for name in names_with_auto(served) if name not in served)
        return (*listings, *(ModelListing(name, self._started_unix_s) for name in more))

    def is_ready(self) -> bool:
        """Whether any model is routable, or would be loaded for a request."""
        return bool(self.models()) or (self._node is not None and self._node.coordinators.on_demand.is_ready())

    def is_awaited(self, model: str) -> bool:
        """Whether a request for it waits, although nothing serves it just now."""
        return self._node is not None and self._node.router.is_awaited(model)

    def not_ready_reason(self, model: str) -> str:
        """What is being done for the model, if it is to come."""
        reason = None if self._node is None else self._node.router.expected_reason(model)
        return f"{model} is not ready: {reason}" if reason else "no model is ready yet; try again in a moment"

    def generate(
        self, request: GenerationRequest, asker: Asker = NOBODY
    ) -> AbstractAsyncContextManager[AsyncIterator[GenerationEvent]]:
        """Events of a request."""
        if self._node is None:
            raise Refused(ErrorCode.MODEL_NOT_READY, "the node is starting; try again in a moment")
        return self._node.generate(request, asker)

    async def tokenize(
        self, model: str, prompt: Prompt, tools: ToolUse | None = None, *, add_special: bool
    ) -> tuple[int, ...]:
        """By whoever drives the model."""
        answer = await self._running().tokenize(model, self.new_request_id(), prompt, tools, add_special=add_special)
        return answer.tokens

    async def detokenize(self, model: str, tokens: tuple[int, ...]) -> str:
        """By whoever drives the model."""
        prompt = Prompt(tokens=tokens)
        return (await self._running().tokenize(model, self.new_request_id(), prompt, add_special=False)).text

    def status(self) -> dict[str, Any]:
        """Facts for the console."""
        return self._node.status() if self._node is not None else {"phase": "starting"}

    async def peers(self) -> dict[str, Any]:
        """Peers and links for a plan."""
        return await self._running().peers()

    # --- the founder's desk (``api.invites.InviteDesk``) ---------------------------
    async def create_invite(self, life_s: int, max_uses: int) -> dict[str, Any]:
        """A new invite, saved."""
        credentials = self._running().overlay.credentials
        line = await credentials.founders_desk().create(life_s * 1000, max_uses)
        return describe_new(credentials.decode_invite(line), line)

    def describe_invites(self) -> dict[str, Any]:
        """The ledger without the lines."""
        return self._running().overlay.credentials.founders_desk().describe()

    async def revoke_invite(self, invite_id: str, *, is_expelling: bool) -> dict[str, Any]:
        """In force when this returns; the others hear of it by gossip."""
        await self._running().overlay.revocations.revoke_invite(invite_id, is_expelling=is_expelling)
        return {"id": invite_id, "state": "expelled" if is_expelling else "revoked"}

    async def remove_peer(self, peer: PeerId, *, is_forced: bool) -> dict[str, Any]:
        """In force when this returns. ``invites`` are those it came by, if it is here."""
        overlay = self._running().overlay
        overlay.credentials.founders_desk()
        is_seen = overlay.credentials.knows(peer) or any(view.peer == peer for view in overlay.board.views())
        check_known(peer, is_known=is_seen or is_forced or peer == overlay.own_peer)
        invites = overlay.credentials.find_invites_of(peer)
        await overlay.revocations.remove_peer(peer)
        return {"peer_id": peer, "state": "removed", "invites": list(invites)}

    async def readmit_peer(self, peer: PeerId) -> dict[str, Any]:
        """In force when this returns; the peer itself asks within a quarter of an hour."""
        await self._running().overlay.revocations.readmit_peer(peer)
        return {"peer_id": peer, "state": "readmitted"}

    async def forgive_peer(self, peer: PeerId) -> dict[str, Any]:
        """In force when this returns."""
        conduct = self._running().overlay.conduct
        was_banned = conduct.is_banned(peer)
        conduct.forgive(peer)
        return {"peer_id": peer, "was_banned": was_banned}

    def _running(self) -> Node:
        if self._node is None:
            raise Refused(ErrorCode.MODEL_NOT_READY, "the node is starting; try again in a moment")
        return self._node

    def new_request_id(self) -> bytes:
        """128 random bits."""
        return secrets.token_bytes(16)

    def random_seed(self) -> int:
        """64 random bits."""
        return secrets.randbits(64)

    def now_unix_s(self) -> int:
        """Wall clock."""
        return int(time.time())

    def status_retry_after_s(self) -> int:
        """Of what nobody could tell more of: by the queues here, or by how long no model is ready already."""
        if self._node is None:
            return pending_retry_after_s(round((time.monotonic() - self._began_s) * MICROS_PER_SECOND))
        return self._node.retry_after_s()
