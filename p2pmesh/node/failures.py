"""Errors out of nurseries: trio wraps what a child or a body raises in a group; our callers want the error itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from p2pmesh.base.errors import P2PMeshError


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raises the first ``P2PMeshError`` of a group that holds nothing else.

    Beside a cancellation or a bug our errors do not count: only the rest of the group passes. A run that is being
    ended while one of its streams breaks must not end its node.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(P2PMeshError)
        if ours is None:
            raise
        if others is not None:
            raise others from None
        raise first_error(ours) from None


def first_error(group: BaseExceptionGroup[P2PMeshError]) -> P2PMeshError:
    """The first leaf."""
    leaf: BaseException = group
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    assert isinstance(leaf, P2PMeshError)
    return leaf
