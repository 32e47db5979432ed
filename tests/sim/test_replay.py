"""Recordings: there and back, and what is wrong with a wrong one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core import admission, coordination, generation
from p2pmesh.core.membership import Announced, AnnouncementReceived, ConnectionLost, DeadlinePassed
from p2pmesh.core.text import TextAssembler
from p2pmesh.sim.replay import MACHINES, Recorded, decode_recording, encode_recording, event_classes, replay
from p2pmesh.wire.announcement import Announcement, ServedModel
from p2pmesh.wire.token_report import TokenReport

MODEL = ServedModel("m", "0" * 64, bytes(range(16)), 2, 4096)
SAID = Announcement("a", "0" * 32, "näme", "1", 1, 2, 3, ("/ip4/1.2.3.4",), 10, 5, (MODEL,))

st.register_type_strategy(Announced, st.from_type(Announcement))
LOGPROBS = st.floats(allow_nan=False)  # which no report holds, and which equals not even itself
TOPS = st.lists(st.tuples(st.integers(), LOGPROBS), max_size=3).map(tuple)
st.register_type_strategy(TokenReport, st.builds(TokenReport, LOGPROBS, TOPS))


@pytest.mark.parametrize("machine", MACHINES)
def test_every_event_of_every_machine_comes_back_as_it_was(machine: str) -> None:
    @given(st.lists(st.one_of(*(st.from_type(kind) for kind in event_classes(machine).values()))))
    def holds(events: list[object]) -> None:
        recorded = tuple((Micros(number), event) for number, event in enumerate(events))
        assert decode_recording(encode_recording(machine, recorded)) == (machine, recorded)

    holds()


def test_nested_records_bytes_and_times_come_back() -> None:
    recorded: tuple[Recorded, ...] = (
        (Micros(5), AnnouncementReceived(SAID, 90)),
        (Micros(5), ConnectionLost(PeerId("a"))),
        (Micros(9), DeadlinePassed()),
    )
    text = encode_recording("membership", recorded)
    assert decode_recording(text) == ("membership", recorded)
    assert json.loads(text.splitlines()[2]) == {"now": 5, "event": "ConnectionLost", "fields": {"peer": "a"}}


def test_a_recording_written_by_hand_is_replayed() -> None:
    text = """{"machine": "generation"}
        {"now": 0, "event": "Begin", "fields": {}}
        {"now": 40, "event": "TokensArrived", "fields": {"position": 2, "tokens": [1]}}
        {"now": 15000040, "event": "DeadlinePassed"}
    """
    _, events = decode_recording(text)
    policy = generation.GenerationPolicy(4, 2, 64)
    machine = generation.GenerationMachine((0, 0), None, frozenset(), TextAssembler([b"a", b"b"]), policy)
    effects = replay(machine, events)
    assert effects[2:4] == ((40, generation.SendDecode(2, 1)), (40, generation.Emit((1,), "b")))
    assert isinstance(effects[-1][1], generation.Fail)
    assert effects[-1][0] == 15_000_040


def test_an_event_of_another_machine_is_a_bug_of_the_caller() -> None:
    with pytest.raises(TypeError, match="no event of admission"):
        encode_recording("admission", [(Micros(0), coordination.RunStarted())])
    with pytest.raises(TypeError, match="no event of admission"):
        encode_recording("admission", [(Micros(0), generation.DeadlinePassed())])
    assert encode_recording("admission", [(Micros(0), admission.DeadlinePassed())])


HEAD = '{"machine": "admission"}\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("{}", "no machine is called"),
        ('{"machine": "routing"}', "routing"),
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (" " + "x" * 1_000_001, "longer than"),
        (HEAD + "x", "line 2"),
        (HEAD + '{"event": "Connected", "fields": {"peer": "a"}}', "now"),
        (HEAD + '{"now": -1, "event": "Connected", "fields": {"peer": "a"}}', "now"),
        (HEAD + '{"now": true, "event": "Connected", "fields": {"peer": "a"}}', "now"),
        (HEAD + '{"now": 1, "event": "Begin"}', "known"),
        (HEAD + '{"now": 1, "event": "Connected"}', "fields peer"),
        (HEAD + '{"now": 1, "event": "Connected", "fields": []}', "fields peer"),
        (HEAD + '{"now": 1, "event": "Connected", "fields": {"peer": 3}}', "3 is no str"),
        (HEAD + '{"now": 1, "event": "Connected", "fields": {"peer": "a", "x": 1}}', "fields peer"),
        (HEAD + '{"now": 1, "event": "HelloRefused", "fields": {"peer": "a", "code": "nonsense"}}', "nonsense"),
        (HEAD + '{"now": 2, "event": "DeadlinePassed"}\n{"now": 1, "event": "DeadlinePassed"}', "time goes back"),
        ('{"machine": "generation"}\n{"now": 1, "event": "TokensArrived", "fields": {"position": 1, "tokens": 2}}',
         "2 is no list"),
    ],
)  # fmt: skip
def test_a_wrong_recording_is_refused_in_one_line(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_recording(text)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    assert what in caught.value.message
    assert "\n" not in caught.value.message
