"""What cannot work ends with one line, a code of its own, and nothing half written."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from p2pmesh.adapters.p2p.host import open_network
from p2pmesh.base.errors import ErrorCode
from p2pmesh.base.limits import CONTROL_PROTOCOL
from p2pmesh.cli.exit_codes import EXIT_CODES, USAGE
from p2pmesh.ports.network import ByteStream
from p2pmesh.wire.invite import Invite, encode_invite
from p2pmesh.wire.requirements import MeshRequirements
from tests.e2e.peers import Peers, run_command
from tests.fakes.identity import fake_identity
from tests.fakes.tiny_gguf import encode_gguf, text

TRUNCATIONS = 20
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def up(home: Path, *arguments: str) -> "tuple[int, str]":
    """``p2pmesh up`` that must fail by itself; its exit code and its one line, or three where an address is shown."""
    ended = run_command(
        *("up", "--port", "0", "--console-port", "0", "--log-format", "json", "--listen", LOOPBACK),
        *arguments,
        home=home,
        timeout_s=60,
    )
    lines = ended.stderr.splitlines()
    assert len(lines) == 1 or (len(lines) == 3 and lines[2].strip(" ^") == ""), ended.stderr
    assert lines[0].startswith("p2pmesh: ")
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert told[-1]["event"] == "error"
    assert f"p2pmesh: {told[-1]['message']}" == lines[0]
    assert EXIT_CODES[ErrorCode(told[-1]["code"])] == ended.returncode
    assert_nothing_half_written(home)
    return ended.returncode, lines[0]


def assert_nothing_half_written(home: Path) -> None:
    left = [path.name for path in home.rglob("*") if path.is_file()]
    assert not [name for name in left if name.endswith(".tmp") or name.startswith(".") or name == "run.json"], left


def invite_of(name: str, *addresses: str, life_ms: int = 3_600_000, issued_ms: int | None = None) -> str:
    """An invite that the founder ``name`` has signed."""
    founder = fake_identity(name)
    issued = int(time.time() * 1000) if issued_ms is None else issued_ms
    invite = Invite(bytes(16), MeshRequirements(founder.public_key), issued, issued + life_ms, addresses)
    return encode_invite(invite, founder.public_key, founder.sign)


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# --- models
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda path: None, ErrorCode.MODEL_NOT_FOUND),
        (lambda path: path.mkdir(), ErrorCode.MODEL_NOT_A_FILE),
        (lambda path: path.write_bytes(b"ELF" + bytes(4096)), ErrorCode.GGUF_NOT_GGUF),
        (lambda path: path.write_bytes(b""), ErrorCode.GGUF_NOT_GGUF),
        (lambda path: path.write_bytes(encode_gguf([text("general.architecture", "bert")])),
         ErrorCode.ARCHITECTURE_UNSUPPORTED),
        (lambda path: path.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 64), ErrorCode.GGUF_INVALID),
    ],
    ids=["missing", "directory", "not-gguf", "empty", "unknown-architecture", "garbled"],
)  # fmt: skip
def test_a_model_that_cannot_be_served(tmp_path: Path, make, code: ErrorCode) -> None:  # type: ignore[no-untyped-def]
    model = tmp_path / "model.gguf"
    make(model)
    returned, line = up(tmp_path / "home", "--model", str(model))
    assert returned == EXIT_CODES[code]
    assert "model.gguf" in line


def test_a_gguf_that_is_cut_anywhere_is_truncated(tmp_path: Path, tiny_model: Path) -> None:
    whole = tiny_model.read_bytes()
    cuts = [len(whole) * part // TRUNCATIONS + 5 for part in range(TRUNCATIONS)]
    for cut in cuts:
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:cut])
        ended = run_command("models", "show", str(path), home=tmp_path / "home")
        assert ended.returncode == EXIT_CODES[ErrorCode.GGUF_TRUNCATED], (cut, ended.stderr)
        assert len(ended.stderr.splitlines()) == 1
        assert ended.stdout == ""
    for cut in cuts[::7]:
        path.write_bytes(whole[:cut])
        assert up(tmp_path / "home", "--model", str(path))[0] == EXIT_CODES[ErrorCode.GGUF_TRUNCATED]


# --- ports, addresses, homes
@pytest.mark.parametrize("option", ["--port", "--console-port"])
def test_a_port_in_use(tmp_path: Path, option: str) -> None:
    with taken_port() as port:
        returned, line = up(tmp_path, option, str(port))
    assert returned == EXIT_CODES[ErrorCode.PORT_IN_USE]
    assert option in line


def test_a_listen_port_in_use(tmp_path: Path) -> None:
    with taken_port() as port:
        assert up(tmp_path, "--listen", f"/ip4/127.0.0.1/tcp/{port}")[0] == EXIT_CODES[ErrorCode.PORT_IN_USE]


@pytest.mark.parametrize("address", ["127.0.0.1:80", "/ip4/300.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/99999", "/"])
def test_a_malformed_multiaddr(tmp_path: Path, address: str) -> None:
    returned, line = up(tmp_path, "--listen", address)
    assert returned == EXIT_CODES[ErrorCode.ADDRESS_INVALID]
    assert address in line


def test_a_home_in_use_and_a_home_that_is_a_file(peers: Peers, tmp_path: Path) -> None:
    node = peers.found("first")
    second = run_command("up", "--port", "0", "--console-port", "0", home=node.home)
    assert second.returncode == EXIT_CODES[ErrorCode.HOME_IN_USE]
    assert len(second.stderr.splitlines()) == 1
    assert node.status()["peer_id"] == node.peer_id
    occupied = tmp_path / "file"
    occupied.write_text("")
    assert run_command("up", home=occupied).returncode == EXIT_CODES[ErrorCode.HOME_UNUSABLE]


FULL_DISK = """
mount -t tmpfs -o size=64k,mode=700 none "$1" && { head -c 65536 /dev/zero > "$1/ballast"; true; } 2>/dev/null
for home in "$1" "$1/new"; do
    "$2" -m p2pmesh up --port 0 --console-port 0 --listen /ip4/127.0.0.1/tcp/0 --home "$home"
    echo "exit $?"
done
find "$1" -type f -size +0 ! -name ballast
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a disk takes root")
def test_a_home_on_a_disk_without_a_free_byte(tmp_path: Path) -> None:
    command = ["unshare", "--mount", "sh", "-c", FULL_DISK, "sh", str(tmp_path), sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "mount:" in ended.stderr or "unshare:" in ended.stderr:
        pytest.skip(ended.stderr.splitlines()[0])
    assert ended.stdout.split("\n") == [f"exit {EXIT_CODES[ErrorCode.DISK_FULL]}"] * 2 + [""]
    first, second = ended.stderr.splitlines()
    assert "the disk is full" in first
    assert "the disk is full" in second


def test_commands_without_a_node(tmp_path: Path) -> None:
    for arguments in (("status",), ("chat", "m", "hi")):
        ended = run_command(*arguments, home=tmp_path / "home")
        assert ended.returncode == EXIT_CODES[ErrorCode.NODE_NOT_RUNNING]
        assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "home").exists()
    assert run_command("up", "--split", "many").returncode == USAGE


# --- joining
@pytest.mark.parametrize("damage", ["nonsense", "p2pmesh2-", "p2pmesh2-AAAA", "p2pmesh2-%%%%"])
def test_a_garbled_invite(tmp_path: Path, damage: str) -> None:
    assert up(tmp_path, "--join", damage)[0] == EXIT_CODES[ErrorCode.INVITE_MALFORMED]


def test_an_invite_with_one_character_changed(tmp_path: Path) -> None:
    line = invite_of("founder", "/ip4/127.0.0.1/tcp/1/p2p/" + fake_identity("founder").peer_id)
    changed = line[:60] + ("A" if line[60] != "A" else "B") + line[61:]
    assert up(tmp_path, "--join", changed)[0] == EXIT_CODES[ErrorCode.INVITE_MALFORMED]


def test_an_expired_invite(tmp_path: Path) -> None:
    address = "/ip4/127.0.0.1/tcp/1/p2p/" + fake_identity("founder").peer_id
    old = invite_of("founder", address, issued_ms=1_600_000_000_000)
    assert up(tmp_path, "--join", old)[0] == EXIT_CODES[ErrorCode.INVITE_EXPIRED]


def test_an_invite_that_nobody_answers(tmp_path: Path) -> None:
    with taken_port() as port:
        pass
    address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{fake_identity('founder').peer_id}"
    returned, line = up(tmp_path, "--join", invite_of("founder", address))
    assert returned == EXIT_CODES[ErrorCode.PEER_UNREACHABLE]
    assert f"/ip4/127.0.0.1/tcp/{port}" in line


def test_an_invite_of_another_mesh(peers: Peers, tmp_path: Path) -> None:
    node = peers.found("founder")
    foreign = invite_of("somebody else", *node.status()["addresses"])
    assert up(tmp_path / "home", "--join", foreign)[0] == EXIT_CODES[ErrorCode.INVITE_FOREIGN]
    refused = node.wait_for("peer_refused")
    assert refused["code"] == "invite_foreign"
    assert node.status()["peers"] == []


def test_a_peer_that_hangs_before_it_says_who_it_is(peers: Peers, tmp_path: Path) -> None:
    node = peers.found("founder")
    invite = node.invite
    node.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as pool:
            asked = (("status",), ("chat", "m", "hi"), ("invite", "list"))
            answers = [pool.submit(run_command, *arguments, home=node.home, timeout_s=60) for arguments in asked]
            assert up(tmp_path / "home", "--join", invite)[0] == EXIT_CODES[ErrorCode.PEER_UNREACHABLE]
            for answer in answers:
                ended = answer.result()
                assert ended.returncode == EXIT_CODES[ErrorCode.NODE_UNRESPONSIVE], ended.stderr
                assert f"kill -CONT {node.process.pid}" in ended.stderr
                assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
    finally:
        node.send_signal(signal.SIGCONT)
    assert run_command("status", home=node.home).returncode == 0


def test_a_listener_that_accepts_and_closes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{fake_identity('founder').peer_id}"

        import threading

        def accept_and_close() -> None:
            try:
                while True:
                    server.accept()[0].close()
            except OSError:
                return

        threading.Thread(target=accept_and_close, daemon=True).start()
        assert up(tmp_path, "--join", invite_of("founder", address))[0] == EXIT_CODES[ErrorCode.PEER_UNREACHABLE]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("reads", "code"), [(0, ErrorCode.PEER_LOST), (16, ErrorCode.PEER_LOST)])
async def test_a_peer_that_vanishes_while_joining(tmp_path: Path, reads: int, code: ErrorCode) -> None:
    founder = fake_identity("founder")
    async with open_network(founder, (LOOPBACK,)) as network:

        async def vanish(stream: ByteStream) -> None:
            await stream.receive_exactly(reads)
            await network.disconnect(stream.remote_peer)

        network.serve(CONTROL_PROTOCOL, vanish)
        invite = invite_of("founder", *network.addresses())
        returned, _ = await trio.to_thread.run_sync(lambda: up(tmp_path, "--join", invite))
    assert returned == EXIT_CODES[code]
