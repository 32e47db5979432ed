import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from p2pmesh.app.config import UpOptions
from p2pmesh.app.config_file import Reading
from p2pmesh.app.events import Event, EventName
from p2pmesh.app.live_settings import LOOK_AGAIN_S, LiveSettings
from p2pmesh.base.errors import ConfigError, ErrorCode


class FakeFile:
    def __init__(self, path: Path, **keys: Any) -> None:
        self.path = path
        self.keys: Mapping[str, Any] | None = keys

    def read(self) -> Reading:
        if self.keys is None:
            raise ConfigError(ErrorCode.CONFIG_INVALID, "line 3: no")
        return Reading(UpOptions(self.path.parent, max_layers=self.keys.get("max_layers")), dict(self.keys))


class Running:
    def __init__(self, file: FakeFile) -> None:
        self.file = file
        self.events: list[Event] = []
        self.applied: list[UpOptions] = []
        self.has_applied = trio.Event()
        self.live = LiveSettings(file, file.read(), self.events.append)

    async def apply(self, options: UpOptions) -> None:
        self.applied.append(options)
        self.has_applied.set()


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(FakeFile(tmp_path / "config.toml", max_layers=None, port=1))


async def test_what_can_count_at_once_does_and_the_rest_is_named(running: Running, nursery: trio.Nursery) -> None:
    nursery.start_soon(running.live.watch, running.apply)
    await trio.testing.wait_all_tasks_blocked()
    running.file.keys = {"max_layers": 3, "port": 2}
    told = await running.live.reload()
    assert (told["applied"], told["needs_restart"]) == (["max_layers"], ["port"])
    assert [options.max_layers for options in running.applied] == [3]
    assert running.events[-1].name is EventName.CONFIG_RELOADED
    again = await running.live.reload()
    assert (again["applied"], again["needs_restart"]) == ([], ["port"])
    assert len(running.applied) == 1


async def test_a_broken_file_changes_nothing(running: Running, nursery: trio.Nursery) -> None:
    nursery.start_soon(running.live.watch, running.apply)
    await trio.testing.wait_all_tasks_blocked()
    running.file.keys = None
    with pytest.raises(ConfigError, match="line 3"):
        await running.live.reload()
    await running.live.reload_and_tell()
    assert [event.name for event in running.events] == [EventName.ERROR]
    assert not running.applied


async def test_a_file_that_was_written_is_read(
    running: Running, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    nursery.start_soon(running.live.watch, running.apply)
    await trio.sleep(2 * LOOK_AGAIN_S)
    assert not running.events
    running.file.path.write_text("max_layers = 5\n")
    os.utime(running.file.path, ns=(1, 1))
    running.file.keys = {"max_layers": 5, "port": 1}
    await running.has_applied.wait()
    assert running.applied[0].max_layers == 5


async def test_a_node_that_starts_reads_nothing_again(running: Running) -> None:
    with pytest.raises(ConfigError, match="starting"):
        await running.live.reload()
