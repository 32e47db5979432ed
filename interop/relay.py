"""Lists a pool at a foreign Nostr relay and asks that relay's own storage what became of it; steps are in README.md.

Only the standard library and what p2pmesh needs. The relay is ``nostr-relay`` of PyPI, in a virtual environment of its
own: another implementation, in another language, over another database than the relay of the tests.
"""

import argparse
import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import trio

from p2pmesh.adapters.clock import SystemEntropy
from p2pmesh.adapters.identity import Ed25519Verifier, identity_of_seed
from p2pmesh.adapters.nostr.keys import PublisherKey
from p2pmesh.adapters.nostr.relays import NostrRelays, RelaySettings
from p2pmesh.ports.relays import ListingQuery, PublishOutcome, PublishReport
from p2pmesh.wire.invite import LIFE_MS, Invite, encode_invite
from p2pmesh.wire.listing import KIND, LIFE_S, SERVICE, ListingContent
from p2pmesh.wire.requirements import MeshRequirements

HERE = Path(__file__).parent / "nostr"
ENVIRONMENT = HERE.parent.parent / ".venv-relay"
START_TIMEOUT_S = 60.0
TIMEOUT_S = 20.0
ADDRESS = "/ip4/93.184.215.14/tcp/4001"

CONFIG = """
storage:
  sqlalchemy.url: sqlite+aiosqlite:///{folder}/relay.sqlite3
  validators:
    - nostr_relay.validators.is_not_too_large
    - nostr_relay.validators.is_signed
    - nostr_relay.validators.is_recent
garbage_collector: {{collect_interval: 2}}
gunicorn: {{bind: "127.0.0.1:{port}", workers: 1, loglevel: warning}}
authentication:
  enabled: {auth}
  relay_urls: ["ws://127.0.0.1:{port}"]
  actions: {{save: {writers}, query: {readers}}}
"""


class CannotRun(Exception):
    """The runner's own failure, in one line; not a verdict on the relay."""


class Wall:
    """A clock whose wall time is moved by hand."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def now(self) -> Any:
        return time.monotonic_ns() // 1000

    def unix_ms(self) -> Any:
        return (int(time.time()) + self.ahead_s) * 1000


class Relay:
    """A relay that runs, and its database."""

    def __init__(self, url: str, database: Path) -> None:
        self.url = url
        self._database = database

    def stored(self) -> list[dict[str, Any]]:
        """Our kind of events, past the relay's own program."""
        query = "SELECT lower(hex(pubkey)), created_at, tags, content FROM events WHERE kind = ?"
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=10)) as database:
            rows = database.execute(query, (KIND,)).fetchall()
        return [{"pubkey": row[0], "created_at": row[1], "tags": json.loads(row[2]), "content": row[3]} for row in rows]


def main() -> int:
    """0: every step passed; 1: one did not; 2: it could not be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="make the relay's environment first")
    args = parser.parse_args()
    try:
        if args.install:
            install()
        with tempfile.TemporaryDirectory(prefix="p2pmesh-relay-") as folder:
            verdicts = [*open_steps(Path(folder) / "open"), *auth_steps(Path(folder) / "auth")]
    except CannotRun as error:
        print(f"relay: {error}", file=sys.stderr)
        return 2
    for name, problem in verdicts:
        print(f"{'FAIL' if problem else 'ok':5} {name}{': ' + problem if problem else ''}")
    failed = sum(bool(problem) for _, problem in verdicts)
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    return 1 if failed else 0


# --- the relay ------------------------------------------------------------------
def install() -> None:
    """The relay with everything it needs, pinned, where nothing of ours is."""
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    command = [ENVIRONMENT / "bin" / "pip", "install", "-q", "--no-deps", "-r", HERE / "requirements.txt"]
    if subprocess.run(command, check=False, timeout=600).returncode:
        raise CannotRun("the relay cannot be installed")


def run_tool(config: Path, *arguments: str) -> None:
    """One command of ``nostr-relay``."""
    command = [ENVIRONMENT / "bin" / "nostr-relay", "-c", config, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=config.parent)
    if done.returncode:
        raise CannotRun(f"nostr-relay {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-300:]}")


@contextmanager
def running(folder: Path, *, is_closed: bool = False, members: tuple[str, ...] = ()) -> Iterator[Relay]:
    """The relay over an empty database; a closed one takes events and questions of ``members`` alone."""
    folder.mkdir()
    port = free_port()
    config = folder / "relay.yaml"
    writers, readers = ("w", "w") if is_closed else ("a", "a")
    config.write_text(
        CONFIG.format(folder=folder, port=port, auth=str(is_closed).lower(), writers=writers, readers=readers)
    )
    if not (ENVIRONMENT / "bin" / "nostr-relay").exists():
        raise CannotRun("the relay is not installed; run with --install")
    environment = {**os.environ, "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        command = [ENVIRONMENT / "bin" / "nostr-relay", "-c", config, "serve"]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
    try:
        wait_for_port(port, process, folder / "log")
        for member in members:
            run_tool(config, "role", "set", "-p", member, "-r", "w")
        yield Relay(f"ws://127.0.0.1:{port}", folder / "relay.sqlite3")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until the relay listens."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise CannotRun(f"the relay does not start: {log.read_text()[-500:]}")


# --- the steps ------------------------------------------------------------------
IDENTITY = identity_of_seed(secrets.token_bytes(32))


def content_of(wall: Wall, name: str) -> ListingContent:
    """A listing that any reader takes."""
    terms = MeshRequirements(IDENTITY.public_key, is_public=True, pool_name=name)
    now = wall.unix_ms()
    invite = Invite(bytes(16), terms, now, now + LIFE_MS, (ADDRESS,))
    line = encode_invite(invite, IDENTITY.public_key, IDENTITY.sign)
    return ListingContent(line, ("smollm2-135m",), 8 << 30, 1, invite.mesh_id, 1, name=name)


def relays_of(url: str, wall: Wall, key: PublisherKey | None = None) -> NostrRelays:
    """Our side."""
    settings = RelaySettings((url,), key or PublisherKey.fresh(), Ed25519Verifier().is_signature_of)
    return NostrRelays(settings, wall, SystemEntropy())


def put(relays: NostrRelays, content: ListingContent) -> PublishReport:
    """One publication."""
    return trio.run(relays.publish, content, TIMEOUT_S)


def said(report: PublishReport) -> tuple[PublishOutcome, str]:
    """What the one relay said."""
    return report.replies[0].outcome, report.replies[0].detail


def unless(is_right: bool, problem: Any) -> str:
    """The problem, where there is one."""
    return "" if is_right else str(problem) or "wrong"


def problem_of_names(relay: Relay, *names: str) -> str:
    """What the relay stores, where that is not listings of exactly these names."""
    stored = [json.loads(event["content"])["name"] for event in relay.stored()]
    return unless(stored == list(names), f"it stores {stored}")


def open_steps(folder: Path) -> Iterator[tuple[str, str]]:
    """At a relay that takes everybody's events."""
    wall = Wall()
    with running(folder) as relay:
        publisher, reader = relays_of(relay.url, wall), relays_of(relay.url, wall)
        first = content_of(wall, "first")
        answer = said(put(publisher, first))
        yield "a listing is accepted", unless(answer[0] is PublishOutcome.ACCEPTED, answer)
        yield "it is stored as the protocol says", problem_of_stored(relay.stored(), publisher.publisher)
        found = trio.run(reader.fetch, ListingQuery(), TIMEOUT_S)
        yield "another node finds it", unless([one.content for one in found.listings] == [first], found)
        put(publisher, content_of(wall, "second"))
        yield "a later one takes its place", problem_of_names(relay, "second")
        trio.run(publisher.delete, TIMEOUT_S)
        yield "a deleted one is gone from the storage", problem_of_names(relay)
        put(publisher, content_of(wall, "again"))
        yield "it can be listed again", problem_of_names(relay, "again")
        wall.ahead_s = 7200
        ahead = relays_of(relay.url, wall)
        answer = said(put(ahead, content_of(wall, "ahead")))
        right = answer[0] is PublishOutcome.INVALID and "future" in answer[1]
        yield "what it refuses is told with its reason", unless(right, answer)
        wall.ahead_s = 3 - LIFE_S
        short = relays_of(relay.url, wall)
        put(short, content_of(wall, "short"))
        trio.run(publisher.delete, TIMEOUT_S)
        yield "one that is nearly over is stored", problem_of_names(relay, "short")
        yield "and collected when it is over", problem_of_expiry(relay)


def problem_of_stored(events: list[dict[str, Any]], publisher: str) -> str:
    """What is not as it shall be."""
    if len(events) != 1:
        return f"{len(events)} events are stored"
    event = events[0]
    tags = [["d", SERVICE], ["k", SERVICE], ["expiration", str(event["created_at"] + LIFE_S)]]
    return unless(event["tags"] == tags and event["pubkey"] == publisher, event)


def problem_of_expiry(relay: Relay) -> str:
    """Waits for the relay's own collector, which runs every two seconds."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if not relay.stored():
            return ""
        time.sleep(0.5)
    return "it is still stored after 30 s"


def auth_steps(folder: Path) -> Iterator[tuple[str, str]]:
    """At a relay that wants to know who writes and asks."""
    wall = Wall()
    member, stranger = PublisherKey.fresh(), PublisherKey.fresh()
    with running(folder, is_closed=True, members=(member.public,)) as relay:
        ours = relays_of(relay.url, wall, member)
        answer = said(put(ours, content_of(wall, "members")))
        yield "a relay that asks who we are is told", unless(answer[0] is PublishOutcome.ACCEPTED, answer)
        found = trio.run(ours.fetch, ListingQuery(), TIMEOUT_S)
        yield "and answers", unless(len(found.listings) == 1, found)
        answer = said(put(relays_of(relay.url, wall, stranger), content_of(wall, "strangers")))
        yield "a stranger is refused, and hears why", unless(answer[0] is PublishOutcome.BLOCKED, answer)
        yield "nothing of the stranger's is stored", problem_of_names(relay, "members")


if __name__ == "__main__":
    sys.exit(main())
