import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.app.config_file import MAX_CONFIG_BYTES, ConfigMistakes, Entry, name_nearest, read_entries, read_text
from p2pmesh.base.errors import ConfigError

HERE = Path("config.toml")


def test_each_key_has_the_line_in_which_it_stands() -> None:
    text = '# port = 1\n\nname = """\nport = 2\n"""\nmodel = [\n  "port = 3",\n]\n"port" = 4\n  max_layers=5\n'
    entries = read_entries(text, HERE)
    assert [(one.name, one.line) for one in entries] == [("name", 3), ("model", 6), ("port", 9), ("max_layers", 10)]


def test_a_table_and_a_dotted_key_have_a_line_too() -> None:
    assert [(one.name, one.line) for one in read_entries("a.b = 1\n[share]\nx = 1\n", HERE)] == [("a", 1), ("share", 2)]


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\na = 2\n", 2), ("a = 1\n\nb = \n", 3), ('a = "x\n', 1), ("a = [1,\n", 1), ("=", 1), ("a = [" * 9000, 1)],
)
def test_what_is_no_toml_is_told_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigMistakes) as raised:
        read_entries(text, HERE)
    (mistake,) = raised.value.mistakes
    assert mistake.line == line
    assert raised.value.lines()[0].startswith(f"config.toml:{line}: this is no TOML")


@given(st.text(max_size=200))
def test_any_text_is_entries_or_mistakes(text: str) -> None:
    entries: tuple[Entry, ...] = ()
    with suppress(ConfigMistakes):
        entries = read_entries(text, HERE)
    assert all(one.line <= len(text.splitlines()) for one in entries)


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_text(tmp_path / "none.toml") is None


def test_a_file_that_cannot_be_read_or_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 64 KiB"):
        read_text(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path)


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(ConfigMistakes) as raised:
        read_text(path)
    assert raised.value.mistakes[0].line == 2


def test_a_pipe_is_no_file_of_settings_and_nobody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="no regular file"):
        read_text(path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes("\ufeffport = 1\n".encode())
    assert read_text(path) == "port = 1\n"


def test_the_nearest_key_is_named() -> None:
    assert name_nearest("max-memroy", ("max_memory", "lanes")) == "did you mean max_memory?"
    assert "config show" in name_nearest("zzz", ("max_memory", "lanes"))
