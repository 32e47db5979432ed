"""What answers have in common."""

import json

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.api.exchange import encode_json
from p2pmesh.api.openai.shape import Piece, TextTemplate
from p2pmesh.wire.generation import TokenLogprob


@given(st.text() | st.just(TextTemplate.PLACE), st.text())
def test_a_template_gives_the_very_bytes_that_its_object_gives(text: str, model: str) -> None:
    def chunk(content: str) -> dict[str, object]:
        return {"model": model + TextTemplate.PLACE, "choices": [{"delta": {"content": content}, "logprobs": None}]}

    given_text = TextTemplate(chunk(TextTemplate.PLACE)).event(text).data
    assert given_text == encode_json(chunk(text))
    assert isinstance(given_text, str)
    assert json.loads(given_text) == chunk(text)


def test_a_piece_with_anything_but_text_is_no_text_alone() -> None:
    assert Piece("a").is_text_alone
    for piece in (
        Piece(),
        Piece("a", token_ids=()),
        Piece("a", reasoning="b"),
        Piece("a", logprobs=(TokenLogprob(1, b"a", -1.0),)),
    ):
        assert not piece.is_text_alone
