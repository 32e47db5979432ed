"""What the system says of its interfaces."""

import psutil
import pytest

from p2pmesh.adapters.interfaces import SystemInterfaces
from p2pmesh.core.addresses import LeftOut, why_left_out


def test_loopback_is_among_them_with_its_network() -> None:
    found = {one.address: one for one in SystemInterfaces().survey()}
    loopback = found["127.0.0.1"]
    assert loopback.prefix_bits == 8
    assert loopback.is_up
    assert why_left_out(loopback) is LeftOut.LOOPBACK


def test_addresses_have_no_zone() -> None:
    assert not any("%" in one.address for one in SystemInterfaces().survey())


def test_it_looks_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    clock = [0.0]

    def look() -> dict[str, list[object]]:
        looks.append(clock[0])
        return {}

    monkeypatch.setattr(psutil, "net_if_addrs", look)
    interfaces = SystemInterfaces(lambda: clock[0])
    for clock[0] in (0.0, 0.4, 0.9, 1.0, 1.2, 2.5):
        interfaces.survey()
    assert looks == [0.0, 1.0, 2.5]
