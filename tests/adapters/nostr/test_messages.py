"""Messages between client and relay."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmesh.adapters.nostr.messages import (
    AuthMessage,
    ClosedMessage,
    EndMessage,
    EventMessage,
    NoticeMessage,
    OkMessage,
    decode_message,
    encode_auth,
    encode_close,
    encode_event,
    encode_request,
)
from p2pmesh.ports.relays import PublishOutcome

O = PublishOutcome  # noqa: E741


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["EVENT","s",{"created_at":7}]', EventMessage("s", '{"created_at": 7}', 7)),
        ('["EVENT","s",{"created_at":-7}]', EventMessage("s", '{"created_at": -7}')),
        ('["EVENT","s",[]]', EventMessage("s", "[]")),
        ('["OK","id",true,""]', OkMessage("id", O.ACCEPTED, "")),
        ('["OK","id",true]', OkMessage("id", O.ACCEPTED, "")),
        ('["OK","id",false,"Blocked: no"]', OkMessage("id", O.BLOCKED, "Blocked: no")),
        ('["OK","id",false,7]', OkMessage("id", O.FAILED, "")),
        ('["EOSE","s"]', EndMessage("s")),
        ('["CLOSED","s","auth-required: who?"]', ClosedMessage("s", O.AUTH_REQUIRED, "auth-required: who?")),
        ('["AUTH","challenge"]', AuthMessage("challenge")),
        ('["NOTICE","a\\nb"]', NoticeMessage("a b")),
        ('["NOTICE","restricted: no"]', ClosedMessage("", O.BLOCKED, "restricted: no")),
        ('["NOTICE","ERROR: bad req"]', ClosedMessage("", O.FAILED, "ERROR: bad req")),
        (f'["NOTICE","{"x" * 60_000}"]', EventMessage("", "")),
    ],
)  # fmt: skip
def test_messages_are_read(text: str, message: Any) -> None:
    assert decode_message(text) == message


@pytest.mark.parametrize(
    "text",
    ["", "null", "{}", "[]", "[1]", '["OK"]', '["OK","id","true",""]', '["OK",1,true,""]', '["EVENT","s"]', '["EOSE"]',
     '["AUTH"]', '["AUTH",1]',
     f'["AUTH","{"x" * 1025}"]', '["AUTH","\\ud800"]', '["COUNT","s",{}]', "[" * 40_000, '["EVENT",'],
)  # fmt: skip
def test_what_is_no_message_is_nothing(text: str) -> None:
    assert decode_message(text) is None


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    decode_message(text)


def test_messages_are_written() -> None:
    assert encode_event("{}") == '["EVENT",{}]'
    assert encode_auth("{}") == '["AUTH",{}]'
    assert encode_request("s", {"limit": 1}) == '["REQ","s",{"limit":1}]'
    assert encode_close("s") == '["CLOSE","s"]'
