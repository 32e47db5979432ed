"""What the system says of its interfaces."""

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
