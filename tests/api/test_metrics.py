"""What the API counts."""

import json
import re

import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from p2pmesh.api.metrics import MAX_MODEL_LABELS, Metrics
from p2pmesh.api.openai.app import openai_app
from p2pmesh.base.errors import ErrorCode, Refused
from p2pmesh.wire.generation import FinishReason, GenerationDelta, GenerationFinished
from tests.fakes.asgi import AsgiClient
from tests.fakes.backend import MODEL, FakeBackend, say, started


async def fetch(app, path: str, body: dict | None = None) -> AsgiClient:  # type: ignore[no-untyped-def, type-arg]
    client = AsgiClient(b"" if body is None else json.dumps(body).encode())
    await client.run(app, path, "GET" if body is None else "POST")
    return client


async def test_answers_tokens_and_times_are_counted(autojump_clock: MockClock) -> None:
    async def think() -> None:
        await trio.sleep(0.2)

    first, *rest = say("a", "b", "c")
    backend = FakeBackend(script=(first, think, rest[0], think, rest[1], think, *rest[2:]))
    app = openai_app(backend)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 2}
    assert (await fetch(app, "/v1/chat/completions", chat)).status == 200
    backend.entry_error = Refused(ErrorCode.OVERLOADED, "later")
    assert (await fetch(app, "/v1/chat/completions", chat)).status == 429
    assert (await fetch(app, "/v1/models/" + MODEL)).status == 200
    assert (await fetch(app, "/wp-login.php")).status == 404
    client = await fetch(app, "/metrics")
    assert client.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(client.text)
        for sample in family.samples
    }
    assert samples["p2pmesh_http_responses_total", "/v1/chat/completions", "200"] == 1
    assert samples["p2pmesh_http_responses_total", "/v1/chat/completions", "429"] == 1
    assert samples["p2pmesh_http_responses_total", "/v1/models/{id}", "200"] == 1
    assert samples["p2pmesh_http_responses_total", "404", "other"] == 1
    assert samples["p2pmesh_completion_tokens_total", MODEL] == 6
    assert samples["p2pmesh_prompt_tokens_total", MODEL] == 6
    assert samples["p2pmesh_cached_prompt_tokens_total", MODEL] == 0
    assert samples["p2pmesh_generations_total", MODEL, "stop"] == 2
    assert samples["p2pmesh_generations_total", "failed", MODEL] >= 1
    assert samples["p2pmesh_generations_running",] == 0
    assert samples["p2pmesh_models_routable",] == 1
    assert samples["p2pmesh_time_to_first_token_seconds_count", MODEL] == 2
    assert round(samples["p2pmesh_time_to_first_token_seconds_sum", MODEL], 6) == 0.4
    assert samples["p2pmesh_time_to_first_token_seconds_bucket", "0.1", MODEL] == 0
    assert samples["p2pmesh_time_to_first_token_seconds_bucket", "0.25", MODEL] == 2
    assert round(samples["p2pmesh_time_per_output_token_seconds_sum", MODEL], 6) == 0.4


async def test_what_runs_now_is_told(autojump_clock: MockClock) -> None:
    goes_on = trio.Event()
    backend = FakeBackend(script=(started(), GenerationDelta((1,), "a"), goes_on.wait, say("a")[-1]))
    app = openai_app(backend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, app, "/v1/completions", {"model": MODEL, "prompt": "a"})
        await trio.testing.wait_all_tasks_blocked()
        assert "p2pmesh_generations_running 1\n" in (await fetch(app, "/metrics")).text
        goes_on.set()
    assert "p2pmesh_generations_running 0\n" in (await fetch(app, "/metrics")).text


def test_labels_are_bounded_and_escaped() -> None:
    metrics = Metrics(lambda: 0.0)
    for number in range(MAX_MODEL_LABELS + 9):
        meter = metrics.meter(f'a"\n{number}')
        meter.start(1)
        meter.finish(GenerationFinished(FinishReason.STOP, "", 1))
    text = metrics.text(0)
    assert len(re.findall(r"^p2pmesh_completion_tokens_total", text, re.MULTILINE)) == MAX_MODEL_LABELS + 1
    assert 'p2pmesh_completion_tokens_total{model="a\\"\\n0"} 1' in text
    assert 'p2pmesh_completion_tokens_total{model="other"} 9' in text


def test_names_that_clients_make_up_take_no_label_from_a_model_that_is_served() -> None:
    metrics = Metrics(lambda: 0.0)
    for number in range(MAX_MODEL_LABELS):
        metrics.meter(f"made-up-{number}").close()
    meter = metrics.meter("served")
    meter.start(1)
    meter.finish(GenerationFinished(FinishReason.STOP, "", 1))
    text = metrics.text(1)
    assert 'p2pmesh_generations_total{model="served",outcome="stop"} 1' in text
    assert f'p2pmesh_generations_total{{model="other",outcome="failed"}} {MAX_MODEL_LABELS}' in text
