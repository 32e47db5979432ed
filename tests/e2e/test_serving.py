"""What a pipeline of real processes does for its clients while nothing breaks."""

import hashlib
import json
import random
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from p2pmesh.base.limits import DEFAULT_LANES
from tests.e2e.conftest import TINY, TINY_LAYERS
from tests.e2e.peers import NodeProcess, Peers, run_command, tokens_in, tokens_of, wait_until

PROMPT = "hello"
CANCEL_S = 5.0
FEW_BYTES = 4096
"""Of a client's window: without a bound its kernel takes megabytes that nobody reads, and the node cannot know."""
READS_NOTHING_S = 90.0
"""30 s since nothing was taken, and what fills the kernel's buffers before, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A coordinator that drives two stages, the joiner that holds the second, a third peer without memory."""

    driver: NodeProcess
    joiner: NodeProcess
    bystander: NodeProcess

    def all(self) -> tuple[NodeProcess, ...]:
        return (self.driver, self.joiner, self.bystander)

    def open_sequences(self) -> list[int]:
        """On each stage."""
        return [stage["open_sequences"] for node in (self.driver, self.joiner) for stage in node.status()["stages"]]


@pytest.fixture(scope="module")
def pair(module_peers: Peers, tiny_model: Path) -> Pair:
    driver = module_peers.found("driver", "--model", str(tiny_model), "--split", "2")
    bystander = module_peers.join("bystander", driver.invite, "--max-memory", "0")
    driver.wait_for("waiting_for_peers")
    _assert_not_ready(driver)
    _assert_not_ready(bystander)
    joiner = module_peers.join("joiner", driver.invite, "--max-memory", "1GiB")
    driver.wait_for("pipeline_ready")
    for node in (driver, joiner, bystander):
        node.wait_for("ready")
    return Pair(driver, joiner, bystander)


def _assert_not_ready(node: NodeProcess) -> None:
    with node.client() as client:
        answers = [
            client.post("/v1/completions", json={"model": TINY, "prompt": PROMPT}),
            client.get("/readyz"),
        ]
        assert client.get("/livez").status_code == 200
        assert client.get("/v1/models").json()["data"] == []
    for answer in answers:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "model_not_ready"


def test_a_joiner_without_the_model_fetches_just_its_stage_and_checks_it(pair: Pair, tiny_model: Path) -> None:
    loading = pair.joiner.wait_for("stage_loading")
    assert loading["source"] == pair.driver.peer_id
    assert loading["layers"][0] > 0
    assert loading["layers"][1] == TINY_LAYERS
    kept = list((pair.joiner.home / "cache" / "stages").glob("*.gguf"))
    assert len(kept) == 1
    assert kept[0].stat().st_size == loading["bytes"] < tiny_model.stat().st_size
    digest = hashlib.sha256(kept[0].read_bytes()).hexdigest()
    cut = {hashlib.sha256(path.read_bytes()).hexdigest() for path in pair.driver.home.glob("cache/stages/*.gguf")}
    assert digest in cut


def test_every_peer_gives_the_same_tokens(pair: Pair) -> None:
    answers = [
        [tokens_of(node.complete(TINY, PROMPT, max_tokens=40, temperature=t, seed=3)) for t in (0, 0.9)]
        for node in pair.all()
    ]
    assert len(answers[0][0]) == len(answers[0][1]) == 40
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]


def test_a_stream_carries_what_the_whole_answer_does(pair: Pair) -> None:
    whole = pair.driver.complete(TINY, PROMPT, max_tokens=40, temperature=0)
    with pair.bystander.stream(TINY, PROMPT, max_tokens=40, temperature=0) as chunks:
        told = list(chunks)
    assert tokens_in(told) == tokens_of(whole)
    assert "".join(chunk["choices"][0]["text"] for chunk in told) == whole["choices"][0]["text"]
    assert told[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("ingress", ["driver", "bystander"])
def test_a_client_that_hangs_up_frees_every_stage(pair: Pair, ingress: str, is_streamed: bool) -> None:
    node: NodeProcess = getattr(pair, ingress)
    body = {"model": TINY, "prompt": PROMPT, "max_tokens": 3900, "temperature": 0, "stream": is_streamed}
    with ExitStack() as connections:
        for _ in range(DEFAULT_LANES):
            connections.enter_context(_asking(node, body))
        busy = wait_until(lambda: pair.open_sequences() == [DEFAULT_LANES] * 2, 30)
        assert busy, pair.open_sequences()
    assert wait_until(lambda: pair.open_sequences() == [0, 0], CANCEL_S), pair.open_sequences()
    with ThreadPoolExecutor(DEFAULT_LANES) as pool:
        answers = list(
            pool.map(lambda _: node.complete(TINY, PROMPT, max_tokens=8, temperature=0), range(DEFAULT_LANES))
        )
    assert all(len(tokens_of(answer)) == 8 for answer in answers)


@pytest.mark.slow
def test_hanging_up_at_fifty_random_moments_leaves_no_lane_and_no_row(pair: Pair) -> None:
    """Whole lanes full of rows are the proof: a row that was left behind would take the place of one of theirs."""
    prompt = [4 + n % 200 for n in range(3800)]
    before = [tokens_of(pair.driver.complete(TINY, prompt, max_tokens=8, temperature=0))] * DEFAULT_LANES
    moments = random.Random(39)
    with ThreadPoolExecutor(DEFAULT_LANES + 2) as pool:
        list(pool.map(lambda moment: _hang_up(pair, *moment), [_moment(moments) for _ in range(50)]))
    assert wait_until(lambda: pair.open_sequences() == [0, 0], CANCEL_S), pair.open_sequences()
    with ThreadPoolExecutor(DEFAULT_LANES) as pool:
        after = list(
            pool.map(
                lambda _: tokens_of(pair.driver.complete(TINY, prompt, max_tokens=8, temperature=0)),
                range(DEFAULT_LANES),
            )
        )
    assert after == before


def _moment(moments: random.Random) -> tuple[int, int, int, bool]:
    """Which node is asked, how long the prompt is, after how many bytes of the answer the client goes; streamed?"""
    return (
        moments.randrange(2),
        moments.choice((5, 700, 3000)),
        moments.choice((0, 1, 200, 4000)),
        moments.random() < 0.8,
    )


def _hang_up(pair: Pair, asked: int, prompt_tokens: int, after_bytes: int, is_streamed: bool) -> None:
    body = {"model": TINY, "prompt": [7] * prompt_tokens, "max_tokens": 900, "temperature": 0, "stream": is_streamed}
    with _asking((pair.driver, pair.bystander)[asked], body) as connection:
        connection.settimeout(60)
        received = 0
        while received < after_bytes and is_streamed:
            received += len(connection.recv(256)) or after_bytes


@pytest.mark.slow
@pytest.mark.parametrize("ingress", ["driver", "bystander"])
def test_clients_that_read_nothing_lose_their_lanes(pair: Pair, ingress: str) -> None:
    node: NodeProcess = getattr(pair, ingress)
    body = {"model": TINY, "prompt": PROMPT, "max_tokens": 3900, "temperature": 0, "stream": True}
    with ExitStack() as open_ones:
        clients = [open_ones.enter_context(_asking(node, body, FEW_BYTES)) for _ in range(DEFAULT_LANES)]
        assert wait_until(lambda: pair.open_sequences() == [DEFAULT_LANES] * 2, 30), pair.open_sequences()
        assert wait_until(lambda: pair.open_sequences() == [0, 0], READS_NOTHING_S), pair.open_sequences()
        for client in clients:
            assert b"[DONE]" not in _read_to_end(client, 65_536, 0)


@pytest.mark.slow
@pytest.mark.parametrize("ingress", ["driver", "bystander"])
def test_a_client_on_a_slow_link_has_its_whole_answer(pair: Pair, ingress: str) -> None:
    """Its lane is free long before: it waits for nobody who reads at all."""
    node: NodeProcess = getattr(pair, ingress)
    body = {"model": TINY, "prompt": PROMPT, "max_tokens": 1500, "temperature": 0, "stream": True}
    with ThreadPoolExecutor(1) as pool, _asking(node, body, FEW_BYTES) as client:
        reading = pool.submit(_read_to_end, client, FEW_BYTES, 0.2)
        assert wait_until(lambda: pair.open_sequences() == [1, 1], 30), pair.open_sequences()
        assert wait_until(lambda: pair.open_sequences() == [0, 0], 60), pair.open_sequences()
        assert not reading.done()
        answer = reading.result()
    assert b'"finish_reason":"length"' in answer
    assert b"[DONE]" in answer


def _read_to_end(client: socket.socket, most_bytes: int, pause_s: float) -> bytes:
    """What comes until the end of the answer, or of the connection; slowly."""
    client.settimeout(60)
    answer = b""
    while b"[DONE]" not in answer[-200:]:
        try:
            data = client.recv(most_bytes)
        except ConnectionResetError:
            return answer
        if not data:
            return answer
        answer += data
        time.sleep(pause_s)
    return answer


def _asking(node: NodeProcess, body: dict[str, object], window_bytes: int | None = None) -> socket.socket:
    """A connection with a request on it whose answer nobody reads; closed as it is left."""
    url = urlsplit(node.api_url)
    assert url.hostname is not None
    connection = socket.socket()
    if window_bytes is not None:  # before it connects, when its window is agreed on
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    connection.settimeout(10)
    connection.connect((url.hostname, url.port or 80))
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


def test_the_openai_sdk_needs_no_change(pair: Pair) -> None:
    client = openai.OpenAI(base_url=pair.bystander.api_url + "/v1", api_key="unused", max_retries=0, timeout=60)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    asked = {"model": TINY, "temperature": 0, "seed": 5, "max_tokens": 20}
    with client:
        assert [model.id for model in client.models.list()] == [TINY]
        chat = client.chat.completions.create(messages=messages, **asked)  # type: ignore[call-overload]
        stream = client.chat.completions.create(  # type: ignore[call-overload]
            messages=messages, stream=True, stream_options={"include_usage": True}, **asked
        )
        chunks = list(stream)
        text = client.completions.create(prompt=PROMPT, **asked)  # type: ignore[call-overload]
        pieces = list(client.completions.create(prompt=PROMPT, stream=True, **asked))  # type: ignore[call-overload]
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage.completion_tokens == 20
    assert chat.system_fingerprint
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == chat.choices[0].message.content
    assert chunks[-1].usage == chat.usage
    assert "".join(piece.choices[0].text for piece in pieces) == text.choices[0].text


def test_the_sdk_sees_errors_as_openais(pair: Pair) -> None:
    client = openai.OpenAI(base_url=pair.driver.api_url + "/v1", api_key="unused", max_retries=0, timeout=60)
    with client:
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="nobody/has-it", prompt="x")
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model=TINY, prompt="x", stop=list("abcde"))
    assert raised.value.param == "stop"


def test_half_a_character_is_refused_at_every_peer(pair: Pair) -> None:
    for node in (pair.driver, pair.bystander):
        with node.client() as client:
            answer = client.post("/v1/completions", content=b'{"model": "tiny", "prompt": "\\ud800"}')
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_a_conversation_that_peers_cannot_carry_is_too_large(pair: Pair) -> None:
    messages = [{"role": "user", "content": "a" * 900_000}] * 3
    with pair.bystander.client() as client:
        answer = client.post("/v1/chat/completions", json={"model": TINY, "messages": messages})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_prompt_beyond_the_context_is_the_clients_doing(pair: Pair) -> None:
    for node in (pair.driver, pair.bystander):
        with node.client() as client:
            answer = client.post("/v1/completions", json={"model": TINY, "prompt": [5] * 4096})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_commands_talk_to_the_running_node(pair: Pair) -> None:
    home = pair.driver.home
    status = run_command("status", home=home)
    assert status.returncode == 0
    assert pair.driver.peer_id in status.stdout
    told = json.loads(run_command("status", "--json", home=home).stdout)
    assert {peer["name"] for peer in told["peers"]} == {"joiner", "bystander"}
    assert [model["name"] for model in told["models"]] == [TINY]
    chat = run_command("chat", TINY, "Hi", "--max-tokens", "12", "--temperature", "0", home=home)
    assert (chat.returncode, chat.stderr) == (0, "")
    assert chat.stdout.strip()
    unknown = run_command("chat", "nobody/has-it", "Hi", home=home)
    assert unknown.returncode == 42
    assert len(unknown.stderr.splitlines()) == 1


def test_models_are_listed_and_shown(tmp_path: Path, tiny_model: Path) -> None:
    listed = run_command("models", "list", "--json", home=tmp_path)
    assert listed.returncode == 0
    json.loads(listed.stdout)
    shown = json.loads(run_command("models", "show", str(tiny_model), "--json", home=tmp_path).stdout)
    assert shown["name"] == TINY


def test_the_status_wants_the_token_of_the_home(pair: Pair) -> None:
    run_file = pair.driver.home / "run.json"
    run = json.loads(run_file.read_text())
    assert run_file.stat().st_mode & 0o777 == 0o600
    assert (pair.driver.home / "node.key").stat().st_mode & 0o777 == 0o600
    url = run["console_url"] + "/api/status"
    assert httpx.get(url, trust_env=False).status_code == 401
    assert httpx.get(url, headers={"authorization": "Bearer wrong"}, trust_env=False).status_code == 401


def test_no_secret_lies_about(pair: Pair) -> None:
    """Invite and key stand in ``node.key`` and in the event that tells the invite, nowhere else."""
    for node in pair.all():
        key_lines = [line for line in (node.home / "node.key").read_text().splitlines() if "-----" not in line]
        secrets = [pair.driver.invite.encode(), *(line.encode() for line in key_lines if line)]
        assert len(secrets) >= 2
        for path in node.home.rglob("*"):
            if path.is_file() and path.name != "node.key":
                held = path.read_bytes()
                assert not any(secret in held for secret in secrets), path
        told = "".join(line for line in node.lines if '"event":"invite"' not in line) + "\n".join(node.errors)
        status = json.dumps(node.status())
        assert not any(secret.decode() in told + status for secret in secrets)


def test_a_coordinator_without_memory_lets_another_peer_drive(peers: Peers, tiny_model: Path) -> None:
    coordinator = peers.found("coordinator", "--model", str(tiny_model), "--max-memory", "0")
    coordinator.wait_for("waiting_for_peers")
    worker = peers.join("worker", coordinator.invite, "--max-memory", "1GiB")
    stages = coordinator.wait_for("pipeline_ready")["stages"]
    assert [stage["peer_id"] for stage in stages] == [worker.peer_id]
    assert stages[0]["layers"] == [0, TINY_LAYERS]
    coordinator.wait_for("ready")
    assert len(tokens_of(coordinator.complete(TINY, PROMPT, max_tokens=10, temperature=0))) == 10
    assert coordinator.children() == ()
    worker.send_signal(signal.SIGINT)
    assert worker.wait_ended() == 0


def sdk_of(node: NodeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{node.api_url}/v1", api_key="any", timeout=60, max_retries=0)


def test_choices_and_log_probabilities_come_through_every_peer(pair: Pair) -> None:
    told = []
    for node in pair.all():
        client = sdk_of(node)
        given = {"model": TINY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "seed": 3, "n": 3}
        whole = client.chat.completions.create(**given, logprobs=True, top_logprobs=4)
        texts = [choice.message.content for choice in whole.choices]
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        assert len(set(texts)) > 1
        for choice in whole.choices:
            entries = choice.logprobs.content
            assert all(len(entry.top_logprobs) == 4 and entry.logprob <= 0 for entry in entries)
            assert all(bytes(entry.bytes).decode("utf-8", "replace") == entry.token for entry in entries)
        streamed: dict[int, str] = {0: "", 1: "", 2: ""}
        for chunk in client.chat.completions.create(**given, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert list(streamed.values()) == texts
        told.append([[entry.token for entry in choice.logprobs.content] for choice in whole.choices])
    assert told[0] == told[1] == told[2]


def test_a_bias_and_a_batch_reach_the_last_stage(pair: Pair) -> None:
    client = sdk_of(pair.bystander)
    given = {"model": TINY, "max_tokens": 1, "temperature": 0, "extra_body": {"return_token_ids": True}}
    plain = client.completions.create(prompt=["a", "b"], logprobs=1, **given)
    assert [choice.index for choice in plain.choices] == [0, 1]
    token = plain.choices[0].model_extra["token_ids"][0]
    barred = client.completions.create(prompt="a", logit_bias={str(token): -100}, **given)
    assert barred.choices[0].model_extra["token_ids"] != [token]


def test_texts_are_read_through_both_stages(pair: Pair) -> None:
    vectors = [sdk_of(node).embeddings.create(model=TINY, input=["a text", "another"]) for node in pair.all()]
    first = [one.embedding for one in vectors[0].data]
    assert [one.embedding for one in vectors[2].data] == [one.embedding for one in vectors[1].data] == first
    assert first[0] != first[1]
    assert sum(value * value for value in first[0]) == pytest.approx(1.0, abs=1e-5)
    short = sdk_of(pair.bystander).embeddings.create(model=TINY, input="a text", dimensions=4, encoding_format="float")
    assert len(short.data[0].embedding) == 4
    assert short.usage.prompt_tokens > 0


def test_a_response_is_streamed_to_its_end(pair: Pair) -> None:
    client = sdk_of(pair.bystander)
    schema = {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}
    wanted = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    given = {"model": TINY, "input": "hi", "temperature": 0, "text": wanted}
    whole = client.responses.create(**given)
    assert json.loads(whole.output_text)["a"] in ("yes", "no")
    with client.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == whole.output_text
    cut = client.responses.create(model=TINY, input="hi", max_output_tokens=8, temperature=0)
    assert (cut.status, cut.usage.output_tokens) == ("incomplete", 8)


def test_tokens_of_a_text_are_told_where_nothing_is_held(pair: Pair) -> None:
    with pair.bystander.client() as client:
        tokens = client.post("/tokenize", json={"model": TINY, "prompt": "hi", "add_special_tokens": False}).json()
        assert tokens["count"] == len(tokens["tokens"])
        text = client.post("/detokenize", json={"model": TINY, "tokens": tokens["tokens"]}).json()
        assert text["prompt"].strip() == "hi"
        assert "p2pmesh_generations_total" in client.get("/metrics").text
