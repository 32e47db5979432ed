"""Limits that must fit into each other."""

from p2pmesh.base import limits
from p2pmesh.wire import stage


def test_every_limit_is_a_positive_number_or_a_protocol_id() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(values) > 40
    for name, value in values.items():
        assert (isinstance(value, int) and value > 0) or (name.endswith("_PROTOCOL") and value.startswith("/"))


def test_what_travels_inside_a_message_fits_the_message() -> None:
    assert limits.MAX_ANNOUNCEMENT_BYTES + limits.MAX_INVITE_BYTES < limits.MAX_UNADMITTED_MESSAGE_BYTES
    known = limits.MAX_ANNOUNCEMENTS_PER_MESSAGE * limits.MAX_ANNOUNCEMENT_BYTES
    assert known <= limits.MAX_CONTROL_MESSAGE_BYTES  # the welcome's own parts leave no room for all at full size
    assert limits.MAX_ARTIFACT_CHUNK_BYTES < limits.MAX_CONTROL_MESSAGE_BYTES
    assert 5 * limits.MAX_PROMPT_TOKENS + limits.MAX_TEXT_BYTES // 2 < limits.MAX_CONTROL_MESSAGE_BYTES
    assert 4 * limits.MAX_CHAT_MESSAGES // 3 < limits.MAX_MESSAGE_CONTAINERS
    assert limits.MAX_PROMPT_TOKENS < limits.MAX_MESSAGE_VALUES
    assert limits.MAX_CONTROL_MESSAGE_BYTES < 2 ** (7 * limits.MAX_VARINT_BYTES)


def test_the_longest_frame_fits_the_engine_socket() -> None:
    assert stage.MAX_FRAME_BYTES < limits.MAX_ENGINE_MESSAGE_BYTES
    assert limits.PREFILL_CHUNK_TOKENS <= limits.MAX_TOKENS_PER_FRAME
    assert limits.MAX_STAGES <= limits.MAX_LAYERS
