"""Two coordinators of one model on the two sides of a cut: each takes the other for dead, and one run is left."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TINY
from tests.e2e.measure_reach import IDLE, LabPeers, fetch, status_of
from tests.e2e.namespaces import Machine, cut_off, open_machines, require_namespaces
from tests.e2e.peers import NodeProcess, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BODY: dict[str, Any] = {
    "model": TINY, "prompt": "hello", "max_tokens": 1500, "temperature": 0, "stream": True, "return_token_ids": True,
}  # fmt: skip
REPLACED_S = 60.0
"""A lease, and what it takes to place a model anew."""
STREAM_S = 120.0
_ASK = """
import json, sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url + "/v1/completions", body.encode(), {"content-type": "application/json"})
for line in urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=150):
    text = line.decode().strip()
    if text.startswith("data: "):
        print(text.removeprefix("data: "), flush=True)
"""


class Stream:
    """One answer as a client on that machine gets it."""

    def __init__(self, machine: Machine, node: NodeProcess) -> None:
        command = ["ip", "netns", "exec", machine.name, sys.executable, "-c", _ASK, node.api_url, json.dumps(BODY)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.tokens: list[int] = []
        self.others: list[str] = []
        """What came beside tokens: the end mark alone, if all is well."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            chunk = {} if line.startswith("[DONE]") else json.loads(line)
            if not chunk.get("choices"):
                self.others.append(line.strip())
            for choice in chunk.get("choices", ()):
                self.tokens += choice.get("token_ids") or []

    def wait_tokens(self, count: int) -> None:
        """So many are there."""
        assert wait_until(lambda: len(self.tokens) >= count, STREAM_S), self.others

    def whole(self) -> list[int]:
        """Once it has ended; nothing but tokens and the end mark may have come."""
        self._reader.join(STREAM_S)
        assert self.process.wait(STREAM_S) == 0, self.others
        assert self.others == ["[DONE]"]
        return self.tokens

    def assert_begins(self, undisturbed: list[int]) -> None:
        """Once it has ended, whole or with an error: nothing that it gave is another's, whoever gave it.

        Which error is a race: of the peers that are gone some are given up, others break their streams.
        """
        self._reader.join(STREAM_S)
        assert self.tokens == undisturbed[: len(self.tokens)]
        assert len(self.others) == 1, self.others
        if self.others == ["[DONE]"]:
            assert self.tokens == undisturbed
        else:
            error = json.loads(self.others[0])["error"]
            assert error["code"], error
            assert error["message"], error

    def clean_up(self) -> None:
        """Whatever happened, it goes on no more."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Cluster:
    """Two coordinators without memory and three peers, two of which hold a stage each, on machines of their own."""

    def __init__(self, machines: list[Machine], peers: LabPeers, model: Path) -> None:
        self._machines = machines
        self._peers = peers
        self._streams: list[Stream] = []
        self.nodes: list[NodeProcess] = []
        placing = ("--model", str(model), "--split", "2", "--ctx-size", "2048", *IDLE)
        self.first = self._start("first", *placing)
        join = ("--join", self.first.wait_for("invite")["invite"])
        self.holders = [
            self._start(f"peer-{n}", *join, "--discovery", "none", "--max-memory", "1GiB") for n in range(3)
        ]
        self.ready = self.first.wait_for("pipeline_ready")
        self.second = self._start("second", *join, *placing)
        self.second.wait_for("ready")
        self.second.wait_for("waiting_for_peers")  # it stands by

    def _start(self, name: str, *arguments: str) -> NodeProcess:
        node = self._peers.start_in(self._machines[len(self.nodes)].name, name, *arguments)
        self.nodes.append(node)
        return node

    def machine(self, node: NodeProcess) -> Machine:
        """Where it runs."""
        return self._machines[self.nodes.index(node)]

    def stage(self, index: int) -> NodeProcess:
        """Who holds a stage of the run before the cut."""
        return next(node for node in self.holders if node.peer_id == self.ready["stages"][index]["peer_id"])

    def ask(self, node: NodeProcess) -> Stream:
        """A stream, once it is on its way."""
        stream = Stream(self.machine(node), node)
        self._streams.append(stream)
        stream.wait_tokens(5)
        return stream

    def complete(self, node: NodeProcess) -> list[int]:
        """A whole answer that nothing disturbs."""
        url = f"{node.api_url}/v1/completions"
        answer = fetch(self.machine(node).name, url, body=BODY | {"stream": False})
        return list(answer["choices"][0]["token_ids"])

    def runs(self) -> set[str]:
        """Of which any stage is held, or that anybody coordinates."""
        found: set[str] = set()
        for node in self.nodes:
            told = status_of(node, self.machine(node).name)
            found |= {one["run_id"] for one in (*told["stages"], *told["placements"]) if one.get("run_id")}
        return found

    def clean_up(self) -> None:
        """Whatever happened, nothing goes on."""
        for stream in self._streams:
            stream.clean_up()


@pytest.fixture
def cluster(tmp_path: Path, tiny_model: Path) -> Iterator[Cluster]:
    require_namespaces()
    with open_machines(5) as machines:
        for number, machine in enumerate(machines):
            machine.address(f"10.78.0.{number + 1}/24")
        peers, made = LabPeers(tmp_path), None
        try:
            made = Cluster(machines, peers, tiny_model)
            yield made
            peers.stop_all()
        finally:
            if made is not None:
                made.clean_up()
            peers.clean_up()


def test_each_side_holds_a_stage_and_a_coordinator_and_the_side_that_can_serves(cluster: Cluster) -> None:
    first, second = cluster.first, cluster.second
    undisturbed = cluster.complete(second)
    left, right = cluster.ask(first), cluster.ask(second)
    third = next(node for node in cluster.holders if node not in (cluster.stage(0), cluster.stage(1)))
    marks = {node.name: node.mark() for node in cluster.nodes}
    with cut_off([cluster.machine(node) for node in (second, cluster.stage(1), third)]):
        first.wait_for("model_withdrawn", after=marks["first"], timeout_s=REPLACED_S)
        first.wait_for("waiting_for_peers", after=marks["first"], timeout_s=REPLACED_S)  # its plan has no second peer
        again = second.wait_for("pipeline_ready", after=marks["second"], timeout_s=REPLACED_S)
        assert {stage["peer_id"] for stage in again["stages"]} == {cluster.stage(1).peer_id, third.peer_id}
        assert right.whole() == undisturbed
    left.assert_begins(undisturbed)
    assert wait_until(lambda: cluster.runs() == {again["run_id"]}, REPLACED_S), cluster.runs()
    assert cluster.complete(second) == undisturbed
    assert_nothing_else_served(cluster, marks, {"second": again["run_id"]})


def test_the_coordinator_alone_is_cut_off_and_comes_back_with_an_old_claim(cluster: Cluster) -> None:
    first, second, ready = cluster.first, cluster.second, cluster.ready
    undisturbed = cluster.complete(second)
    left, right = cluster.ask(first), cluster.ask(second)
    marks = {node.name: node.mark() for node in cluster.nodes}
    others = [node for node in cluster.nodes if node is not first]
    with cut_off([cluster.machine(node) for node in others]):
        assert right.whole() == undisturbed  # it needs no coordinator
        heir = cluster.stage(0)
        taken = heir.wait_for("run_taken_over", after=marks[heir.name], timeout_s=REPLACED_S)
        assert (taken["run_id"], taken["from"]) == (ready["run_id"], first.peer_id)
        first.wait_for("model_withdrawn", after=marks["first"], timeout_s=REPLACED_S)
        first.wait_for("waiting_for_peers", after=marks["first"], timeout_s=REPLACED_S)
        assert cluster.complete(second) == undisturbed
    left.assert_begins(undisturbed)
    assert wait_until(lambda: cluster.runs() == {ready["run_id"]}, REPLACED_S), cluster.runs()
    assert cluster.complete(second) == undisturbed
    assert_nothing_else_served(cluster, marks, {})


def assert_nothing_else_served(cluster: Cluster, marks: dict[str, int], served: dict[str, str]) -> None:
    """Since the cut these runs alone began to serve, by who coordinates them; and no stream went on inexactly."""
    began, inexact = {}, []
    for node in cluster.nodes:
        for event in node.events[marks[node.name] :]:
            if event["event"] == "pipeline_ready":
                began[node.name] = event["run_id"]
            if event["event"] == "request_recovered" and not event["is_exact"]:
                inexact.append(event)
    assert began == served
    assert inexact == []
