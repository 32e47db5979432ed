"""``p2pmesh auth`` as an operator walks through it, by the real command line in this process."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.home_lock import hold_home, hold_records
from p2pmesh.adapters.identity import load_or_create_identity
from p2pmesh.adapters.keychain import SERVICE
from p2pmesh.adapters.trust_file import CLAIM_FILE, TRUST_FILE, load_claim, load_trust
from p2pmesh.app import claims
from p2pmesh.app.run_file import RunFile, write_run_file
from p2pmesh.cli import auth as cli_auth
from p2pmesh.cli.main import main
from p2pmesh.core.ownership import TrustPolicy
from tests.fakes.keychain import FakeKeyring
from tests.wire.keys import JOINER, STRANGER

HOUR_MS = 3_600_000
PASSPHRASE = "correct horse battery"
OTHER_OWNER = "ab" * 32

Run = Callable[..., dict[str, Any]]
Fail = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, the passphrase in the environment, nobody at the terminal."""
    home = tmp_path / "home"
    monkeypatch.setenv("P2PMESH_HOME", str(home))
    monkeypatch.setenv("P2PMESH_OWNER_PASSPHRASE", PASSPHRASE)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``auth …`` with ``--json``; its answer. ``code`` is the exit code expected."""

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert main(["auth", *arguments, "--json"]) == code
        captured = capsys.readouterr()
        assert captured.err == ""
        assert PASSPHRASE not in captured.out
        answer: dict[str, Any] = json.loads(captured.out)
        return answer

    return call


@pytest.fixture
def fail(capsys: pytest.CaptureFixture[str]) -> Fail:
    """Runs ``auth …`` that must fail with an exit code; its one line."""

    def call(code: int, *arguments: str) -> str:
        assert main(["auth", *arguments]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert PASSPHRASE not in captured.err
        return captured.err

    return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the wall clock of the commands by hours."""

    def move(hours: int) -> None:
        later = claims.time.time_ns() + hours * HOUR_MS * 1_000_000
        monkeypatch.setattr(claims.time, "time_ns", lambda: later)

    return move


def test_a_walk_from_no_owner_to_a_verified_node(run: Run, fail: Fail, home: Path) -> None:
    empty = run("status")
    assert empty["owner"] is None
    assert empty["node"] == {"peer_id": None, "status": "unsigned"}
    assert not home.exists()  # looking makes nothing
    assert "p2pmesh auth init" in fail(22, "sign-node")

    made = run("init")
    signed = run("sign-node", "--label", "kitchen")
    assert signed["owner_id"] == made["owner_id"]
    assert signed["expires_unix_ms"] - signed["issued_unix_ms"] == 168 * HOUR_MS
    assert signed["peer_id"] == load_or_create_identity(home).peer_id

    shown = run("status")
    assert shown["owner"]["owner_id"] == made["owner_id"]
    assert (shown["node"]["status"], shown["node"]["label"]) == ("verified", "kitchen")
    assert (shown["node"]["is_renewal_due"], shown["node"]["owner_label"]) == (False, "own")
    assert run("verify-node")["status"] == "verified"
    assert list(load_trust(home).trusted_owners) == [made["owner_id"]]


def test_every_file_that_auth_writes_is_private_and_tells_no_secret(run: Run, home: Path) -> None:
    run("init")
    run("sign-node")
    run("trust", "add", OTHER_OWNER)
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"owner.key", "node.key", CLAIM_FILE, TRUST_FILE}
    assert home.stat().st_mode & 0o777 == 0o700
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path
        assert PASSPHRASE.encode() not in path.read_bytes()


def test_an_owner_key_is_not_replaced_by_accident(run: Run, fail: Fail) -> None:
    first = run("init")["owner_id"]
    assert "--force" in fail(23, "init")
    assert run("status")["owner"]["owner_id"] == first
    assert run("init", "--force")["owner_id"] != first


def test_a_damaged_owner_key_is_not_replaced_by_accident_either(run: Run, fail: Fail, home: Path) -> None:
    run("init")
    (home / "owner.key").write_text("{}")
    assert "damaged" in fail(20, "init")
    run("init", "--force")


def test_an_owner_signs_a_node_elsewhere_and_it_takes_the_claim(run: Run, fail: Fail, tmp_path: Path) -> None:
    there = ("--home", str(tmp_path / "there"))
    peer = load_or_create_identity(tmp_path / "there").peer_id
    owner = run("init")["owner_id"]
    signed = run("sign-node", "--peer-id", peer, "--label", "attic", "--hours", "24")
    assert signed["claim_file"] == f"{peer}.claim"
    assert signed["expires_unix_ms"] - signed["issued_unix_ms"] == 24 * HOUR_MS
    assert run("verify-node", "--claim", f"{peer}.claim")["status"] == "verified"

    taken = run("sign-node", "--claim", f"{peer}.claim", *there)
    assert (taken["owner_id"], taken["label"]) == (owner, "attic")
    shown = run("status", *there)
    assert (shown["owner"], shown["node"]["status"]) == (None, "verified")
    assert owner in load_trust(tmp_path / "there").trusted_owners
    assert "is for node" in fail(26, "sign-node", "--claim", f"{peer}.claim")  # not this home's


def test_one_owner_key_may_serve_several_homes(run: Run, tmp_path: Path) -> None:
    owner = run("init")["owner_id"]
    key = ("--owner-key", str(tmp_path / "home" / "owner.key"))
    assert run("sign-node", "--home", str(tmp_path / "b"), *key)["owner_id"] == owner
    assert run("status", "--home", str(tmp_path / "b"))["node"]["status"] == "verified"


def test_a_claim_is_renewed_when_it_is_due_and_expires_if_it_is_not(
    run: Run, clock: Callable[[int], None], fail: Fail
) -> None:
    assert "sign-node" in fail(26, "renew-node")
    run("init")
    first = run("sign-node", "--label", "kitchen")
    assert run("renew-node", "--if-due")["renewed"] is False
    clock(168 - 37)
    assert run("renew-node", "--if-due")["renewed"] is False
    clock(1)
    assert run("status")["node"]["is_renewal_due"] is True
    renewed = run("renew-node", "--if-due")
    assert (renewed["renewed"], renewed["label"]) == (True, "kitchen")
    assert renewed["certificate_id"] != first["certificate_id"]
    clock(169)
    assert run("verify-node", code=26)["status"] == "expired"
    assert run("renew-node")["renewed"] is True
    assert run("verify-node")["status"] == "verified"


def test_a_claim_of_another_owner_is_not_renewed_but_signed_anew(run: Run, fail: Fail) -> None:
    run("init")
    run("sign-node")
    run("init", "--force")
    assert "sign-node" in fail(26, "renew-node")
    run("sign-node")
    assert run("renew-node")["renewed"] is True


def test_a_claim_that_is_over_is_not_taken(run: Run, fail: Fail, clock: Callable[[int], None], tmp_path: Path) -> None:
    peer = load_or_create_identity(tmp_path / "there").peer_id
    run("init")
    run("sign-node", "--peer-id", peer, "--out", "claim")
    clock(169)
    assert "another time" in fail(26, "sign-node", "--claim", "claim", "--home", str(tmp_path / "there"))
    assert load_claim(tmp_path / "there") is None


def test_a_rotated_node_has_another_peer_id_and_is_signed(run: Run, fail: Fail, home: Path) -> None:
    assert "no node key" in fail(2, "rotate-node")
    run("init")
    before = run("sign-node", "--label", "kitchen")
    rotated = run("rotate-node")
    assert rotated["old_peer_id"] == before["peer_id"]
    assert rotated["peer_id"] == load_or_create_identity(home).peer_id != before["peer_id"]
    shown = run("status")
    assert (shown["node"]["status"], shown["node"]["label"]) == ("verified", "kitchen")
    assert before["peer_id"] in load_trust(home).revoked_peers
    assert (home / "node.key").stat().st_mode & 0o777 == 0o600


def test_a_node_without_an_owner_rotates_without_a_passphrase(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("P2PMESH_OWNER_PASSPHRASE")
    before = load_or_create_identity(home).peer_id
    assert run("rotate-node")["old_peer_id"] == before
    assert run("status")["node"]["status"] == "unsigned"


def test_no_node_key_is_rotated_under_a_running_node_or_without_the_passphrase(
    run: Run, fail: Fail, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init")
    peer = run("sign-node")["peer_id"]
    with hold_home(home):
        assert "another node runs" in fail(19, "rotate-node")
        run("renew-node")  # a claim may change under a running node
    monkeypatch.setenv("P2PMESH_OWNER_PASSPHRASE", "wrong")
    fail(25, "rotate-node")
    assert run("verify-node")["peer_id"] == peer


def test_two_auth_commands_do_not_change_one_home_at_once(fail: Fail, home: Path) -> None:
    with hold_records(home):
        assert "another p2pmesh auth" in fail(19, "trust", "add", OTHER_OWNER)


def test_a_rotated_owner_signs_the_node_and_the_old_one_stays_until_it_is_revoked(run: Run, home: Path) -> None:
    old = run("init")["owner_id"]
    run("sign-node", "--label", "kitchen")
    old_claim = load_claim(home)
    rotated = run("rotate-owner")
    assert rotated["old_owner_id"] == old
    new = rotated["owner_id"]
    assert new != old
    shown = run("status")
    assert (shown["node"]["owner_id"], shown["node"]["label"]) == (new, "kitchen")
    assert set(load_trust(home).trusted_owners) == {old, new}
    run("revoke-owner", old)
    assert run("verify-node")["status"] == "verified"
    assert old_claim is not None
    (home / CLAIM_FILE).write_text(claims_line(old_claim))
    assert run("verify-node", code=26)["status"] == "revoked_owner"


def claims_line(claim: bytes) -> str:
    from p2pmesh.adapters.trust_file import encode_claim_line

    return encode_claim_line(claim)


def test_a_new_owner_key_may_have_a_new_passphrase(run: Run, fail: Fail, tmp_path: Path) -> None:
    run("init")
    (tmp_path / "new").write_text("another one\r\nsecond line\n")
    run("rotate-owner", "--new-passphrase-file", "new")
    fail(25, "sign-node")
    run("sign-node", "--passphrase-file", "new")
    assert "--new-passphrase-file none cannot be read" in fail(
        2, "rotate-owner", "--passphrase-file", "new", "--new-passphrase-file", "none"
    )


def test_a_claim_is_not_written_into_a_directory_that_is_not_there(run: Run, fail: Fail, tmp_path: Path) -> None:
    run("init")
    peer = load_or_create_identity(tmp_path / "there").peer_id
    assert "no directory" in fail(2, "sign-node", "--peer-id", peer, "--out", "none/x.claim")
    assert not (tmp_path / "none").exists()
    assert str(tmp_path / f"{peer}.claim") in run("sign-node", "--peer-id", peer)["next"]


def test_a_policy_says_when_a_running_node_may_not_follow_it(run: Run, home: Path) -> None:
    assert "note" not in run("trust", "policy", "allowlist")
    write_run_file(home, RunFile(os.getpid(), "http://a", "http://c", "token", "peer"))
    assert "--trust-policy" in run("trust", "policy", "off")["note"]


def test_revocations_are_made_and_taken_back(run: Run) -> None:
    owner = run("init")["owner_id"]
    signed = run("sign-node")
    for arguments, status in (
        (("revoke-owner", owner), "revoked_owner"),
        (("revoke-node", signed["peer_id"]), "revoked_node_id"),
        (("revoke-node", "--certificate", signed["certificate_id"]), "revoked_cert"),
    ):
        assert "policy is off" in run(*arguments)["next"]
        assert run("verify-node", code=26)["status"] == status
        assert "next" not in run(*arguments, "--undo")
        assert run("verify-node")["status"] == "verified"


def test_owners_are_trusted_listed_and_no_longer_trusted(run: Run, fail: Fail, home: Path) -> None:
    run("trust", "add", OTHER_OWNER, "--label", "Grüße")
    run("trust", "policy", "allowlist")
    listed = run("trust", "list")
    assert listed["trusted_owners"] == [{"owner_id": OTHER_OWNER, "label": "Grüße"}]
    assert listed["policy"] == "allowlist"
    assert load_trust(home).policy is TrustPolicy.ALLOWLIST
    assert f"trust add {OTHER_OWNER} --label 'Grüße'" in run("revoke-owner", OTHER_OWNER)["note"]
    assert "note" not in run("revoke-owner", OTHER_OWNER)  # it was off the list already
    assert run("trust", "list")["trusted_owners"] == []
    assert "--undo" in fail(2, "trust", "add", OTHER_OWNER)
    assert "is not trusted by this" in run("revoke-owner", OTHER_OWNER, "--undo")["note"]
    assert "note" not in run("revoke-owner", OTHER_OWNER, "--undo")
    run("trust", "add", OTHER_OWNER)
    run("trust", "remove", OTHER_OWNER)
    assert "not trusted" in fail(2, "trust", "remove", OTHER_OWNER)


def test_a_node_whose_owner_is_not_on_its_own_list_is_untrusted(run: Run) -> None:
    owner = run("init")["owner_id"]
    run("sign-node")
    run("trust", "policy", "allowlist")
    assert run("verify-node")["status"] == "verified"
    run("trust", "remove", owner)
    assert run("verify-node", code=26)["status"] == "untrusted_owner"


def test_a_claim_of_another_peer_is_a_mismatch(run: Run) -> None:
    run("init")
    run("sign-node", "--peer-id", JOINER.peer_id, "--out", "claim")
    found = run("verify-node", "--claim", "claim", "--peer-id", STRANGER.peer_id, code=26)
    assert found["status"] == "mismatched_node_id"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, "sign-node --hours 0"),
        (2, "sign-node --hours 721"),
        (2, "sign-node --out x"),
        (2, "sign-node --peer-id nobody"),
        (2, "sign-node --claim none.claim"),
        (2, "verify-node --claim none.claim"),
        (2, "verify-node"),
        (26, "renew-node"),
        (2, "revoke-owner XYZ"),
        (2, "revoke-node XYZ"),
        (2, "revoke-node --certificate 00"),
        (2, "trust add 00"),
        (22, "rotate-owner"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_its_code(fail: Fail, code: int, arguments: str) -> None:
    fail(code, *arguments.split())


@pytest.mark.parametrize("label", ["two\nlines", "l" * 129, "\udc80"])
def test_a_label_is_a_line(fail: Fail, label: str) -> None:
    assert "--label" in fail(2, "sign-node", "--label", label)
    assert "--label" in fail(2, "trust", "add", OTHER_OWNER, "--label", label)


@pytest.mark.parametrize(
    "arguments",
    ["auth", "auth trust", "auth trust policy some", "auth revoke-node", "auth sign-node --peer-id a --claim b",
     "auth init --passphrase x", f"auth revoke-node {JOINER.peer_id} --certificate 00"],
)  # fmt: skip
def test_a_command_line_that_cannot_be_understood_exits_2(
    arguments: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert main(arguments.split()) == 2
    assert " --help\n" in capsys.readouterr().err
    assert not home.exists()


def test_damaged_files_are_one_line(run: Run, fail: Fail, home: Path) -> None:
    run("init")
    run("sign-node")
    (home / CLAIM_FILE).write_text("p2pmesh-claim1-AAAA")
    assert run("status")["node"]["status"] == "invalid_signature"
    assert "not valid" in fail(26, "renew-node")
    (home / CLAIM_FILE).write_text("nonsense")
    assert CLAIM_FILE in fail(26, "status")
    run("sign-node")  # what the lines say helps
    assert run("verify-node")["status"] == "verified"
    (home / TRUST_FILE).write_text("[]")
    assert TRUST_FILE in fail(20, "trust", "list")
    assert TRUST_FILE in fail(20, "trust", "add", OTHER_OWNER)


# --- where the passphrase comes from --------------------------------------------
class Person:
    """At the terminal, with prepared answers."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def sit_down(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Person]:
    """A person sits down; the passphrase is nowhere else."""

    def install(*answers: str) -> Person:
        person = Person(*answers)
        monkeypatch.delenv("P2PMESH_OWNER_PASSPHRASE", raising=False)
        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(cli_auth.getpass, "getpass", person)
        return person

    return install


def test_a_person_types_it_twice_for_a_new_key_and_once_to_open_it(run: Run, sit_down: Callable[..., Person]) -> None:
    person = sit_down("secret", "secret", "secret")
    run("init")
    run("sign-node")
    assert len(person.prompts) == 3


def test_two_different_passphrases_make_no_key(fail: Fail, sit_down: Callable[..., Person], home: Path) -> None:
    sit_down("secret", "sacred")
    assert "differ" in fail(2, "init")
    assert not (home / "owner.key").exists()


def test_an_empty_passphrase_makes_no_key(fail: Fail, sit_down: Callable[..., Person], tmp_path: Path) -> None:
    sit_down("")
    assert "empty" in fail(2, "init")
    (tmp_path / "empty").write_text("\n")
    assert "empty" in fail(2, "init", "--passphrase-file", "empty")


def test_a_person_who_gives_up_interrupts(sit_down: Callable[..., Person]) -> None:
    sit_down()
    assert main(["auth", "init"]) == 130


def test_without_a_person_and_a_passphrase_one_line_says_how_to_give_it(
    run: Run, fail: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init")
    monkeypatch.delenv("P2PMESH_OWNER_PASSPHRASE")
    for action in ("init --force", "sign-node"):
        line = fail(24, *action.split())
        assert "--passphrase-file" in line
        assert "P2PMESH_OWNER_PASSPHRASE" in line


def test_a_passphrase_file_wins_over_the_environment(run: Run, fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from a file\n")
    run("init", "--passphrase-file", "file")
    fail(25, "sign-node")
    run("sign-node", "--passphrase-file", "file")
    assert "cannot be read" in fail(2, "sign-node", "--passphrase-file", "none")
    os.mkdir("directory")
    assert "cannot be read" in fail(2, "sign-node", "--passphrase-file", "directory")


def test_the_keychain_keeps_the_passphrase_if_asked(
    run: Run, fail: Fail, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    keyring = FakeKeyring()
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    owner = run("init", "--keychain")["owner_id"]
    monkeypatch.delenv("P2PMESH_OWNER_PASSPHRASE")
    assert run("status")["owner"]["keychain"] is True
    run("sign-node")
    rotated = run("rotate-owner")["owner_id"]
    assert keyring.entries == {(SERVICE, rotated): PASSPHRASE}
    assert rotated != owner
    run("renew-node")
    keyring.entries.clear()
    fail(24, "renew-node")


def test_an_absent_keychain_makes_no_key(fail: Fail, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert "pip install 'p2pmesh[keychain]'" in fail(2, "init", "--keychain")
    assert not (home / "owner.key").exists()


def test_people_read_lines_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["auth", "init"]) == 0
    assert "next: sign this node with p2pmesh auth sign-node" in capsys.readouterr().out
    assert main(["auth", "trust", "list"]) == 0
    assert "label: own" in capsys.readouterr().out
