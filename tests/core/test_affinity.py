"""Keys of conversations, and who answered them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.base.ids import PeerId
from p2pmesh.base.quantities import Micros
from p2pmesh.core.affinity import NOBODY, AffinityKeys, AffinityPolicy, AffinityTable, Asker, Tie, affinity_keys
from p2pmesh.wire.generation import ChatMessage, GenerationRequest, Prompt, SamplingParameters

A, B = PeerId("a"), PeerId("b")
SECOND = 1_000_000


def chat(*messages: tuple[str, str], model: str = "m") -> GenerationRequest:
    prompt = Prompt(messages=tuple(ChatMessage(role, content) for role, content in messages))
    return GenerationRequest(bytes(16), model, prompt, SamplingParameters())


def prefix(request: GenerationRequest) -> bytes:
    return affinity_keys(request, NOBODY).prefix


def test_a_conversation_keeps_its_prefix_while_it_grows() -> None:
    first = chat(("system", "Be brief."), ("developer", "Always."), ("user", "Hello"))
    later = chat(
        ("system", "Be brief."), ("developer", "Always."), ("user", "Other"), ("assistant", "x"), ("system", "late")
    )
    assert prefix(first) == prefix(later)
    assert prefix(first) != prefix(chat(("system", "Be long."), ("user", "Hello")))


def test_without_instructions_the_first_message_is_the_prefix() -> None:
    assert prefix(chat(("user", "Hello"))) == prefix(chat(("user", "Hello"), ("assistant", "Hi"), ("user", "more")))
    assert prefix(chat(("user", "Hello"))) != prefix(chat(("user", "Bye")))


def test_what_is_demanded_of_the_answer_and_the_model_are_part_of_the_key() -> None:
    request = chat(("user", "Hello"))
    others = [replace(request, grammar='root ::= "a"'), replace(request, model="n")]
    assert len({prefix(request), *map(prefix, others)}) == 3


def test_of_texts_and_tokens_the_beginning_counts() -> None:
    base = chat(("user", ""))
    texts = [replace(base, prompt=Prompt(text="x" * 1024 + end)) for end in ("a", "b")]
    tokens = [replace(base, prompt=Prompt(tokens=(*range(256), end))) for end in (1, 2)]
    assert prefix(texts[0]) == prefix(texts[1]) != prefix(tokens[0]) == prefix(tokens[1])
    assert prefix(replace(base, prompt=Prompt(text="\ud800"))) != prefix(texts[0])


def test_session_before_prefix_before_client() -> None:
    request = chat(("user", "Hello"))
    table = AffinityTable()
    for asker, peer in ((Asker(client="c"), A), (Asker(session="s"), B)):
        table.remember(affinity_keys(request, asker), peer, Micros(0))
    both = affinity_keys(request, Asker("s", "c"))
    assert table.recall(both, {A, B}, Micros(0)) == (B, Tie.SESSION)
    assert table.recall(both, {A}, Micros(0)) == (A, Tie.CLIENT)
    assert table.recall(affinity_keys(request, Asker("other")), {A, B}, Micros(0)) == (B, Tie.PREFIX)
    assert table.recall(both, {PeerId("c")}, Micros(0)) is None


def test_a_session_spreads_by_itself_and_others_by_their_prefix() -> None:
    one, two = chat(("user", "x")), chat(("user", "y"))
    assert affinity_keys(one, Asker("s")).spreading == affinity_keys(two, Asker("s")).spreading
    assert affinity_keys(one, NOBODY).spreading == prefix(one)


def test_what_was_not_used_for_twenty_minutes_is_forgotten() -> None:
    table, keys = AffinityTable(), affinity_keys(chat(("user", "x")), NOBODY)
    table.remember(keys, A, Micros(0))
    assert table.recall(keys, {A}, Micros(1199 * SECOND)) is not None
    assert table.recall(keys, {A}, Micros(1200 * SECOND)) is None


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 4))
def test_those_used_longest_ago_make_room(used: list[int], capacity: int) -> None:
    table = AffinityTable(AffinityPolicy(capacity=capacity))
    for number in used:
        table.remember(AffinityKeys(None, bytes([number]), None), PeerId(str(number)), Micros(0))
    kept = list(dict.fromkeys(reversed(used)))[:capacity]
    assert len(table) == len(kept)
    for number in range(10):
        found = table.recall(AffinityKeys(None, bytes([number]), None), {PeerId(str(number))}, Micros(0))
        assert (found is not None) == (number in kept)
