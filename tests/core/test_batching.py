"""Which call comes next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.limits import PREFILL_CHUNK_TOKENS
from p2pmesh.core.batching import Batcher, BatchingPolicy, CallKind, key_of
from p2pmesh.wire.stage import FrameKind, StageFrame


def frame(kind: FrameKind, who: int, rows: int = 1, position: int = 0) -> StageFrame:
    return StageFrame(kind, bytes([who]) * 16, bytes(16), 0, position, tuple(range(rows)))


def decode(who: int, rows: int = 1, position: int = 0) -> StageFrame:
    return frame(FrameKind.DECODE, who, rows, position)


def prefill(who: int, position: int = 0, rows: int = 4) -> StageFrame:
    return frame(FrameKind.PREFILL, who, rows, position)


def batcher(width: int = 4, **bounds: int) -> Batcher:
    return Batcher(BatchingPolicy(width, **bounds))


def test_nothing_waits_nothing_runs():
    assert batcher().next_call() is None


def test_decode_gathers_sequences_up_to_the_exact_width():
    queue = batcher(4)
    for who, rows in ((1, 2), (2, 3), (3, 2)):
        queue.add(decode(who, rows))
    assert queue.next_call().frames == (decode(1, 2), decode(3, 2))
    assert queue.next_call().frames == (decode(2, 3),)
    assert len(queue) == 0


def test_a_frame_wider_than_the_width_is_a_call_of_its_own():
    queue = batcher(2)
    queue.add(decode(1, 5))
    queue.add(decode(2))
    assert queue.next_call().frames == (decode(1, 5),)


@pytest.mark.parametrize(
    ("rows", "in_a_row"),
    [(PREFILL_CHUNK_TOKENS, 1), (PREFILL_CHUNK_TOKENS // 2 + 1, 1), (PREFILL_CHUNK_TOKENS // 3, 3)],
)
def test_prompts_delay_a_step_by_the_rows_of_a_chunk(rows, in_a_row):
    queue = batcher()
    for step in range(3):
        queue.add(decode(1, 1, step))
    for who in range(2, 2 + 3 * in_a_row):
        queue.add(prefill(who, rows=rows))
    kinds = [queue.next_call().kind for _ in range(3 + 3 * in_a_row)]
    assert kinds == [*[CallKind.PREFILL] * in_a_row, CallKind.DECODE] * 3


def test_a_prefill_call_is_one_chunk_of_one_sequence():
    queue = batcher()
    queue.add(prefill(1))
    queue.add(prefill(2))
    assert queue.next_call().frames == (prefill(1),)


def test_a_step_that_comes_after_prompts_need_not_wait_for_more_of_them():
    queue = batcher()
    queue.add(prefill(1, rows=PREFILL_CHUNK_TOKENS))
    queue.add(prefill(2))
    assert queue.next_call().kind is CallKind.PREFILL
    queue.add(decode(3))
    assert queue.next_call().kind is CallKind.DECODE


def test_a_sequence_keeps_its_order():
    queue = batcher()
    queue.add(prefill(1))
    queue.add(decode(1, 1, 4))
    assert [queue.next_call().kind for _ in range(2)] == [CallKind.PREFILL, CallKind.DECODE]


def test_dropping_a_sequence_forgets_its_frames_only():
    queue = batcher()
    queue.add(decode(1))
    queue.add(decode(1, 1, 1))
    queue.add(decode(2))
    assert queue.drop(key_of(decode(1))) == 2
    assert queue.drop(key_of(decode(1))) == 0
    assert queue.next_call().frames == (decode(2),)


def test_a_full_queue_has_no_room():
    queue = batcher(max_frames=2)
    queue.add(decode(1))
    queue.add(decode(2))
    assert not queue.has_room()
    with pytest.raises(ValueError, match="full queue"):
        queue.add(decode(3))
    queue.next_call()
    assert queue.has_room()


def test_bodies_are_bounded_in_bytes():
    queue = batcher(max_body_bytes=10)
    queue.add(StageFrame(FrameKind.DECODE, bytes(16), bytes(16), tokens=(1,), body=bytes(10)))
    assert not queue.has_room()


def test_only_rows_are_queued():
    with pytest.raises(ValueError, match="CANCEL"):
        batcher().add(frame(FrameKind.CANCEL, 1))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 6)), max_size=60),
    st.integers(2, 8),
)
def test_every_frame_runs_once_in_the_order_of_its_sequence(arrivals, width):
    queue = batcher(width)
    sent: dict[int, list[int]] = {}
    for number, (who, is_prefill, rows) in enumerate(arrivals):
        kind = FrameKind.PREFILL if is_prefill else FrameKind.DECODE
        queue.add(frame(kind, who, rows, number))
        sent.setdefault(who, []).append(number)
    ran: dict[int, list[int]] = {}
    while (call := queue.next_call()) is not None:
        rows = sum(len(part.tokens) for part in call.frames)
        assert len(call.frames) == 1 or (call.kind is CallKind.DECODE and rows <= width)
        assert len({key_of(part) for part in call.frames}) == len(call.frames)
        for part in call.frames:
            ran.setdefault(part.request_id[0], []).append(part.position)
    assert ran == sent
    assert len(queue) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_the_head_that_waits_longest_is_in_the_next_call_of_its_kind(arrivals):
    queue = batcher(2)
    for number, who in enumerate(arrivals):
        queue.add(decode(who, 1, number))
    while len(queue):
        first = queue.next_call().frames[0].position
        rest = queue.next_call()
        assert rest is None or first < rest.frames[0].position
