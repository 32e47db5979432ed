import os
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from p2pmesh.adapters import owner
from p2pmesh.adapters.owner import ThisOwner, sources_here, terminals_idle_s


async def test_the_latest_of_what_tells_counts_and_all_of_it_is_named() -> None:
    signs = await ThisOwner((("keys", lambda: 50), ("mouse", lambda: 7), ("nothing", lambda: None))).signs()
    assert (signs.idle_s, signs.told_by) == (7, ("keys", "mouse"))


async def test_where_nothing_tells_it_is_not_known() -> None:
    signs = await ThisOwner((("nothing", lambda: None),)).signs()
    assert (signs.idle_s, signs.told_by) == (None, ())


def test_the_local_time_follows_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = time.struct_time((2026, 3, 29, 3, 5, 0, 6, 88, 1))
    monkeypatch.setattr(owner.time, "localtime", lambda: shown)
    assert str(ThisOwner(()).local_time()) == "Sun 03:05"


def test_terminals_tell_when_a_key_was_last_pressed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, ago_s in (("old", 900), ("new", 30)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - ago_s, 0))
    users = [SimpleNamespace(terminal=str(tmp_path / name)) for name in ("old", "new", "gone")]
    monkeypatch.setattr(psutil, "users", lambda: [*users, SimpleNamespace(terminal=None)])
    idle_s = terminals_idle_s()
    assert idle_s is not None
    assert 30 <= idle_s < 300
    monkeypatch.setattr(psutil, "users", list)
    assert terminals_idle_s() is None


def test_without_a_display_nothing_is_asked_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    assert owner.X11Idle().idle_s() is None
    monkeypatch.setenv("DISPLAY", ":987")
    assert owner.X11Idle().idle_s() is None  # no such server, or no library
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert owner.X11Idle().idle_s() is None


def test_every_source_of_this_system_answers() -> None:
    for name, source in sources_here():
        idle_s = source()
        assert idle_s is None or idle_s >= 0, name
