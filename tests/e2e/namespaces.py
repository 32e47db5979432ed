"""Machines of a test: network namespaces on one switch, made and deleted by root alone; every packet of one counted."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.peers import START_S, NodeProcess

_SNIFF = """
import socket, sys
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
sniffer.bind(("eth0", 0))
print("ready", flush=True)
while True:
    frame, (_, kind, direction, *_) = sniffer.recvfrom(2048)
    if direction != socket.PACKET_OUTGOING:
        continue
    if kind == 0x0800:
        print("ip4", socket.inet_ntop(socket.AF_INET, frame[30:34]), frame[23], flush=True)
    elif kind == 0x86DD:
        print("ip6", socket.inet_ntop(socket.AF_INET6, frame[38:54]), frame[20], flush=True)
    elif kind == 0x0806:
        print("arp", socket.inet_ntop(socket.AF_INET, frame[38:42]), 0, flush=True)
    else:
        print("other", hex(kind), 0, flush=True)
"""


def require_namespaces() -> None:
    """Skips where this process may not make network namespaces."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux and the command ip (iproute2)")
    if os.geteuid() != 0:
        pytest.skip("network namespaces are made by root alone")
    name = f"lan-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()[:200]}")
    ip("netns", "del", name)


def ip(*arguments: str) -> None:
    """One command of iproute2; fails with what it said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, (arguments, done.stderr)


@dataclass(frozen=True)
class Machine:
    """A namespace with one cable, ``eth0``."""

    name: str

    def ip(self, *arguments: str) -> None:
        """iproute2 on this machine."""
        ip("-n", self.name, *arguments)

    def address(self, *addresses: str) -> None:
        """Gives the cable addresses; where none is of IPv6, the machine has no IPv6 at all."""
        if not any(":" in address for address in addresses):
            self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6")
        for address in addresses:
            nodad = ["nodad"] if ":" in address else []
            self.ip("addr", "add", address, "dev", "eth0", *nodad)

    def add_bridge(self, name: str, address: str) -> None:
        """As a container engine does."""
        self.ip("link", "add", name, "type", "bridge")
        self.ip("addr", "add", address, "dev", name)
        self.ip("link", "set", name, "up")

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """A command on this machine, to its end."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *command], capture_output=True, text=True, timeout=START_S, check=False
        )

    def start(self, folder: Path, *arguments: str) -> NodeProcess:
        """``p2pmesh up`` on this machine, listening on every interface."""
        home = folder / self.name
        command = [
            *("ip", "netns", "exec", self.name, sys.executable, "-m", "p2pmesh", "up", "--home", str(home)),
            *("--port", "0", "--console-port", "0", "--log-format", "json", *arguments),
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        node = NodeProcess(self.name, home, process)
        node.follow()
        return node

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[tuple[str, str, int]]]:
        """Every frame that leaves by the cable: kind, destination, protocol number."""
        sent: list[tuple[str, str, int]] = []
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", _SNIFF], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                kind, destination, protocol = line.split()
                sent.append((kind, destination, int(protocol)))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield sent
        finally:
            process.kill()
            process.wait()
            reader.join(5)
            process.stdout.close()


def clean_up(node: NodeProcess) -> None:
    """Whatever happened, nothing of the node goes on."""
    node.clean_up()
    for pipe in (node.process.stdout, node.process.stderr):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def open_machines(count: int) -> Iterator[list[Machine]]:
    """So many machines on one switch; deleted at the end, whatever happened."""
    prefix = f"lan-{os.getpid()}"
    names = [f"{prefix}-{index}" for index in range(count)]
    switch = f"{prefix}-sw"
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "sw", "type", "bridge")
        ip("-n", switch, "link", "set", "sw", "up")
        for index, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", switch, "link", "add", f"p{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", switch, "link", "set", f"p{index}", "master", "sw", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        yield [Machine(name) for name in names]
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def cut_off(machines: Sequence[Machine]) -> Iterator[None]:
    """They reach each other and nobody else, and nobody is told: as where the cable between two switches is drawn."""
    switch = f"{machines[0].name.rpartition('-')[0]}-sw"
    ports = [f"p{machine.name.rpartition('-')[2]}" for machine in machines]
    ip("-n", switch, "link", "add", "apart", "type", "bridge")
    ip("-n", switch, "link", "set", "apart", "up")
    try:
        for port in ports:
            ip("-n", switch, "link", "set", port, "master", "apart")
        yield
    finally:
        for port in ports:
            ip("-n", switch, "link", "set", port, "master", "sw")
        ip("-n", switch, "link", "del", "apart")
