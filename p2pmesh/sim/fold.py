"""The journal of a large simulation: integers, folded into a digest as they come.

Every event of every machine leaves its trace, so two runs are the same run exactly if their digests are equal. Who
writes gives each kind of line a shape of its own, beginning with a different code.
"""

import hashlib
from array import array

_FOLD_AT = 1 << 16


class Fold:
    """Append unsigned 64-bit integers to ``line`` and call ``settle`` now and then."""

    def __init__(self) -> None:
        self.line = array("Q")
        self._hash = hashlib.blake2b(digest_size=16)

    def settle(self) -> None:
        """Folds what has come, once it is worth it."""
        if len(self.line) >= _FOLD_AT:
            self._fold()

    def digest(self) -> str:
        """32 hex digits over all so far."""
        self._fold()
        return self._hash.hexdigest()

    def _fold(self) -> None:
        if self.line.itemsize != 8:
            raise RuntimeError("no array of 64-bit integers here")
        self._hash.update(self.line.tobytes())  # of one byte order on all machines that this runs on
        del self.line[:]
