"""Proposing a protocol."""

import pytest

from p2pmesh.adapters.p2p.negotiation import NegotiationRefused, propose

LONG = "/p/" + "x" * 300


class Answering:
    """A channel on which the answer is known beforehand."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.written = b""

    async def write(self, data: bytes) -> None:
        self.written += data

    async def read(self, n: int | None = None) -> bytes:
        if not self.answer:
            raise EOFError
        data, self.answer = self.answer[:1], self.answer[1:]
        return data


GREETING = b"\x13/multistream/1.0.0\n"


async def test_greeting_and_proposal_leave_together() -> None:
    channel = Answering(GREETING + b"\x05/p/1\n")
    await propose(channel, "/p/1")
    assert channel.written == GREETING + b"\x05/p/1\n"


async def test_lengths_of_two_bytes() -> None:
    line = LONG.encode() + b"\n"
    prefix = bytes((len(line) & 0x7F | 0x80, len(line) >> 7))
    channel = Answering(GREETING + prefix + line)
    await propose(channel, LONG)
    assert channel.written == GREETING + prefix + line


@pytest.mark.parametrize(
    "answer",
    [
        GREETING + b"\x03na\n",
        GREETING + b"\x05/p/2\n",
        b"\x05/p/1\n",
        GREETING + b"\x00",
        GREETING + b"\xff\x7f",
        GREETING + b"\xff\xff\xff",
        GREETING + b"\x03abc",
        b"\x03\xff\xfe\n",
    ],
)
async def test_any_other_answer_is_a_refusal(answer: bytes) -> None:
    with pytest.raises(NegotiationRefused):
        await propose(Answering(answer), "/p/1")
