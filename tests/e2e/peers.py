"""Real node processes for tests: start, follow their events, ask them, stop exactly what was started.

Blocking code with a thread for each pipe: a test waits for an event with a deadline, never for time to pass. What a
node's process and its engines left behind is looked up in ``/proc`` by the ids that were seen while it lived.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

START_S = 60.0
READY_S = 150.0
STOP_S = 60.0
CHILD_END_S = 2.0
"""How long an engine may outlive a node that was killed."""
_POLL_S = 0.02
Event = dict[str, Any]


def run_command(
    *arguments: str, timeout_s: float = START_S, home: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """One ``p2pmesh`` command to its end."""
    extra = () if home is None else ("--home", str(home))
    return subprocess.run(
        [sys.executable, "-m", "p2pmesh", *arguments, *extra],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@dataclass
class NodeProcess:
    """A running ``p2pmesh up``; its events as they come, its stderr, every child that was seen."""

    name: str
    home: Path
    process: "subprocess.Popen[str]"
    events: list[Event] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _seen_children: set[int] = field(default_factory=set)
    _is_told_to_stop: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _has_ended: bool = False

    # --- events
    def follow(self) -> None:
        """Starts reading both pipes."""
        threading.Thread(target=self._read_events, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.rstrip("\n"))

    def mark(self) -> int:
        """A place in the events, for ``wait_for(after=…)``."""
        return len(self.events)

    def find(self, name: str, after: int = 0, where: Callable[[Event], bool] | None = None) -> Event | None:
        """The first event of a name that is already here."""
        return next((e for e in self.events[after:] if e["event"] == name and (where is None or where(e))), None)

    def wait_for(
        self, name: str, *, timeout_s: float = READY_S, after: int = 0, where: Callable[[Event], bool] | None = None
    ) -> Event:
        """The first event of a name from ``after`` on; fails with all that was told when it does not come."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.find(name, after, where) is not None or self._has_ended, timeout=timeout_s
            )
        found = self.find(name, after, where)
        if found is None:
            told = "\n".join([*(json.dumps(e) for e in self.events[-20:]), *self.errors[-20:]])
            raise AssertionError(f"{self.name}: no {name} within {timeout_s:g} s (ended: {self._has_ended})\n{told}")
        self.children()
        return found

    # --- facts
    @property
    def api_url(self) -> str:
        """Where ``/v1`` is."""
        return str(self.wait_for("listening", timeout_s=START_S)["api_url"])

    @property
    def peer_id(self) -> str:
        """The node's peer id."""
        return str(self.wait_for("listening", timeout_s=START_S)["peer_id"])

    @property
    def invite(self) -> str:
        """An invite to its mesh."""
        return str(self.wait_for("invite", timeout_s=START_S)["invite"])

    def status(self) -> dict[str, Any]:
        """``GET /api/status``."""
        run = json.loads((self.home / "run.json").read_text())
        headers = {"authorization": f"Bearer {run['console_token']}"}
        answer = httpx.get(run["console_url"] + "/api/status", headers=headers, timeout=10, trust_env=False)
        answer.raise_for_status()
        return dict(answer.json())

    def children(self) -> tuple[int, ...]:
        """Processes that the node has started and that live; remembered for ``assert_no_child_left``."""
        found = children_of(self.process.pid)
        self._seen_children.update(found)
        return found

    # --- requests
    def client(self, timeout_s: float = 120.0) -> httpx.Client:
        """A client of this node's ``/v1``."""
        return httpx.Client(base_url=self.api_url, timeout=timeout_s, trust_env=False)

    def complete(self, model: str, prompt: str | Sequence[int], **parameters: Any) -> dict[str, Any]:
        """The answer of ``/v1/completions``; fails unless it is 200."""
        body = {"model": model, "prompt": prompt, "return_token_ids": True, **parameters}
        with self.client() as client:
            answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    @contextlib.contextmanager
    def stream(
        self, model: str, prompt: str | Sequence[int], **parameters: Any
    ) -> "Iterator[Iterator[dict[str, Any]]]":
        """Chunks of a streamed completion, an error event among them, without the end mark."""
        body = {"model": model, "prompt": prompt, "stream": True, "return_token_ids": True, **parameters}
        with self.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            yield _chunks(answer)

    # --- the end
    def send_signal(self, number: signal.Signals) -> None:
        """To the node's process alone."""
        self._is_told_to_stop = self._is_told_to_stop or number is signal.SIGTERM
        self.children()
        self.process.send_signal(number)

    def wait_ended(self, timeout_s: float = STOP_S) -> int:
        """The exit code; no child may be left, now or a moment after a kill."""
        code = self.process.wait(timeout_s)
        self.assert_no_child_left()
        return code

    def tell_to_stop(self) -> None:
        """By SIGTERM, once: a second one would end it at once."""
        if self.process.poll() is None and not self._is_told_to_stop:
            self.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Drains by SIGTERM and holds the node to its promises: exit 0, no traceback, no child, no run.json."""
        self.tell_to_stop()
        code = self.wait_ended()
        assert code == 0, (code, self.errors[-30:])
        assert not any("Traceback" in line for line in self.errors), self.errors[-60:]
        assert not (self.home / "run.json").exists()

    def kill(self) -> None:
        """SIGKILL, as a power cut; its engines must notice by themselves."""
        self.send_signal(signal.SIGKILL)
        self.wait_ended()

    def assert_no_child_left(self) -> None:
        """Every engine that this node was seen with is gone within ``CHILD_END_S``."""
        left = wait_until(lambda: not [pid for pid in self._seen_children if is_running(pid)], CHILD_END_S)
        assert left, f"{self.name} left {[pid for pid in self._seen_children if is_running(pid)]} behind"

    def clean_up(self) -> None:
        """After a failed test: nothing that it started may go on."""
        if self.process.poll() is None:
            self.children()
            self.process.kill()
            self.process.wait()
        for pid in self._seen_children:
            if is_running(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _chunks(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def tokens_of(answer: dict[str, Any]) -> list[int]:
    """The token ids of a completion, or of one chunk of it."""
    if "error" in answer:
        raise AssertionError(answer)
    return list(answer["choices"][0].get("token_ids") or []) if answer["choices"] else []


def tokens_in(chunks: Iterable[dict[str, Any]]) -> list[int]:
    """The token ids of all chunks; of a stream, those that are still to come."""
    return [token for chunk in chunks for token in tokens_of(chunk)]


def next_tokens(chunks: Iterator[dict[str, Any]], at_least: int) -> list[int]:
    """The token ids of a stream from here on, as soon as they are so many."""
    tokens: list[int] = []
    while len(tokens) < at_least:
        tokens += tokens_of(next(chunks))
    return tokens


def assert_a_stream_outlives(
    leaver: NodeProcess, spare: NodeProcess, asked: NodeProcess, undisturbed: dict[str, Any], **request: Any
) -> None:
    """``leaver`` drains while ``asked`` streams: ``spare`` has its stage then, and no byte is another.

    ``asked`` coordinates the run; ``undisturbed`` is what ``NodeProcess.complete`` gave for the request before.
    """
    assert wait_until(lambda: spare.peer_id in _with_memory(asked), START_S)
    with asked.stream(**request) as chunks:
        told = next_tokens(chunks, 5)
        leaver.send_signal(signal.SIGTERM)
        told += tokens_in(chunks)
    assert told == tokens_of(undisturbed)
    assert asked.wait_for("replanned")["reason"] == "peer_leaves"
    leaver.stop()
    assert spare.find("stage_ready")
    assert asked.complete(**request)["choices"] == undisturbed["choices"]


def _with_memory(node: NodeProcess) -> list[str]:
    """Peers that a node knows to offer memory."""
    return [peer["peer_id"] for peer in node.status()["peers"] if peer["free_bytes"]]


def children_of(pid: int) -> tuple[int, ...]:
    """Direct children that are no zombies; engines have none of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent, state = _parent_and_state(int(entry.name))
            if parent == pid and state != "Z":
                found.append(int(entry.name))
    return tuple(found)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return _parent_and_state(pid)[1] not in ("", "Z", "X")


def resident_bytes(pid: int) -> int:
    """What a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _parent_and_state(pid: int) -> tuple[int, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[1]), fields[0]


def wait_until(holds: Callable[[], bool], timeout_s: float) -> bool:
    """For facts that no event tells, such as those of ``/proc``."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def stop_at_once(nodes: Sequence[NodeProcess]) -> None:
    """Drains nodes together, so that none hands its stages over to another."""
    for node in nodes:
        node.tell_to_stop()
    for node in nodes:
        node.stop()


@dataclass
class Peers:
    """All nodes of one test, or of one module; homes lie under ``folder``."""

    folder: Path
    nodes: list[NodeProcess] = field(default_factory=list)

    def start(self, name: str, *arguments: str, wait: bool = True, home: Path | None = None) -> NodeProcess:
        """``p2pmesh up`` with free ports on the loopback interface; returns once it listens (``wait``)."""
        home = home or self._home_of(name)
        command = [
            *(sys.executable, "-m", "p2pmesh", "up", "--home", str(home), "--name", name),
            *("--port", "0", "--console-port", "0", "--listen", "/ip4/127.0.0.1/tcp/0", "--log-format", "json"),
            *arguments,
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        node = NodeProcess(name, home, process)
        self.nodes.append(node)
        node.follow()
        if wait:
            node.wait_for("listening", timeout_s=START_S)
        return node

    def _home_of(self, name: str) -> Path:
        """A home that shares with all others of the session what engines found out about this machine.

        Measuring that anew for each home takes longer than what most tests are about.
        """
        home = self.folder / name
        shared = self.folder.parent / "engine-findings"
        shared.mkdir(exist_ok=True)
        cache = home / "cache"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        if not (cache / "engine").exists():
            (cache / "engine").symlink_to(shared, target_is_directory=True)
        return home

    def found(self, name: str, *arguments: str) -> NodeProcess:
        """A founder of a mesh, once it has an invite."""
        node = self.start(name, *arguments)
        node.wait_for("invite", timeout_s=START_S)
        return node

    def join(self, name: str, invite: str, *arguments: str) -> NodeProcess:
        """A joined peer."""
        node = self.start(name, "--join", invite, *arguments)
        node.wait_for("invite", timeout_s=START_S)
        return node

    def stop_all(self) -> None:
        """Drains every node that still runs."""
        stop_at_once([node for node in reversed(self.nodes) if node.process.poll() is None])

    def clean_up(self) -> None:
        """Whatever happened, nothing goes on."""
        for node in self.nodes:
            node.clean_up()
            for pipe in (node.process.stdout, node.process.stderr):
                if pipe is not None:
                    pipe.close()
