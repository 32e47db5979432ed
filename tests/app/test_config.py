from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.app.bench_options import BenchDecodeOptions
from p2pmesh.app.config import Discovery, OnDemand, RequirementOptions, UpOptions, check_multiaddr, choose_home
from p2pmesh.app.pool_options import PoolChoice
from p2pmesh.base.errors import ConfigError, ErrorCode

GOOD = UpOptions(home=Path("/home"))


def test_defaults_are_the_issues() -> None:
    assert (GOOD.port, GOOD.console_port, GOOD.split, GOOD.wire_dtype.label) == (9337, 3131, None, "f32")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"port": -1}, "--port"),
        ({"port": 65_536}, "--port"),
        ({"console_port": 70_000}, "--console-port"),
        ({"console_port": 9337}, "--console-port"),
        ({"split": 0}, "--split"),
        ({"discovery": Discovery.NONE, "pool": PoolChoice(is_publishing=True)}, "--discovery none"),
        ({"discovery": Discovery.NONE, "pool": PoolChoice(is_searching=True)}, "--discovery none"),
        ({"host": ""}, "--host"),
        ({"allowed_hosts": ("",)}, "--allow-host"),
        ({"allowed_hosts": ("http://ai.example",)}, "--allow-host"),
        ({"allowed_hosts": ("ai.example:80",)}, "--allow-host"),
        ({"allowed_hosts": ("ai.example",) * 65}, "--allow-host"),
        ({"cors_origins": ("chat.example",)}, "--cors-origin"),
        ({"cors_origins": ("https://chat.example/",)}, "--cors-origin"),
        ({"cors_origins": ("ftp://chat.example",)}, "--cors-origin"),
        ({"split": 65}, "--split"),
        ({"context_tokens": 0}, "--ctx-size"),
        ({"lanes": 0}, "--lanes"),
        ({"lanes": 65}, "--lanes"),
        ({"max_memory_bytes": -1}, "--max-memory"),
        ({"name": ""}, "--name"),
        ({"name": "two\nlines"}, "--name"),
        ({"name": "n" * 257}, "--name"),
        ({"devices": ("",)}, "--device"),
        ({"devices": ("d",) * 65}, "--device"),
        ({"gpu_layers": -1}, "--gpu-layers"),
        ({"max_layers": 0}, "--max-layers"),
        ({"max_layers": 1025}, "--max-layers"),
        ({"excluded_models": ("",)}, "--exclude-model"),
        ({"excluded_models": ("two\nlines",)}, "--exclude-model"),
        ({"excluded_models": ("m",) * 65}, "--exclude-model"),
        ({"models": ("m",), "excluded_models": ("m",)}, "--exclude-model"),
        ({"gpu_layers": 100_000}, "--gpu-layers"),
        ({"idle_unload_s": 0}, "--idle-unload"),
        ({"idle_unload_s": float("nan")}, "--idle-unload"),
        ({"idle_unload_s": 1e9}, "--idle-unload"),
        ({"models": ("",)}, "--model"),
        ({"models": ("m",) * 65}, "--model"),
    ],
)
def test_senseless_values_name_their_flag(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag) as raised:
        replace(GOOD, **changes)
    assert raised.value.code is ErrorCode.CONFIG_INVALID


@pytest.mark.parametrize(
    ("changes", "is_on"),
    [
        ({}, True),
        ({"models": ("m",)}, False),
        ({"is_demo": True}, False),
        ({"max_memory_bytes": 0}, False),
        ({"models": ("m",), "on_demand": OnDemand.ON}, True),
        ({"max_memory_bytes": 0, "on_demand": OnDemand.ON}, True),
        ({"on_demand": OnDemand.OFF}, False),
    ],
)
def test_models_that_nobody_named_are_loaded_where_none_is_named(changes: dict[str, Any], is_on: bool) -> None:
    assert replace(GOOD, **changes).serves_on_demand is is_on


def test_two_free_ports_are_two_ports() -> None:
    assert replace(GOOD, port=0, console_port=0).port == 0


@pytest.mark.parametrize("text", ["/ip4/127.0.0.1/tcp/0", "/ip6/::/tcp/4001", "/dns4/example.com/tcp/1"])
def test_multiaddrs_are_accepted(text: str) -> None:
    assert replace(GOOD, listen=(text,)).listen == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "foo",
        "127.0.0.1:80",
        "/ip4",
        "/ip4/300.1.1.1/tcp/1",
        "/ip4/1.2.3.4/tcp/99999",
        "/nope/1",
        "/ip4/1.2.3.4/tcp/x\n",
        "/ip4/\ud800/tcp/1",
        "/" + "a" * 9999,
    ],
)
def test_malformed_multiaddrs_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen") as raised:
        check_multiaddr(text)
    assert raised.value.code is ErrorCode.ADDRESS_INVALID
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 700


def test_an_announced_address_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match="--announce 'foo' is not a multiaddr"):
        replace(GOOD, announce=("foo",))


def test_the_home_is_the_flag_then_the_variable_then_the_default() -> None:
    assert choose_home("/a", {"P2PMESH_HOME": "/b"}) == Path("/a")
    assert choose_home(None, {"P2PMESH_HOME": "/b"}) == Path("/b")
    assert choose_home(None, {"P2PMESH_HOME": ""}) == Path.home() / ".p2pmesh"
    assert choose_home("relative", {}).is_absolute()


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        choose_home("~no-such-user-here/x", {})
    assert raised.value.code is ErrorCode.HOME_UNUSABLE


def test_bench_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="--peers"):
        BenchDecodeOptions(Path("/h"), peers=(1, 0))
    with pytest.raises(ConfigError, match="--tokens"):
        BenchDecodeOptions(Path("/h"), decode_tokens=0)


def test_an_empty_home_is_refused_and_no_default() -> None:
    with pytest.raises(ConfigError, match="--home is empty") as error:
        choose_home("", {})
    assert error.value.code is ErrorCode.CONFIG_INVALID


def test_a_wrong_version_is_named() -> None:
    with pytest.raises(ConfigError, match="--min-version '2' is no version"):
        RequirementOptions(version_min="2")
