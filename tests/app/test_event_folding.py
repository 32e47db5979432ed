"""Events about peers on their way out."""

from p2pmesh.app.event_folding import EventFolding
from p2pmesh.app.events import EventName
from p2pmesh.base.quantities import MICROS_PER_SECOND, Micros
from p2pmesh.core.folding import FoldingPolicy

MINUTE = Micros(60 * MICROS_PER_SECOND)


def test_a_flapping_peer_is_told_three_times_a_minute_and_counted() -> None:
    folding = EventFolding()
    told = [
        event
        for step in range(100)
        for name in (EventName.PEER_SUSPECTED, EventName.PEER_JOINED)
        for event in folding.take(name, {"peer_id": "a"}, Micros(step))
    ]
    assert len(told) == 6
    counts = folding.take_due(Micros(100 + MINUTE))
    assert [event.name for event in counts] == [EventName.EVENTS_FOLDED] * 2
    assert counts[0].fields == {"folded": "peer_suspected", "peer_id": "a", "count": 97, "window_s": 60}
    assert len(folding.take(EventName.PEER_JOINED, {"peer_id": "a"}, Micros(101 + MINUTE))) == 1


def test_other_events_and_other_peers_are_told() -> None:
    folding = EventFolding()
    for number in range(50):
        assert folding.take(EventName.READY, {"models": []}, Micros(0))
        assert folding.take(EventName.PEER_BANNED, {"peer_id": "a"}, Micros(0))
        assert folding.take(EventName.PEER_LEFT, {"peer_id": f"{number}"}, Micros(0))


def test_made_up_peers_beyond_the_bound_share_one_count() -> None:
    folding = EventFolding(FoldingPolicy(capacity=4))
    told = [folding.take(EventName.PEER_JOINED, {"peer_id": f"{number}"}, Micros(0)) for number in range(1000)]
    assert sum(map(len, told)) <= 4 + 3
    (count,) = folding.take_due(MINUTE)
    assert count.fields["peer_id"] is None
    assert count.fields["count"] + sum(map(len, told)) == 1000
