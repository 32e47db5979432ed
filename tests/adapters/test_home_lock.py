"""One node in a home, one change of its records at a time."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from p2pmesh.adapters.home_lock import hold_home, hold_records
from p2pmesh.base.errors import ConfigError, ErrorCode

Hold = Callable[[Path], AbstractContextManager[Path]]
BOTH = pytest.mark.parametrize("hold", [hold_home, hold_records])


def refusal(hold: Hold, home: Path) -> ErrorCode:
    with pytest.raises(ConfigError) as error, hold(home):
        pass
    assert str(home) in error.value.message
    return error.value.code


@BOTH
def test_a_home_is_made_private_and_held_by_one(hold: Hold, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with hold(home) as held:
        assert held == home
        assert home.stat().st_mode & 0o777 == 0o700
        assert refusal(hold, home) is ErrorCode.HOME_IN_USE
    with hold(home):
        pass


def test_records_change_while_a_node_runs(tmp_path: Path) -> None:
    with hold_home(tmp_path), hold_records(tmp_path):
        pass


@BOTH
def test_a_home_that_cannot_be_made_is_refused(hold: Hold, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(hold, tmp_path / "file" / "home") is ErrorCode.HOME_UNUSABLE
    with pytest.raises(ConfigError, match="it is no directory"), hold(tmp_path / "file"):
        pass
