"""Errors out of nurseries reach callers as themselves."""

import pytest
import trio
import trio.testing

from p2pmesh.base.errors import ErrorCode, PeerUnavailable
from p2pmesh.node.failures import unwrapped

LOST = PeerUnavailable(ErrorCode.PEER_LOST, "gone")


async def test_one_error_in_nested_nurseries_comes_out_bare() -> None:
    with pytest.raises(PeerUnavailable), unwrapped():
        async with trio.open_nursery(), trio.open_nursery():
            raise LOST


async def test_a_bug_beside_an_error_of_ours_is_what_passes() -> None:
    with pytest.raises(ExceptionGroup) as caught, unwrapped():
        raise ExceptionGroup("both", [LOST, KeyError("bug")])
    assert [type(error) for error in caught.value.exceptions] == [KeyError]


async def test_an_error_while_being_cancelled_does_not_outlive_the_cancellation() -> None:
    async def breaks_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LOST

    with trio.CancelScope() as outer:
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(breaks_when_cancelled)
                nursery.start_soon(trio.sleep_forever)
                await trio.testing.wait_all_tasks_blocked()
                outer.cancel()
    assert outer.cancelled_caught
