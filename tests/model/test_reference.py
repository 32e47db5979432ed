import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.model.reference import (
    HubReference,
    NameReference,
    PathReference,
    Reference,
    parse_reference,
)

COMMIT = "5a1b" * 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models/a.gguf", PathReference("/models/a.gguf")),
        ("./a", PathReference("./a")),
        ("../a/b.bin", PathReference("../a/b.bin")),
        ("~/a", PathReference("~/a")),
        ("a.gguf", PathReference("a.gguf")),
        ("folder/A.GGUF", PathReference("folder/A.GGUF")),
        ("SmolLM2-135M-Instruct", NameReference("SmolLM2-135M-Instruct")),
        ("qwen3-4b:Q8_0", NameReference("qwen3-4b", "Q8_0")),
        ("org/repo", HubReference("org/repo")),
        ("org/repo:Q4_K_M", HubReference("org/repo", "Q4_K_M")),
        ("org/repo:UD-Q4_K_XL", HubReference("org/repo", "UD-Q4_K_XL")),
        (f"org/repo@{COMMIT}", HubReference("org/repo", None, COMMIT)),
        ("org/repo:Q8_0@v1.2", HubReference("org/repo", "Q8_0", "v1.2")),
        ("org/repo@refs/pr/3", HubReference("org/repo", None, "refs/pr/3")),
        ("hf://org/repo", HubReference("org/repo")),
        ("hf://org/repo:q4_0@main", HubReference("org/repo", "q4_0", "main")),
        ("hf://org/repo/Q4/m.gguf@main", HubReference("org/repo", None, "main", "Q4/m.gguf")),
        ("https://huggingface.co/org/repo", HubReference("org/repo")),
        ("https://hf.co/org/repo/tree/main", HubReference("org/repo", None, "main")),
        ("https://huggingface.co/org/repo/blob/main/a.gguf", HubReference("org/repo", None, "main", "a.gguf")),
        (
            "https://huggingface.co/org/repo/resolve/main/x/a%20b.gguf?download=true",
            HubReference("org/repo", None, "main", "x/a b.gguf"),
        ),
    ],
)
def test_each_way_to_name_a_model(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("a\nb", "control characters"),
        ("x" * 2000, "2000 characters"),
        ("hf://", "two parts"),
        ("hf://org", "two parts"),
        ("org/repo/sub", "written hf://org/repo/FILE.gguf"),
        ("org/../repo", "written org/repo"),
        ("org/..", "written org/repo"),
        ("-org/repo", "written org/repo"),
        ("org/repo:", "behind :"),
        ("org/repo:Q4 K", "behind :"),
        ("org/repo@", "behind @"),
        ("org/repo@../../etc", "behind @"),
        ("org/repo@a//b", "behind @"),
        ("hf://org/repo/../x.gguf", "makes no sense"),
        ("hf://org/repo//x.gguf", "makes no sense"),
        ("hf://org/repo/x.safetensors", "ending in .gguf"),
        ("hf://org/repo/x.gguf:Q4_0", "one is enough"),
        ("https://example.org/org/repo", "only URLs of the hub"),
        ("ftp://huggingface.co/org/repo", "only URLs of the hub"),
        ("https://huggingface.co/org", "names no repository"),
        ("https://huggingface.co/org/repo/commits/main", "may follow"),
        ("https://huggingface.co/org/repo/blob/main", "names no file"),
        ("https://huggingface.co/org/repo/blob/main/%2e%2e/x.gguf", "makes no sense"),
        ("https://[::1/org/repo", "no URL"),
        ("na|me", "letters, digits"),
    ],
)
def test_what_names_no_model_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_reference(text)
    assert raised.value.code is ErrorCode.CONFIG_INVALID
    assert reason in raised.value.message
    assert raised.value.message.isprintable()


def test_the_hub_that_was_configured_has_its_urls_understood() -> None:
    hosts = ("hub.lan:8080",)
    assert parse_reference("http://hub.lan:8080/org/repo", hosts) == HubReference("org/repo")
    with pytest.raises(ConfigError):
        parse_reference("https://huggingface.co/org/repo", hosts)


@given(st.text(max_size=60) | st.text("aQ4/:@.-_~hfg%", max_size=40))
@example("hf://a/b@c:d")
def test_every_text_is_a_reference_or_one_line_why_not(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ConfigError:
        return
    assert parse_reference(str(reference)) == reference


words = st.from_regex(r"[A-Za-z0-9]{1,8}", fullmatch=True)


@given(words, words, st.none() | words, st.none() | words)
def test_what_is_written_is_read_back(org: str, repo: str, quant: str | None, revision: str | None) -> None:
    reference = HubReference(f"{org}/{repo}", quant, revision)
    assert parse_reference(str(reference)) == reference
    assert parse_reference(f"hf://{reference}") == reference
