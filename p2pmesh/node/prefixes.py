"""What prompts of one run share, at its driver: who waits for whose rows, and which rows BEGIN names.

Runs ``core.prefix_index`` over the sequences of a driver. What a stage holds of them it says itself
(``core.generation``); the rows are its engine's.
"""

import trio

from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS, PREFILL_SLICE_TOKENS
from p2pmesh.core.batching import SequenceKey
from p2pmesh.core.prefix_index import OpenPrompts, PrefixIndex, PrefixPolicy
from p2pmesh.wire.begin import Prefix, digest_tokens
from p2pmesh.wire.generation import GenerationRequest
from p2pmesh.wire.messages.runs import LoadStage
from p2pmesh.wire.stage import WireDtype


class Prefixes:
    """Of one driver. Where engines cannot share rows (``is_possible`` false) nobody waits and nothing is named."""

    def __init__(self, load: LoadStage, *, is_possible: bool) -> None:
        policy = _policy(load)
        self._is_possible = is_possible
        self._index = PrefixIndex(policy)
        self._open = OpenPrompts(policy)
        self._settled: dict[SequenceKey, trio.Event] = {}
        """Of each open sequence: set once its prompt is read, or it is over."""

    async def wait_for_equal(self, request: GenerationRequest, prompt: tuple[int, ...]) -> None:
        """Until no sequence computes the very rows that this one could share with it.

        Each wait ends with the first token of a sequence or with its end, which has deadlines of its own.
        """
        while self._may_share(request) and (key := self._open.find_coming(prompt, request.request_id)) is not None:
            await self._settled[key].wait()

    def find(self, request: GenerationRequest, prompt: tuple[int, ...]) -> Prefix | None:
        """Rows of another sequence of this run that the prompt begins with."""
        if not self._may_share(request):
            return None
        found = self._index.find(prompt) or self._open.find_read(prompt, request.request_id)
        if found is None:
            return None
        self._index.use(found.key)
        return Prefix(*found.key, found.rows, digest_tokens(prompt[: found.rows]))

    def note_opened(self, key: SequenceKey, prompt: tuple[int, ...]) -> None:
        """A sequence has begun whose prompt others may share."""
        self._open.add(key, prompt)
        self._settled[key] = trio.Event()

    def note_read(self, key: SequenceKey, prompt: tuple[int, ...]) -> None:
        """Its prompt is at every stage now."""
        if key in self._settled:
            self._open.note_read(key)
            self._index.keep(key, prompt)
            self._settled[key].set()

    def note_over(self, key: SequenceKey) -> None:
        """Nobody need wait for it any more."""
        self._open.remove(key)
        settled = self._settled.pop(key, None)
        if settled is not None:
            settled.set()

    def note_reused(self, prefix: Prefix, rows: int) -> None:
        """What stages held of the rows that were named; less than all: it has given way at one."""
        if rows < prefix.rows:
            self._index.drop(prefix.key)

    def _may_share(self, request: GenerationRequest) -> bool:
        return self._is_possible and not request.wants_embedding


def _policy(load: LoadStage) -> PrefixPolicy:
    """With a lossy wire dtype a frame is widened as a whole, so that only whole ones are the same in any prompt."""
    is_exact = load.wire_dtype == WireDtype.F32
    grid = PREFILL_SLICE_TOKENS if is_exact else PREFILL_CHUNK_TOKENS
    return PrefixPolicy(grid, PREFILL_CHUNK_TOKENS, load.lanes, load.context_tokens)
