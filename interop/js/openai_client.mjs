// The official `openai` package for Node, unmodified. The contract is that of interop/README.md.

import assert from "node:assert/strict";
import OpenAI from "openai";

const { CLIENT_BASE_URL, CLIENT_API_KEY, CLIENT_ONCE_A_MINUTE_KEY, CLIENT_MODEL } = process.env;
const client = new OpenAI({ baseURL: CLIENT_BASE_URL, apiKey: CLIENT_API_KEY, maxRetries: 0, timeout: 120_000 });
const weather = {
  type: "object",
  properties: { city: { enum: ["Bern", "Oslo"] }, days: { type: "integer", minimum: 1, maximum: 7 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "forecast", parameters: weather, strict: true } };
const ask = { model: CLIENT_MODEL, messages: [{ role: "user", content: "Name three colours." }] };
const long = { ...ask, max_tokens: 1500 };

function assertWeather(text) {
  const given = JSON.parse(text);
  assert.deepEqual(Object.keys(given), ["city", "days"]);
  assert.ok(weather.properties.city.enum.includes(given.city));
  assert.ok(given.days >= 1 && given.days <= 7);
}

async function expectError(kind, promise) {
  const error = await Promise.resolve(promise).then(
    () => null,
    (raised) => raised,
  );
  assert.ok(error instanceof kind, `no ${kind.name}, but ${error}`);
  return error;
}

const checks = {
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.ok(ids.includes(CLIENT_MODEL));
    assert.equal((await client.models.retrieve(CLIENT_MODEL)).id, CLIENT_MODEL);
  },

  async chat() {
    const answer = await client.chat.completions.create({ ...ask, max_completion_tokens: 12, seed: 1 });
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.completion_tokens, 12);
  },

  async stream_with_usage() {
    const short = { ...ask, max_tokens: 12, temperature: 0 };
    const whole = await client.chat.completions.create(short);
    const stream = await client.chat.completions.create({
      ...short,
      stream: true,
      stream_options: { include_usage: true },
    });
    const usages = [];
    let text = "";
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      if (chunk.usage) usages.push(chunk.usage.completion_tokens);
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usages, [12]);
  },

  async tools() {
    const answer = await client.chat.completions.create({
      ...ask,
      tools: [tool],
      tool_choice: "required",
      parallel_tool_calls: false,
      temperature: 0,
    });
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    assertWeather(answer.choices[0].message.tool_calls[0].function.arguments);
  },

  // By the package's own runner of tools, which streams and gathers the deltas itself.
  async streamed_tools() {
    const given = [];
    const runner = client.chat.completions.runTools(
      {
        ...ask,
        stream: true,
        temperature: 0,
        tool_choice: { type: "function", function: { name: "forecast" } },
        parallel_tool_calls: false,
        tools: [
          {
            type: "function",
            function: {
              ...tool.function,
              parse: (text) => (assertWeather(text), JSON.parse(text)),
              function: (parsed) => (given.push(parsed), `rain in ${parsed.city}`),
            },
          },
        ],
      },
      { maxChatCompletions: 1 },
    );
    await runner.done();
    assert.equal(given.length, 1);
  },

  async structured_output() {
    const answer = await client.chat.completions.create({
      ...ask,
      temperature: 0,
      response_format: { type: "json_schema", json_schema: { name: "weather", schema: weather, strict: true } },
    });
    assertWeather(answer.choices[0].message.content);
  },

  async embeddings() {
    const { data } = await client.embeddings.create({ model: CLIENT_MODEL, input: ["a red house", "a red house", "x"] });
    assert.deepEqual(data[0].embedding, data[1].embedding);
    assert.notDeepEqual(data[0].embedding, data[2].embedding);
  },

  async responses() {
    const given = { model: CLIENT_MODEL, input: "Name three colours.", max_output_tokens: 16, temperature: 0 };
    const whole = await client.responses.create(given);
    assert.ok(whole.output_text);
    const kinds = [];
    let text = "";
    for await (const event of client.responses.stream(given)) {
      kinds.push(event.type);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(kinds[0], "response.created");
    assert.ok(["response.incomplete", "response.completed"].includes(kinds.at(-1)));
    assert.equal(text, whole.output_text);
  },

  // That every stage is free afterwards is looked up by the runner.
  async cancellation() {
    const stream = await client.chat.completions.create({ ...long, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 5) break;
    const control = new AbortController();
    const asked = client.chat.completions.create(long, { signal: control.signal });
    setTimeout(() => control.abort(), 200);
    await expectError(OpenAI.APIUserAbortError, asked);
  },

  async error_400() {
    const messages = [{ role: "user", content: "far ".repeat(20_000) }];
    const error = await expectError(OpenAI.BadRequestError, client.chat.completions.create({ ...ask, messages }));
    assert.equal(error.code, "context_length_exceeded");
  },

  async error_401() {
    const stranger = client.withOptions({ apiKey: "sk-of-somebody-else" });
    const error = await expectError(OpenAI.AuthenticationError, stranger.models.list());
    assert.equal(error.code, "invalid_api_key");
  },

  async error_404() {
    const asked = client.chat.completions.create({ ...ask, model: "nobody/has-it" });
    const error = await expectError(OpenAI.NotFoundError, asked);
    assert.equal(error.code, "model_not_found");
  },

  async error_429() {
    const limited = client.withOptions({ apiKey: CLIENT_ONCE_A_MINUTE_KEY });
    await limited.models.list();
    const error = await expectError(OpenAI.RateLimitError, limited.models.list());
    assert.ok(Number(error.headers.get("retry-after")) >= 1);
  },
};

for (const [check, passes] of Object.entries(checks)) {
  let error = null;
  try {
    await passes();
  } catch (raised) {
    console.error(raised);
    error = String(raised).split("\n")[0].slice(0, 300);
    process.exitCode = 1;
  }
  console.log(JSON.stringify({ check, ok: error === null, error }));
}
