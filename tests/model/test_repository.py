import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.model.reference import HubReference
from p2pmesh.model.repository import choose_model, models_among, quant_of

NAMES = (
    ".gitattributes", "README.md", "config.json", ".DS_Store", "._Model-Q8_0.gguf",
    "Model-Q8_0.gguf", "Model-Q4_K_M.gguf", "Model-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", "Model.imatrix.gguf",
    "Model-Q4_0.gguf.incomplete",
    "BF16/Model-BF16-00001-of-00002.gguf", "BF16/Model-BF16-00002-of-00002.gguf",
)  # fmt: skip


def wanted(quant: str | None = None, file: str | None = None) -> HubReference:
    return HubReference("org/repo", quant, None, file)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("Model-Q4_K_M", "Q4_K_M"),
        ("model.q8_0", "q8_0"),
        ("UD-Q2_K_XL/Model-UD-Q2_K_XL", "UD-Q2_K_XL"),
        ("gpt-oss-20b-MXFP4", "MXFP4"),
        ("Model-IQ2_XXS", "IQ2_XXS"),
        ("Qwen3-4B", None),
        ("Q8rious", None),
    ],
)
def test_a_name_tells_its_quantisation(name: str, quant: str | None) -> None:
    assert quant_of(name) == quant


def test_projectors_half_downloads_and_hidden_files_are_no_models() -> None:
    assert [model.name for model in models_among(NAMES)] == [
        "BF16/Model-BF16", "Model-Q4_K_M", "Model-Q8_0", "Model-UD-Q4_K_XL",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        (wanted(), ("Model-Q4_K_M.gguf",)),
        (wanted("q8_0"), ("Model-Q8_0.gguf",)),
        (wanted("UD-Q4_K_XL"), ("Model-UD-Q4_K_XL.gguf",)),
        (wanted("Q4_K_XL"), ("Model-UD-Q4_K_XL.gguf",)),
        (wanted("BF16"), NAMES[-2:]),
        (wanted(file="BF16/Model-BF16-00002-of-00002.gguf"), NAMES[-2:]),
        (wanted(file="Model-Q8_0.gguf"), ("Model-Q8_0.gguf",)),
    ],
)
def test_the_file_that_was_asked_for_is_chosen(asked: HubReference, files: tuple[str, ...]) -> None:
    assert choose_model(NAMES, asked).files == files


def test_the_only_model_needs_no_quantisation() -> None:
    assert choose_model(("a.gguf", "mmproj-a.gguf"), wanted()).files == ("a.gguf",)


@pytest.mark.parametrize(
    ("names", "asked", "said"),
    [
        (("README.md",), wanted(), "holds no GGUF model"),
        (("mmproj-a.gguf",), wanted(), "holds no GGUF model"),
        (NAMES, wanted("Q3_K_M"), "has no Q3_K_M; it has org/repo:BF16, org/repo:Q4_K_M"),
        (("a-Q4_0.gguf", "b-Q4_0.gguf"), wanted(), "may mean 2 models; type one of hf://org/repo/a-Q4_0.gguf, hf://"),
        (("a-Q4_0.gguf", "b-Q4_0.gguf"), wanted("Q4_0"), "may mean 2 models"),
        (("a.gguf", "b.gguf"), wanted(), "type one of hf://org/repo/a.gguf, hf://org/repo/b.gguf"),
        (("m-00001-of-00002.gguf",), wanted(), "incomplete in org/repo: m-00002-of-00002.gguf"),
        (NAMES, wanted(file="x.gguf"), "has no x.gguf"),
    ],
)
def test_what_cannot_be_chosen_lists_what_to_type(names: tuple[str, ...], asked: HubReference, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        choose_model(names, asked)
    assert raised.value.code is ErrorCode.MODEL_NOT_FOUND
    assert said in raised.value.message


def test_a_long_list_of_candidates_is_cut() -> None:
    with pytest.raises(ConfigError) as raised:
        choose_model([f"m{n}.gguf" for n in range(100)], wanted())
    assert raised.value.message.endswith("and 88 more")


@given(st.lists(st.from_regex(r"[A-Za-z/._-]{0,6}(-Q4_0)?(-0000[0-3]-of-0000[0-3])?(\.gguf)?", fullmatch=True)))
def test_any_names_give_a_model_or_a_reason(names: list[str]) -> None:
    try:
        chosen = choose_model(names, wanted())
    except ConfigError:
        return
    assert set(chosen.files) <= set(names)
    assert not chosen.missing
