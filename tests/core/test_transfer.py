"""An artifact from several sources: every piece once, whoever fails; bounded repeats; an end in any case."""

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import KIB, MIB, MICROS_PER_SECOND, Micros
from p2pmesh.core.transfer import (
    AskPieces,
    CancelRequest,
    Cause,
    Complete,
    DeadlinePassed,
    DropSource,
    Effect,
    Event,
    GiveUp,
    PieceVerified,
    RequestFailed,
    SeekEnded,
    SeekSources,
    SourceFound,
    TransferMachine,
    TransferPolicy,
    TransferStarted,
)

A, B, C = PeerId("A"), PeerId("B"), PeerId("C")
PIECE = 256 * KIB
SECOND = MICROS_PER_SECOND
POLICY = TransferPolicy()


class Driven:
    """A machine, and what it has asked for and not heard of yet."""

    def __init__(self, pieces: int, kept: tuple[int, ...] = (), policy: TransferPolicy = POLICY) -> None:
        self.machine = TransferMachine(pieces, PIECE, kept, policy)
        self.now = 0
        self.open: dict[int, AskPieces] = {}
        self.next: dict[int, int] = {}
        self.told: list[Effect] = []
        self.feed(TransferStarted())

    def feed(self, event: Event) -> tuple[Effect, ...]:
        effects = self.machine.handle(event, Micros(self.now))
        for effect in effects:
            match effect:
                case AskPieces(request, _, first, _):
                    self.open[request], self.next[request] = effect, first
                case CancelRequest(request):
                    self.open.pop(request, None)
        self.told += effects
        return effects

    def bring(self, request: int) -> tuple[Effect, ...]:
        """The next piece of a request comes."""
        asked, piece = self.open[request], self.next[request]
        self.next[request] += 1
        if self.next[request] == asked.first + asked.count:
            del self.open[request]
        return self.feed(PieceVerified(request, piece))

    def fail(self, request: int, cause: Cause) -> tuple[Effect, ...]:
        del self.open[request]
        return self.feed(RequestFailed(request, cause))

    def of(self, peer: PeerId) -> list[int]:
        return [request for request, asked in self.open.items() if asked.peer == peer]

    def run(self, us_per_piece: dict[PeerId, int]) -> None:
        """All sources bring what they are asked for, each at its pace, until nothing is open."""
        while self.open:
            due = {peer: us for peer, us in us_per_piece.items() if self.of(peer)}
            step = min(due, key=lambda peer: (due[peer], peer))
            self.now += due[step]
            self.bring(self.of(step)[0])


def test_a_single_source_gives_all_pieces_in_their_order() -> None:
    driven = Driven(40)
    driven.feed(SourceFound(A))
    driven.run({A: 10_000})
    assert driven.told[-1] == Complete()
    asked = [effect for effect in driven.told if isinstance(effect, AskPieces)]
    assert [ask.first for ask in asked] == sorted(ask.first for ask in asked)
    assert sum(ask.count for ask in asked) == 40
    assert driven.machine.deadline() is None


def test_what_is_here_already_is_not_asked_for() -> None:
    driven = Driven(10, kept=(0, 1, 4, 9))
    driven.feed(SourceFound(A))
    driven.run({A: 10_000})
    asked = [p for e in driven.told if isinstance(e, AskPieces) for p in range(e.first, e.first + e.count)]
    assert asked == [2, 3, 5, 6, 7, 8]


def test_a_whole_file_needs_nobody() -> None:
    assert Driven(2, kept=(0, 1)).told == [Complete()]


def test_a_new_source_is_tried_with_one_request_and_the_fast_one_gets_more() -> None:
    driven = Driven(400)
    driven.feed(SourceFound(A))
    assert len(driven.open) == 1
    driven.feed(SourceFound(B))
    assert [asked.peer for asked in driven.open.values()] == [A, B]
    driven.now += 5_000
    driven.bring(driven.of(A)[0])
    assert len(driven.of(A)) == POLICY.per_source
    assert driven.open[driven.of(A)[-1]].count == POLICY.request_bytes // PIECE


def test_a_slow_source_is_asked_for_little_at_a_time() -> None:
    driven = Driven(400)
    driven.feed(SourceFound(A))
    for _ in range(4):
        driven.now += 2 * SECOND
        driven.bring(driven.of(A)[0])
    assert driven.open[driven.of(A)[-1]].count == 1


def test_pieces_of_a_lost_source_go_to_the_others() -> None:
    driven = Driven(16)
    for peer in (A, B):
        driven.feed(SourceFound(peer))
    driven.now += 10_000
    driven.bring(driven.of(A)[0])
    lost = driven.of(A)
    told = driven.fail(lost[0], Cause.LOST)
    assert DropSource(A, Cause.LOST) in told
    assert not driven.of(A)
    driven.run({B: 10_000})
    assert driven.told[-1] == Complete()


def test_whoever_sent_wrong_bytes_is_never_asked_again() -> None:
    driven = Driven(8)
    driven.feed(SourceFound(A))
    driven.feed(SeekEnded())
    assert driven.fail(driven.of(A)[0], Cause.WRONG) == (DropSource(A, Cause.WRONG), SeekSources())
    driven.feed(SourceFound(A))
    (end,) = driven.feed(SeekEnded())
    assert isinstance(end, GiveUp)
    assert (end.cause, "A wrong" in end.text) == (Cause.WRONG, True)


def test_a_lost_source_may_be_found_again_a_few_times() -> None:
    driven = Driven(8)
    driven.feed(SourceFound(A))
    for _ in range(POLICY.max_returns):
        driven.fail(driven.of(A)[0], Cause.LOST)
        driven.feed(SourceFound(A))
        driven.feed(SeekEnded())
    driven.fail(driven.of(A)[0], Cause.LOST)
    driven.feed(SourceFound(A))
    assert not driven.open


def test_a_source_that_brings_pieces_in_between_may_be_lost_any_number_of_times() -> None:
    driven = Driven(40)
    driven.feed(SourceFound(A))
    for _ in range(3 * POLICY.max_returns):
        driven.now += 10_000
        driven.bring(driven.of(A)[0])
        driven.fail(driven.of(A)[0], Cause.LOST)
        driven.feed(SourceFound(A))
        driven.feed(SeekEnded())
        assert driven.open


def test_a_source_that_refuses_for_seconds_is_waited_for() -> None:
    """It is found at once and lost at once, as one is whose process starts again."""
    driven = Driven(8)
    searched = [driven.now]
    while driven.machine.deadline() is not None:
        driven.feed(SourceFound(A))
        told = driven.fail(driven.of(A)[0], Cause.LOST) if driven.of(A) else ()
        told += driven.feed(SeekEnded())
        due = driven.machine.deadline()
        if SeekSources() not in told and due is not None:
            driven.now = due
            assert SeekSources() in driven.feed(DeadlinePassed())
        searched.append(driven.now)
    assert isinstance(driven.told[-1], GiveUp)
    assert searched == [0, 0, *(n * POLICY.seek_again_us for n in range(1, POLICY.max_seeks - 1)), searched[-1]]
    assert searched[-1] <= POLICY.max_seeks * POLICY.seek_again_us


def test_whoever_may_still_come_is_waited_for() -> None:
    """All that were found do not have it, but the search goes on."""
    driven = Driven(8)
    driven.feed(SourceFound(A))
    driven.fail(driven.of(A)[0], Cause.UNKNOWN)
    for _ in range(2):
        driven.feed(SeekEnded(is_whole=False))
    assert driven.machine.deadline() == POLICY.seek_again_us
    driven.feed(SourceFound(B))
    assert driven.of(B)


def test_a_search_that_brings_nobody_is_repeated_and_ends() -> None:
    driven = Driven(8)
    assert driven.told == [SeekSources()]
    for _ in range(POLICY.max_seeks - 1):
        assert driven.feed(SeekEnded()) == ()
        due = driven.machine.deadline()
        assert due is not None
        driven.now = due
        assert driven.feed(DeadlinePassed()) == (SeekSources(),)
    (end,) = driven.feed(SeekEnded())
    assert isinstance(end, GiveUp)
    assert end.cause is None


def test_others_are_searched_again_while_sources_are_few() -> None:
    driven = Driven(400)
    driven.feed(SourceFound(A))
    assert driven.feed(SeekEnded()) == ()
    for _ in range(2):
        for _ in range(6):
            driven.now += 10 * SECOND
            driven.bring(driven.of(A)[0])
        assert SeekSources() in driven.feed(DeadlinePassed())
        assert driven.feed(SeekEnded()) == ()
    for peer in (B, C):
        driven.feed(SourceFound(peer))
    driven.now += 60 * SECOND
    told = driven.feed(DeadlinePassed())
    assert SeekSources() in told
    assert driven.feed(SourceFound(A)) is not None


def test_others_are_searched_again_when_sources_become_few() -> None:
    driven = Driven(400)
    for peer in (A, B, C):
        driven.feed(SourceFound(peer))
    driven.feed(SeekEnded())
    for peer in (B, C):
        driven.fail(driven.of(peer)[0], Cause.LOST)
    for _ in range(6):
        driven.now += 10 * SECOND
        driven.bring(driven.of(A)[0])
    assert SeekSources() in driven.feed(DeadlinePassed())


def test_whoever_is_lost_while_a_search_waits_is_searched_for_at_once() -> None:
    driven = Driven(8)
    driven.feed(SourceFound(A))
    driven.feed(SeekEnded())
    assert SeekSources() in driven.fail(driven.of(A)[0], Cause.LOST)


def test_a_busy_source_is_asked_again_later() -> None:
    driven = Driven(8)
    driven.feed(SourceFound(A))
    assert driven.fail(driven.of(A)[0], Cause.BUSY) == ()
    assert driven.machine.deadline() == POLICY.busy_us
    driven.now = POLICY.busy_us
    (ask,) = driven.feed(DeadlinePassed())
    assert isinstance(ask, AskPieces)


def test_a_trickle_is_given_up_by_its_deadline_which_follows_the_rate() -> None:
    driven = Driven(64)
    for peer in (A, B):
        driven.feed(SourceFound(peer))
    for _ in range(3):
        driven.now += 10_000
        driven.bring(driven.of(B)[0])
    due = driven.machine.deadline()
    assert due == POLICY.shortest_patience_us
    driven.now = due
    assert DropSource(A, Cause.SLOW) in driven.feed(DeadlinePassed())
    driven.run({B: 10_000})
    assert driven.told[-1] == Complete()


def test_patience_grows_with_pieces_that_take_long() -> None:
    machine = TransferMachine(8, 4 * MIB)
    machine.handle(TransferStarted(), Micros(0))
    machine.handle(SourceFound(A), Micros(0))
    assert machine.deadline() == 4 * 64 * SECOND  # 4 MiB at 64 KiB/s, four times over


def test_nothing_for_long_is_the_end_whatever_goes_on() -> None:
    driven = Driven(8)
    driven.feed(SourceFound(A))
    driven.now = POLICY.stall_us
    (end,) = driven.feed(DeadlinePassed())
    assert isinstance(end, GiveUp)
    assert driven.feed(SourceFound(B)) == ()


def test_before_it_began_nothing_is_late() -> None:
    assert TransferMachine(8, PIECE).deadline() is None


def test_the_last_pieces_of_a_slow_source_are_asked_of_a_fast_one_too() -> None:
    driven = Driven(9)
    for peer in (A, B):
        driven.feed(SourceFound(peer))
    slow = driven.of(A)[0]
    driven.now += 10_000
    while driven.of(B):
        driven.bring(driven.of(B)[0])
        driven.now += 10_000
    assert driven.told[-1] == Complete()
    assert CancelRequest(slow) in driven.told
    doubled = [e for e in driven.told if isinstance(e, AskPieces) and e.peer == B and e.first < 4]
    assert 0 < len(doubled) <= POLICY.max_duplicates


def test_a_request_is_over_when_the_rest_of_it_came_from_others() -> None:
    driven = Driven(17)
    for peer in (A, C, B):
        driven.feed(SourceFound(peer))
    slow, first = driven.of(A)[0], driven.open[driven.of(A)[0]].first
    while driven.of(B) and not all(driven.machine.is_here(first + n) for n in (1, 2, 3)):
        driven.now += 10_000
        driven.bring(next(request for request in driven.of(B) if driven.next[request] != first))
    driven.now += SECOND
    assert CancelRequest(slow) in driven.bring(slow)
    assert driven.machine.left > 0


def test_a_piece_of_a_request_that_was_given_up_counts_all_the_same() -> None:
    driven = Driven(4)
    driven.feed(SourceFound(A))
    (request,) = driven.open
    driven.fail(request, Cause.LOST)
    driven.feed(PieceVerified(request, 1))
    driven.feed(SourceFound(B))
    asked = [p for e in driven.open.values() for p in range(e.first, e.first + e.count)]
    assert asked == [0]  # a row ends where a piece is here
    assert driven.machine.left == 3


def test_made_up_holders_keep_nobody_out() -> None:
    driven = Driven(40)
    for number in range(POLICY.max_sources):
        peer = PeerId(f"made-up-{number}")
        driven.feed(SourceFound(peer))
        driven.fail(driven.of(peer)[0], Cause.UNKNOWN)
    driven.feed(SourceFound(A))
    assert driven.of(A)
    for number in range(POLICY.max_sources):
        driven.feed(SourceFound(PeerId(f"wrong-{number}")))
    assert len(driven.machine._sources) == POLICY.max_sources


def test_no_more_sources_are_taken_than_there_is_room_for() -> None:
    driven = Driven(4)
    for number in range(POLICY.max_sources + 5):
        driven.feed(SourceFound(PeerId(f"peer-{number}")))
    assert len(driven.machine.sources) == POLICY.max_sources
    assert len(driven.open) <= POLICY.in_all


# --- any order


@dataclass
class Tally:
    """What a transfer cost."""

    writes: dict[int, int]
    twice: int = 0
    """Pieces that came though they were here."""


class AnyOrder(RuleBasedStateMachine):
    """Sources come, bring pieces, fail and are found again in any order."""

    @initialize(pieces=st.integers(1, 60), kept=st.sets(st.integers(0, 59), max_size=20))
    def begin(self, pieces: int, kept: set[int]) -> None:
        self.pieces = pieces
        self.kept = tuple(sorted(piece for piece in kept if piece < pieces))
        self.driven = Driven(pieces, self.kept, replace(POLICY, in_all=4, per_source=2, max_duplicates=5))
        self.tally = Tally({})
        self.is_seeking = SeekSources() in self.driven.told

    def do(self, effects: tuple[Effect, ...]) -> None:
        if SeekSources() in effects:
            assert not self.is_seeking
            self.is_seeking = True

    @property
    def is_over(self) -> bool:
        return any(isinstance(effect, Complete | GiveUp) for effect in self.driven.told)

    @rule(peer=st.sampled_from("ABCDEF"))
    def find(self, peer: str) -> None:
        self.do(self.driven.feed(SourceFound(PeerId(peer))))

    @precondition(lambda self: self.driven.open and not self.is_over)
    @rule(which=st.integers(0, 10), us=st.integers(0, 3 * SECOND))
    def bring(self, which: int, us: int) -> None:
        request = sorted(self.driven.open)[which % len(self.driven.open)]
        self.driven.now += us
        piece = self.driven.next[request]
        if self.driven.machine.is_here(piece):
            self.tally.twice += 1
        else:
            self.tally.writes[piece] = self.tally.writes.get(piece, 0) + 1
        self.do(self.driven.bring(request))

    @precondition(lambda self: self.driven.open and not self.is_over)
    @rule(which=st.integers(0, 10), cause=st.sampled_from(Cause))
    def fail(self, which: int, cause: Cause) -> None:
        request = sorted(self.driven.open)[which % len(self.driven.open)]
        self.do(self.driven.fail(request, cause))

    @precondition(lambda self: self.driven.machine.deadline() is not None)
    @rule()
    def wait(self) -> None:
        due = self.driven.machine.deadline()
        assert due is not None
        self.driven.now = max(self.driven.now, due)
        before = self.driven.machine.deadline()
        self.do(self.driven.feed(DeadlinePassed()))
        after = self.driven.machine.deadline()
        assert after is None or after > self.driven.now or after != before, "it would be woken for nothing for ever"

    @precondition(lambda self: self.is_seeking)
    @rule(is_whole=st.booleans())
    def end_search(self, is_whole: bool) -> None:
        self.is_seeking = False
        self.do(self.driven.feed(SeekEnded(is_whole)))

    @invariant()
    def every_piece_is_written_at_most_once_and_none_that_was_here(self) -> None:
        if hasattr(self, "tally"):
            assert all(count == 1 for count in self.tally.writes.values())
            assert not set(self.tally.writes) & set(self.kept)
            here = len(self.tally.writes) + len(self.kept)
            assert self.driven.machine.left == self.pieces - here

    @invariant()
    def few_pieces_are_under_way_twice(self) -> None:
        if not hasattr(self, "tally"):
            return
        under_way = [
            piece
            for request, ask in self.driven.open.items()
            for piece in range(self.driven.next[request], ask.first + ask.count)
        ]
        assert len(under_way) - len(set(under_way)) <= 5
        assert len(self.driven.open) <= 4

    @invariant()
    def what_comes_twice_is_bounded_by_what_broke(self) -> None:
        """Only what was asked of two on purpose; of a request that ends early the piece under way is lost, no other."""
        if hasattr(self, "tally"):
            assert self.tally.twice <= 5

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if hasattr(self, "tally") and not self.is_over:
            machine = self.driven.machine
            assert self.driven.open or self.is_seeking or machine.deadline() is not None
            assert machine.sources or self.is_seeking or machine.deadline() is not None

    def teardown(self) -> None:
        """Whatever happened: one honest source that is new ends it."""
        if hasattr(self, "tally") and not self.is_over:
            good = PeerId("good")
            self.driven.feed(SourceFound(good))
            for _ in range(10_000):
                if self.is_over:
                    break
                mine = self.driven.of(good)
                if mine:
                    self.driven.now += 1000
                    self.driven.bring(mine[0])
                else:
                    due = self.driven.machine.deadline()
                    assert due is not None
                    self.driven.now = max(self.driven.now, due)
                    for request in list(self.driven.open):
                        self.driven.fail(request, Cause.LOST) if request in self.driven.open else None
                    self.driven.feed(DeadlinePassed())
            assert self.driven.told[-1] == Complete()
            assert all(self.driven.machine.is_here(piece) for piece in range(self.pieces))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
