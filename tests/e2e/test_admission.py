"""Who comes into a mesh, comes back and is put out: real nodes, their homes, the commands of their operators."""

import base64
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from p2pmesh.adapters.credential_files import load_newest_membership, load_requirements
from p2pmesh.adapters.identity import NodeIdentity, load_or_create_identity
from p2pmesh.adapters.trust_file import save_claim
from p2pmesh.base.errors import ErrorCode
from p2pmesh.cli.exit_codes import EXIT_CODES
from p2pmesh.wire.invite import Invite, encode_invite
from p2pmesh.wire.ownership import LIFE_MS, VERSION, OwnershipClaim, encode_claim
from tests.e2e.peers import NodeProcess, Peers, run_command
from tests.fakes.identity import fake_identity

NO_MODEL = ("--max-memory", "0")
SOON_S = 60.0
"""The start of a process is part of it, and the machine may be busy."""


def now_unix_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def founder(module_peers: Peers) -> NodeProcess:
    """A founder that the tests share; each brings its own joiners."""
    return module_peers.found("founder", *NO_MODEL)


def create_invite(home: Path, *options: str) -> dict[str, Any]:
    made = run_command("invite", "create", "--json", *options, home=home)
    assert made.returncode == 0, made.stderr
    return dict(json.loads(made.stdout))


def join(peers: Peers, name: str, invite: str, **given: Any) -> NodeProcess:
    node = peers.start(name, "--join", invite, *NO_MODEL, **given)
    node.wait_for("joined", timeout_s=SOON_S)
    return node


def refused_join(peers: Peers, name: str, invite: str, home: Path | None = None) -> dict[str, Any]:
    """The error that a node ends with; its exit code is that of the error."""
    node = peers.start(name, "--join", invite, *NO_MODEL, home=home, wait=False)
    error = node.wait_for("error", timeout_s=SOON_S)
    assert node.wait_ended() == EXIT_CODES[ErrorCode(error["code"])]
    assert node.errors == [f"p2pmesh: {error['message']}"]
    return error


def expired_invite(founder: NodeProcess) -> str:
    """What the founder gave out long ago."""
    identity = load_or_create_identity(founder.home)
    requirements = load_requirements(founder.home)
    assert requirements is not None
    addresses = tuple(founder.status()["addresses"])
    invite = Invite(os.urandom(16), requirements, 1_600_000_000_000, 1_600_000_060_000, addresses)
    return encode_invite(invite, identity.public_key, identity.sign)


def test_a_member_killed_with_an_expired_invite_comes_back_by_its_pass(founder: NodeProcess, peers: Peers) -> None:
    member = join(peers, "member", founder.invite)
    member.kill()
    expired = expired_invite(founder)
    again = join(peers, "again", expired, home=member.home)
    assert again.peer_id == member.peer_id
    assert refused_join(peers, "stranger", expired)["code"] == "invite_expired"


def test_an_invite_for_one_peer_survives_the_founders_death_as_used_up(peers: Peers) -> None:
    founder = peers.start("founder", *NO_MODEL, "--listen", "/ip4/127.0.0.1/tcp/0")
    founder.wait_for("invite")
    invite = create_invite(founder.home, "--uses", "1")["invite"]
    first = join(peers, "first", invite)
    assert first.find("invite") is None  # it has none that another could use
    error = refused_join(peers, "second", invite)
    assert error["code"] == "invite_exhausted"
    assert error["message"].startswith("--join: bootstrap_token_exhausted: ")
    assert founder.wait_for("peer_refused")["message"].startswith("bootstrap_token_exhausted: ")
    founder.kill()
    listed = run_command("invite", "list", "--json", home=founder.home)
    assert sorted(entry["state"] for entry in json.loads(listed.stdout)["invites"]) == ["used", "valid"]


def test_a_revoked_invite_is_refused_at_a_member_too(founder: NodeProcess, peers: Peers) -> None:
    member = join(peers, "member", founder.invite)
    made = create_invite(founder.home)
    revoked = run_command("invite", "revoke", made["id"], home=founder.home)
    assert revoked.returncode == 0, revoked.stderr
    identity, requirements = load_or_create_identity(founder.home), load_requirements(founder.home)
    assert requirements is not None
    at_member = Invite(
        bytes.fromhex(made["id"]), requirements, now_unix_ms(), made["expires_unix_ms"],
        tuple(member.status()["addresses"]),
    )  # fmt: skip
    for name, line in (("at-founder", made["invite"]), ("at-member", encode_invite_of(at_member, identity))):
        assert refused_join(peers, name, line)["message"].startswith("--join: bootstrap_token_revoked: ")
    assert member.wait_for("peer_refused")["code"] == "invite_revoked"


def encode_invite_of(invite: Invite, identity: NodeIdentity) -> str:
    return encode_invite(invite, identity.public_key, identity.sign)


def test_a_removed_peer_is_disconnected_and_its_pass_is_worth_nothing(founder: NodeProcess, peers: Peers) -> None:
    bad = join(peers, "bad", founder.invite)
    removed = run_command("peer", "remove", bad.peer_id, "--json", home=founder.home)
    assert removed.returncode == 0, removed.stderr
    assert len(json.loads(removed.stdout)["invites"]) == 1
    told = bad.wait_for("put_out", timeout_s=SOON_S)
    assert (told["peer_id"], told["code"]) == (founder.peer_id, "peer_removed")
    bad.kill()
    for way in (["--rejoin"], ["--join", founder.invite]):  # it waits to be readmitted, and says so
        again = peers.start("again", *way, *NO_MODEL, home=bad.home)
        assert again.wait_for("put_out", timeout_s=SOON_S)["message"].startswith("direct_proof_revoked: ")
        again.kill()
    assert not any(p["is_admitted"] for p in founder.status()["peers"] if p["peer_id"] == bad.peer_id)


def sign_node(home: Path) -> None:
    """The owner's claim on the node of a home."""
    owner, peer = fake_identity("owner"), load_or_create_identity(home).peer_id
    claim = OwnershipClaim(VERSION, os.urandom(16), peer, "mine", now_unix_ms(), now_unix_ms() + LIFE_MS)
    save_claim(home, encode_claim(claim, owner.public_key, owner.sign))


def test_a_mesh_that_requires_an_owner(peers: Peers, tmp_path: Path) -> None:
    home = tmp_path / "founder"
    unsigned = peers.start("unsigned founder", *NO_MODEL, "--require-owner", home=home, wait=False)
    assert unsigned.wait_for("error")["message"].startswith("origin_owner_missing: ")
    assert unsigned.wait_ended() == EXIT_CODES[ErrorCode.OWNERSHIP_REFUSED]
    sign_node(home)
    founder = peers.start("founder", *NO_MODEL, "--require-owner", home=home)
    invite = founder.invite
    assert refused_join(peers, "stranger", invite)["message"].startswith("owner_missing: ")
    sign_node(tmp_path / "mine")
    join(peers, "mine", invite, home=tmp_path / "mine")
    founder.stop()
    other_terms = peers.start("other terms", *NO_MODEL, "--min-version", "0.0.1", home=home, wait=False)
    assert "another mesh" in other_terms.wait_for("error")["message"]
    assert other_terms.wait_ended() == EXIT_CODES[ErrorCode.CONFIG_INVALID]


def test_an_invite_comes_from_stdin_or_the_environment(founder: NodeProcess, tmp_path: Path) -> None:
    common = ("up", "--port", "0", "--console-port", "0", "--listen", "/ip4/127.0.0.1/tcp/0", "--log-format", "json")
    for name, arguments, stdin, environment in (
        ("stdin", ("--join", "-"), founder.invite, {}),
        ("variable", (), "", {"P2PMESH_JOIN": founder.invite}),
    ):
        command = [sys.executable, "-m", "p2pmesh", *common, *NO_MODEL, "--home", str(tmp_path / name), *arguments]
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdin is not None
            process.stdin.write(stdin + "\n")
            process.stdin.close()
            assert process.stdout is not None
            assert "joined" in [json.loads(line)["event"] for line in until_joined(process.stdout)]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def until_joined(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if '"joined"' in line or '"error"' in line:
            return


# --- secrets ---------------------------------------------------------------------
def forms_of(secret: bytes) -> set[bytes]:
    """A secret as any careless writer would put it."""
    plain = base64.b64encode(secret).rstrip(b"=")
    return {secret, secret.hex().encode(), plain, base64.urlsafe_b64encode(secret).rstrip(b"=")}


def secrets_of(node: NodeProcess, invites: list[str]) -> dict[str, set[bytes]]:
    """Everything that must not lie about, each in every form."""
    membership = load_newest_membership(node.home)
    passes = membership.passes if membership is not None else ()
    run = json.loads((node.home / "run.json").read_text())
    return {
        "node key": forms_of(load_or_create_identity(node.home).private_seed),
        "console token": {run["console_token"].encode()},
        **{f"invite {n}": {line.encode(), line[-60:].encode()} for n, line in enumerate(invites)},
        **{f"pass {n}": forms_of(sealed) | forms_of(sealed[-64:]) for n, sealed in enumerate(passes)},
    }


def writings_of(node: NodeProcess, answers: list[str]) -> dict[str, bytes]:
    """All that a node lets others see: its output but for the invite event, open files, what its console answers."""
    told = "".join(line for line in node.lines if json.loads(line)["event"] != "invite")
    open_files = {
        str(path): path.read_bytes()
        for path in node.home.rglob("*")
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != 0o600
    }
    return {
        "stdout": told.encode(),
        "stderr": "\n".join(node.errors).encode(),
        "status": json.dumps(node.status()).encode(),
        **{f"answer {n}": answer.encode() for n, answer in enumerate(answers)},
        **open_files,
    }


def test_no_invite_pass_or_key_is_written_where_others_can_read_it(peers: Peers) -> None:
    founder = peers.found("founder", *NO_MODEL)
    made = create_invite(founder.home, "--uses", "2")
    invites = [founder.invite, made["invite"], expired_invite(founder)]
    member = join(peers, "member", made["invite"])
    other = join(peers, "other", founder.invite)
    refused_join(peers, "late", invites[2])
    answers = [run_command("invite", "list", *extra, home=founder.home).stdout for extra in ((), ("--json",))]
    answers.append(run_command("invite", "revoke", made["id"], home=founder.home).stdout)
    answers.append(run_command("peer", "remove", other.peer_id, home=founder.home).stdout)
    answers.append(run_command("status", "--json", home=founder.home).stdout)
    other.wait_for("put_out", timeout_s=SOON_S)
    run = json.loads((founder.home / "run.json").read_text())
    headers = {"authorization": f"Bearer {run['console_token']}"}
    answers.append(httpx.get(run["console_url"] + "/api/invites", headers=headers, trust_env=False).text)
    nodes = [founder, member, other]
    secrets = [(node.name, name, forms) for node in nodes for name, forms in secrets_of(node, invites).items()]
    assert {"node key", "console token", "invite 2", "pass 0"} <= {name for _, name, _ in secrets}
    found = [
        (node.name, place, owner, name)
        for node in nodes
        for place, written in writings_of(node, answers).items()
        for owner, name, forms in secrets
        if any(form in written for form in forms)
    ]
    assert found == []
    kept = b"".join(path.read_bytes() for path in (member.home / "memberships").iterdir())
    assert any(form in kept for _, name, forms in secrets if name == "pass 0" for form in forms)  # it would be found
