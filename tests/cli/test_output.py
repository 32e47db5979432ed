import io
import json

import pytest

from p2pmesh.app import events
from p2pmesh.app.events import Event, EventName
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.base.ids import LayerRange, PeerId
from p2pmesh.cli.output import (
    JsonPrinter,
    PrettyPrinter,
    describe_event,
    describe_table,
    describe_value,
    encode_event,
    printable,
)

PEER = PeerId("12D3KooWExampleExampleExample")
STAGE = {"model": "m", "run_id": "0" * 32, "stage": 1, "layers": [3, 9]}
LOADED = {"peer_id": PEER, "layers": [3, 4]}
EVERY = (
    events.listening("http://127.0.0.1:9337", "http://127.0.0.1:3131", PEER),
    events.invite("abc"),
    events.pipeline_ready("m", bytes(16), [(PEER, LayerRange(0, 3)), (PEER, LayerRange(3, 9))]),
    events.ready("http://127.0.0.1:9337", ["m"]),
    events.ready("http://127.0.0.1:9337", []),
    events.error(Refused(ErrorCode.OVERLOADED, "full")),
    Event(EventName.STOPPING),
    *(
        Event(
            EventName.SHARING_CHANGED,
            {"state": state, "reason": reason, "leave_s": 120, "next_change": change, "offered_bytes": 2**30},
        )
        for state, reason, change in (
            ("giving", None, None),
            ("leaving", "owner", "Mon 22:00"),
            ("resting", "hours", None),
        )
    ),
    Event(EventName.CONFIG_RELOADED, {"path": "/h/config.toml", "applied": ["max_layers"], "needs_restart": ["port"]}),
    Event(
        EventName.USAGE,
        {
            "window_s": 600,
            "uptime_s": 7300,
            "tokens": 5,
            "sent_bytes": 2048,
            "received_bytes": 0,
            "tokens_in_all": 99,
            "given_bytes": 2**30,
            "given_layers": 1,
            "users": [
                {"peer_id": PEER, "name": "kitchen\x1b", "model": "m", "tokens": 4},
                {"peer_id": PEER, "name": "", "model": "m", "tokens": 1},
            ],
        },
    ),
    Event(EventName.REPLICA_FETCHING, {"model": "m\x1b", "bytes": 2**30, "reason": "busy", "source": PEER}),
    Event(
        EventName.REPLICA_FETCHED,
        {
            "model": "m\x1b",
            "bytes": 2**30,
            "fetched_bytes": 2**29,
            "resumed_bytes": 2**29,
            "wasted_bytes": 0,
            "sources": [{"peer_id": PEER, "bytes": 2**29}],
        },
    ),
    Event(EventName.LOAD_ON_DEMAND, {"model": "m\x1b", "reason": "no_server", "needed_bytes": 2**30}),
    Event(EventName.MODEL_UNLOADED, {"model": "m", "run_id": "00" * 16, "reason": "idle", "message": "no request"}),
    Event(
        EventName.STAGE_HANDED_OVER,
        {"model": "m\x1b", "run_id": "00" * 16, "stage": 1, "layers": [3, 6], "message": "100 MiB are left"},
    ),
    Event(EventName.UNLOAD_POSTPONED, {"model": "m", "reason": "memory_low", "message": "requests went on"}),
    Event(EventName.MODEL_UNUSABLE, {"path": "/h/models/x.gguf", "message": "not a GGUF model"}),
    Event(EventName.MODEL_ALIASED, {"model": "m", "served_as": "n"}),
    Event(EventName.PEER_JOINED, {"peer_id": PEER, "count": 3}),
    Event(EventName.PEER_LEFT, {"peer_id": PEER, "name": "kitchen\x1b"}),
    Event(EventName.PEER_SUSPECTED, {"peer_id": PEER, "name": ""}),
    Event(EventName.PEER_RECOVERED, {"peer_id": PEER, "name": "kitchen"}),
    Event(EventName.PEER_FAILED, {"peer_id": PEER, "name": "kitchen"}),
    Event(EventName.REPORTER_MUTED, {"peer_id": PEER, "name": "kitchen"}),
    Event(EventName.PEER_THROTTLED, {"peer_id": PEER, "offence": "flood", "seconds": 60}),
    Event(EventName.PEER_UNBANNED, {"peer_id": PEER}),
    Event(EventName.PLACEMENT, {"model": "m", "stages": [{**LOADED, "needed_bytes": 5, "free_bytes": 9_000}]}),
    Event(EventName.WAITING_FOR_PEERS, {"model": "m", "message": "no peer has room"}),
    Event(EventName.STAGE_LOADING, {**STAGE, "bytes": 4096, "source": "kept"}),
    Event(
        EventName.STAGE_FETCHED,
        {**STAGE, "fetched_bytes": 4096, "resumed_bytes": 1024, "wasted_bytes": 0, "sources": [{"peer_id": PEER}]},
    ),
    Event(EventName.ARTIFACT_SOURCE_DROPPED, {"peer_id": PEER, "digest": "ab" * 32, "cause": "wrong"}),
    Event(EventName.STAGE_READY, {**STAGE, "exact_width": 7, "notes": ["slow\x1b"]}),
    Event(EventName.STAGE_FAILED, {**STAGE, "code": "engine_died", "message": "it died"}),
    Event(EventName.MODEL_WITHDRAWN, {"model": "m", "run_id": "0", "code": "peer_lost", "message": "x", "stage": None}),
    Event(EventName.DIRECT_RETURN_FAILED, {"driver": PEER, "message": "no way"}),
    Event(EventName.WIRE_DTYPE_WIDENED, {"model": "m", "run_id": "0"}),
    Event(
        EventName.TPOT_COMPARED,
        {"model": "m", "predicted_tpot_us": 9_000, "measured_tpot_us": 10_000, "error_percent": -10.0, "tokens": 64},
    ),
    Event(EventName.VISIBILITY_ASYMMETRIC, {"peer_id": PEER, "unreached_by": PEER, "witness": PEER}),
)


@pytest.mark.parametrize("event", EVERY)
def test_json_is_one_object_a_line_with_the_name_first(event: Event) -> None:
    line = encode_event(event)
    assert "\n" not in line
    assert line.startswith('{"event":"' + event.name.value)
    assert json.loads(line) == {"event": event.name.value, **event.fields}


@pytest.mark.parametrize("event", EVERY)
def test_sentences_are_printable_lines(event: Event) -> None:
    lines = list(describe_event(event))
    assert lines
    assert all(line.isprintable() for line in lines)


def test_ready_shows_the_url_and_a_command_to_try() -> None:
    text = "\n".join(describe_event(events.ready("http://h:1", ["it's"])))
    assert "http://h:1/v1" in text
    assert "curl http://h:1/v1/chat/completions" in text
    assert "'\\''" in text


def test_a_hostile_name_writes_nothing_to_the_terminal() -> None:
    (line,) = describe_event(Event(EventName.PEER_JOINED, {"peer_id": "P", "name": "\x1b[2J\nready"}))
    assert line == "peer joined: \\x1b[2J\\nready (peer P)"
    assert printable("\ud800\u202e") == "\\ud800\\u202e"


def test_errors_go_to_stderr_in_pretty_only() -> None:
    out, err = io.StringIO(), io.StringIO()
    printer = PrettyPrinter(out, err)
    printer.emit(events.error(Refused(ErrorCode.OVERLOADED, "full")))
    printer.emit(events.invite("abc"))
    assert err.getvalue() == "p2pmesh: full\n"
    assert "--join abc" in out.getvalue()
    JsonPrinter(out := io.StringIO()).emit(events.error(Refused(ErrorCode.OVERLOADED, "full")))
    assert json.loads(out.getvalue()) == {"event": "error", "code": "overloaded", "message": "full"}


class BrokenPipe(io.StringIO):
    """A stream whose reader has left."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        raise BrokenPipeError


def test_a_reader_that_left_does_not_end_the_node() -> None:
    stream = BrokenPipe()
    printer = JsonPrinter(stream)
    printer.emit(events.invite("a"))
    printer.emit(events.invite("b"))
    assert stream.writes == 1


class FullDisk(io.StringIO):
    """A log on a disk that is full for one line."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            self.is_full = False
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_log_on_a_full_disk_loses_lines_and_goes_on() -> None:
    printer = JsonPrinter(stream := FullDisk())
    printer.emit(events.invite("a"))
    printer.emit(events.invite("b"))
    assert stream.getvalue() == '{"event":"invite","invite":"b"}\n'


def test_values_are_indented() -> None:
    value = {"a": 1, "b": {"c": [1, 2], "d": None}, "e": [{"f": "x\n"}], "g": {}}
    assert list(describe_value(value)) == [
        "a: 1",
        "b:",
        "  c: [1, 2]",
        "  d: null",
        "e:",
        "  1:",
        "    f: x\\n",
        "g: {}",
    ]


def test_a_table_is_aligned() -> None:
    rows = [{"name": "a", "layer_count": 5, "path": "/x"}, {"name": "long", "layer_count": 12, "path": "/y"}]
    assert list(describe_table(rows)) == ["name  layer count  path", "a     5            /x", "long  12           /y"]
    assert list(describe_table([])) == []


def test_a_peer_is_called_by_its_name_and_the_end_of_its_id() -> None:
    (line,) = describe_event(Event(EventName.PEER_FAILED, {"peer_id": PEER, "name": "kitchen"}))
    assert line.startswith(f"kitchen (peer {PEER[-12:]}) is gone")
    (line,) = describe_event(Event(EventName.PEER_LEFT, {"peer_id": PEER, "name": ""}))
    assert line == f"peer {PEER[-12:]} has left"


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "has_code"), [("120", True), ("40", False)])
def test_a_terminal_shows_an_invite_as_a_code_where_it_fits(
    monkeypatch: pytest.MonkeyPatch, columns: str, has_code: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for out, is_terminal in ((Terminal(), True), (io.StringIO(), False)):
        PrettyPrinter(out, io.StringIO()).emit(events.invite("p2pmesh2-" + "A" * 300))
        assert ("\u2580" in out.getvalue()) == (has_code and is_terminal)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(EventName.PEER_JOINED, {"peer_id": "12D3KooWabcdefghijkl"}), "peer joined: peer abcdefghijkl"),
        (
            Event(EventName.PEER_JOINED, {"peer_id": "12D3KooWabcdefghijkl", "name": "attic"}),
            "peer joined: attic (peer abcdefghijkl)",
        ),
        (
            Event(EventName.PEER_REFUSED, {"peer_id": "P", "code": "x", "message": "it is late", "count": 3}),
            "peer P is not let in (3 times): it is late",
        ),
        (
            Event(EventName.PUT_OUT, {"code": "x", "message": "ask the founder", "retry_s": 900.0}),
            "this node is put out of the mesh: ask the founder; it asks again in 15 minutes",
        ),
        (
            Event(EventName.JOIN_FAILED, {"code": "x", "message": "nobody answers", "retry_s": 5.0}),
            "no peer could be joined: nobody answers; another try follows in 5 s",
        ),
        (
            Event(EventName.EVENTS_FOLDED, {"folded": "peer_left", "peer_id": None, "count": 9, "window_s": 60}),
            "9 more times `peer left` about other peers within 60 s",
        ),
        (
            Event(EventName.NOT_ROUTABLE, {"models": ["a", "b"], "count": 5}),
            "no longer routable from here: a, b and 3 more",
        ),
    ],
    ids=str,
)
def test_people_read_sentences(event: Event, text: str) -> None:
    assert list(describe_event(event)) == [text]


def test_what_a_file_cost_and_why_a_source_was_left_is_told() -> None:
    sources = [{"peer_id": PEER, "bytes": 3 * 2**20}, {"peer_id": "other", "bytes": 2**20}]
    fetched = {**STAGE, "fetched_bytes": 4 * 2**20, "resumed_bytes": 2**20, "wasted_bytes": 0, "sources": sources}
    assert list(describe_event(Event(EventName.STAGE_FETCHED, fetched))) == [
        "stage 1 of m, layers 3 to 8 is here: 4.0 MiB from 2 peers, 1.0 MiB were here already"
    ]
    left = {"peer_id": PEER, "digest": "ab" * 32, "cause": "slow"}
    (line,) = describe_event(Event(EventName.ARTIFACT_SOURCE_DROPPED, left))
    assert line == f"the file abababababab is taken from others: peer {PEER[-12:]} is too slow"


def test_stages_are_told_in_sentences_not_in_values() -> None:
    (ready, note) = describe_event(
        Event(EventName.STAGE_READY, {**STAGE, "exact_width": 7, "notes": ["calls are padded"]})
    )
    assert ready == "stage 1 of m, layers 3 to 8 is ready here, for 7 rows a step"
    assert note == "  calls are padded"
    (placed, first) = describe_event(
        Event(EventName.PLACEMENT, {"model": "m", "stages": [{**LOADED, "needed_bytes": 5, "free_bytes": 9_000}]})
    )
    assert placed == "m is placed on 1 peer"
    assert first == f"  layer 3 on {PEER[-12:]}: needs 5 B of 8.8 KiB"


@pytest.mark.parametrize("event", EVERY)
def test_no_sentence_shows_how_a_program_would_write_a_value(event: Event) -> None:
    text = "\n".join(line for line in describe_event(event) if "curl" not in line)
    assert not set("[]{}") & set(text)


def test_what_was_given_is_told_in_words() -> None:
    (event,) = (one for one in EVERY if one.name is EventName.USAGE)
    first, *users = describe_event(event)
    assert first == (
        "last 10 minutes: 5 tokens for 2 users, sent 2.0 KiB, got 0 B; given now: 1.0 GiB in 1 layer; up 2 hours, "
        "99 tokens in all"
    )
    assert users == ["  kitchen\\x1b: 4 tokens of m", f"  peer {PEER[-12:]}: 1 token of m"]
