"""Speeds of this node's engines, from what they measured at their loads."""

from p2pmesh.node.speeds import Speeds
from p2pmesh.ports.engine import EngineFacts
from p2pmesh.ports.models import StageReads
from tests.fakes.clock import FakeClock


def test_decoding_reads_all_weights_and_a_prompt_those_of_layers() -> None:
    speeds = Speeds(FakeClock(), None)
    facts = EngineFacts(8, 1, "f", 0, 0, None, frozenset(), decode_us=100, prefill_us=10)
    speeds.note(StageReads("llama", 5_000, 1_000), facts)
    [found] = speeds.known
    assert (found.decode_bytes_per_s, found.prefill_bytes_per_s) == (50_000_000, 400_000_000)
    assert speeds.headline == 50_000_000


def test_what_was_not_measured_is_not_known() -> None:
    speeds = Speeds(FakeClock(), None)
    speeds.note(StageReads("llama", 5_000), EngineFacts(8, 1, "f", 0, 0, None, frozenset(), decode_us=100))
    assert [one.prefill_bytes_per_s for one in speeds.known] == [0]
