"""Each invariant can fail, and says what is wrong."""

from dataclasses import replace

import pytest

from p2pmesh.base.ids import LayerRange
from p2pmesh.sim.invariants import violations
from p2pmesh.sim.snapshot import PeerSnapshot, RunSnapshot, SequenceSnapshot, Snapshot

PEER = PeerSnapshot(3, admitted=2, waiting=1, known=5)
RUN = RunSnapshot(1, 4, (LayerRange(0, 2), LayerRange(2, 4)), (5, 5), (5, 6), 0)
LIVE = SequenceSnapshot(7, True, 0, 0, 512, 1024, 0)
OVER = replace(LIVE, is_live=False, ends=1, open_tokens=0)
SOUND = Snapshot(9, (PEER,), (RUN,), (LIVE, OVER))


def test_a_sound_state_breaks_nothing() -> None:
    assert violations(SOUND) == ()


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (replace(SOUND, runs=(replace(RUN, ranges=(LayerRange(0, 2), LayerRange(3, 4))),)), "do not tile"),
        (replace(SOUND, runs=(replace(RUN, needed_bytes=(5, 7)),)), "more than its peer offers"),
        (replace(SOUND, runs=(replace(RUN, effects_to_lost=1),)), "1 effects to a lost peer"),
        (replace(SOUND, sequences=(replace(OVER, ends=2),)), "2 ends while over"),
        (replace(SOUND, sequences=(replace(OVER, ends=0),)), "0 ends while over"),
        (replace(SOUND, sequences=(replace(LIVE, ends=1),)), "1 ends while live"),
        (replace(SOUND, sequences=(replace(OVER, effects_after_end=3),)), "3 effects after its end"),
        (replace(SOUND, sequences=(replace(LIVE, late_us=1),)), "deadline passed"),
        (replace(SOUND, sequences=(replace(LIVE, open_tokens=1025),)), "without credit"),
        (replace(SOUND, sequences=(replace(LIVE, open_tokens=-1),)), "without credit"),
        (replace(SOUND, peers=(replace(PEER, waiting=65),)), "65 waiting"),
        (replace(SOUND, peers=(replace(PEER, known=10_001),)), "10001 known"),
        (replace(SOUND, sequences=(LIVE,) * 65), "65 live sequences"),
    ],
)
def test_a_broken_state_is_named_with_its_moment(broken: Snapshot, text: str) -> None:
    (violation,) = violations(broken)
    assert text in violation
    assert violation.startswith("9 us: ")
