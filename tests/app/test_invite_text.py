"""Where an invite may come from, and in which order."""

import io
from pathlib import Path

import pytest

from p2pmesh.app.invite_text import JOIN_VARIABLE, invite_origin, read_invite_text
from p2pmesh.base.errors import ConfigError, ErrorCode

NOTHING = io.StringIO("")


def test_the_command_line_comes_first_then_a_file_then_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "invite"
    file.write_text("\n  in-file  \nmore\n")
    environment = {JOIN_VARIABLE: " in-variable\n"}
    assert read_invite_text("typed", None, dict(environment), NOTHING) == "typed"
    assert read_invite_text("-", None, dict(environment), io.StringIO("\n\n piped \n")) == "piped"
    assert read_invite_text(None, str(file), dict(environment), NOTHING) == "in-file"
    assert read_invite_text(None, None, environment, NOTHING) == "in-variable"
    assert read_invite_text(None, None, {}, NOTHING) is None


def test_where_it_would_be_read_can_be_told() -> None:
    environment = {JOIN_VARIABLE: "in-variable"}
    assert invite_origin("typed", None, environment) == "--join"
    assert invite_origin("-", None, environment) == "standard input"
    assert invite_origin(None, "invite.txt", environment) == "invite.txt"
    assert invite_origin(None, None, environment) == "$P2PMESH_JOIN"
    assert invite_origin(None, None, {JOIN_VARIABLE: " "}) == "--join"


def test_the_variable_is_taken_away_from_whatever_is_started_later() -> None:
    environment = {JOIN_VARIABLE: "secret", "PATH": "/bin"}
    read_invite_text("typed", None, environment, NOTHING)
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_source_is_told_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "invite"
    file.write_text(text)
    with pytest.raises(ConfigError, match="standard input holds no invite"):
        read_invite_text("-", None, {}, io.StringIO(text))
    with pytest.raises(ConfigError, match="holds no invite") as raised:
        read_invite_text(None, str(file), {}, NOTHING)
    assert raised.value.code is ErrorCode.INVITE_MALFORMED


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as raised:
        read_invite_text(None, str(tmp_path / "none"), {}, NOTHING)
    assert raised.value.code is ErrorCode.CONFIG_INVALID
