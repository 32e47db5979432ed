import io

from p2pmesh.app.events import Event, EventName
from p2pmesh.cli.output import PrettyPrinter
from p2pmesh.cli.progress import FetchLine, describe_fetch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def facts(done: int, rate: int = 0, left: int | None = None, total: int = 1000) -> dict[str, object]:
    return {"model": "m", "done_bytes": done, "total_bytes": total, "rate_bytes_per_s": rate, "left_s": left}


def test_a_fetch_is_a_bar_with_rate_and_time_left() -> None:
    assert describe_fetch(facts(500, 100, 5)) == (
        "m [############............] 50 %  500 B of 1000 B, 100 B/s, 5 s left"
    )
    assert describe_fetch(facts(0)) == "m [........................] 0 %  0 B of 1000 B"
    assert "1 h 02 min left" in describe_fetch(facts(1, 1, 3720))
    assert "2 min 05 s left" in describe_fetch(facts(1, 1, 125))
    assert "100 %" in describe_fetch(facts(0, total=0))


def test_a_terminal_is_drawn_over_and_ends_with_a_line() -> None:
    out = Terminal()
    line = FetchLine(out)
    for done in (1, 2):
        line.show(facts(done), f"at {done}")
    line.end()
    line.end()
    assert out.getvalue() == "\r\x1b[Kat 1\r\x1b[Kat 2\n"


def test_a_file_gets_a_line_at_each_tenth() -> None:
    out = io.StringIO()
    line = FetchLine(out)
    for done in (0, 10, 100, 150, 1000):
        line.show(facts(done), f"at {done}")
    line.end()
    assert out.getvalue() == "at 0\nat 100\nat 1000\n"


def test_a_reader_that_is_gone_ends_nothing() -> None:
    out = io.StringIO()
    out.close()
    FetchLine(io.StringIO()).end()
    line = FetchLine(Terminal())
    line._out = out
    line.show(facts(1), "x")


def test_other_events_begin_on_a_line_of_their_own() -> None:
    out = Terminal()
    printer = PrettyPrinter(out, io.StringIO())
    printer.emit(Event(EventName.MODEL_FETCHING, facts(500)))
    printer.emit(Event(EventName.MODEL_FETCHED, {"model": "m", "source": "hf://org/m@c", "path": "/m", "bytes": 1000}))
    assert out.getvalue().splitlines()[-1] == "m is here: hf://org/m@c"
