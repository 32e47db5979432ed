"""A node that takes its time, and one that answers nothing, before real sockets."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from p2pmesh.app import node_watch
from p2pmesh.app.node_watch import NodeWatch
from p2pmesh.app.run_file import RunFile, is_process_stopped
from p2pmesh.base.errors import ErrorCode, PeerUnavailable, Refused

PATIENCE_S = 20.0
HOME = Path("/home/of/it")


def run_file(port: int, pid: int | None = None) -> RunFile:
    url = f"http://127.0.0.1:{port}"
    return RunFile(os.getpid() if pid is None else pid, url, url, "token", "peer")


class Living(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def living() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Living)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def mute() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:  # it listens, and nobody takes what comes
        yield sock.getsockname()[1]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "LIFE_DEADLINE_S", PATIENCE_S)
    monkeypatch.setattr(node_watch, "ASK_AGAIN_S", 0.01)


@pytest.fixture
def hasty(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "LIFE_DEADLINE_S", 0.2)


def stuck() -> None:
    threading.Event().wait(PATIENCE_S)


def test_a_node_that_answers_nothing_is_not_waited_for(hasty: None) -> None:
    told: list[int] = []
    with mute() as port, pytest.raises(PeerUnavailable) as raised:
        NodeWatch(run_file(port), HOME, lambda: told.append(1), silence_s=0.01).during(stuck)
    assert raised.value.code is ErrorCode.NODE_UNRESPONSIVE
    assert f"the node of {HOME} (process {os.getpid()}) does not answer" in raised.value.message
    assert told == []


def test_of_a_stopped_process_it_is_told_how_it_goes_on(hasty: None) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        sleeper.send_signal(signal.SIGSTOP)
        os.waitpid(sleeper.pid, os.WUNTRACED)
        assert is_process_stopped(sleeper.pid)
        with mute() as port, pytest.raises(PeerUnavailable, match=f"is stopped: `kill -CONT {sleeper.pid}`"):
            NodeWatch(run_file(port, sleeper.pid), HOME, silence_s=0.01).during(stuck)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert not is_process_stopped(os.getpid())
    assert not is_process_stopped(sleeper.pid)


def test_a_node_that_lives_is_waited_for_and_each_silence_told_once() -> None:
    told = threading.Semaphore(0)

    def slow() -> str:
        assert told.acquire(timeout=PATIENCE_S)
        assert not told.acquire(timeout=0.1)
        watch.heard()
        assert told.acquire(timeout=PATIENCE_S)
        return "answer"

    with living() as port:
        watch = NodeWatch(run_file(port), HOME, told.release, silence_s=0.01)
        assert watch.during(slow) == "answer"


def test_whoever_sends_something_is_not_asked_whether_it_lives() -> None:
    told = threading.Event()

    def pinged() -> str:
        while not told.wait(0.005):
            watch.lives()
        return "answer"

    with mute() as port:
        watch = NodeWatch(run_file(port), HOME, told.set, silence_s=0.1)
        assert watch.during(pinged) == "answer"


def test_a_node_that_is_gone_is_told_by_the_request() -> None:
    with mute() as port:
        pass
    told = threading.Event()

    def broken() -> None:
        assert told.wait(PATIENCE_S)
        raise Refused(ErrorCode.PEER_LOST, "the connection broke")

    with pytest.raises(Refused, match="the connection broke"):
        NodeWatch(run_file(port), HOME, told.set, silence_s=0.01).during(broken)


@pytest.mark.parametrize("error", [BrokenPipeError(), KeyError("a bug")])
def test_what_the_request_raises_is_raised_itself(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        NodeWatch(run_file(1), HOME).during(fail)
    assert raised.value is error
