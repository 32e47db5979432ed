"""What is asked about public pools, and what contradicts itself."""

from pathlib import Path
from typing import Any

import pytest

from p2pmesh.app.config import UpOptions
from p2pmesh.app.pool_options import DEFAULT_RELAYS, PoolChoice
from p2pmesh.app.up import run_up
from p2pmesh.base.errors import ConfigError, ErrorCode


def test_nobody_has_to_do_with_pools_unasked() -> None:
    assert not PoolChoice().is_asked_for
    assert PoolChoice(is_publishing=True).is_asked_for
    assert PoolChoice(is_searching=True).is_asked_for
    assert PoolChoice().relays_to_use == DEFAULT_RELAYS
    assert PoolChoice(relays=("ws://127.0.0.1:1",)).relays_to_use == ("ws://127.0.0.1:1",)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"name": "x" * 65}, "--pool-name"),
        ({"name": "a\nb"}, "--pool-name"),
        ({"region": ""}, "--region"),
        ({"max_clients": -1}, "--max-clients"),
        ({"max_clients": 65_537}, "--max-clients"),
        ({"avoided": frozenset({"bob"})}, "--avoid-pool"),
        ({"avoided": frozenset(f"{n:032x}" for n in range(257))}, "--avoid-pool"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(given: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        PoolChoice(**given)


@pytest.mark.parametrize("given", [{"invite": "p2pmesh2-x"}, {"is_rejoining": True}])
def test_who_joins_by_an_invite_looks_for_no_pool(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--auto"):
        UpOptions(tmp_path, pool=PoolChoice(is_searching=True), **given)


def test_a_relay_that_is_none_is_refused_before_a_home_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    pool = PoolChoice(is_publishing=True, relays=("http://example.org",))
    with pytest.raises(ConfigError, match="--nostr-relay") as raised:
        run_up(UpOptions(home, port=0, console_port=0, pool=pool), lambda event: None)
    assert raised.value.code is ErrorCode.ADDRESS_INVALID
    assert not home.exists()
