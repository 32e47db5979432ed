"""A ``Source`` over bytes in memory that counts what was read."""


class MemorySource:
    """Reads from ``data``; ``size_bytes`` may claim more than there is, as a shrinking file does."""

    def __init__(self, data: bytes, size_bytes: int | None = None) -> None:
        self._data = data
        self._size_bytes = len(data) if size_bytes is None else size_bytes
        self.largest_read = 0

    @property
    def size_bytes(self) -> int:
        """The claimed length."""
        return self._size_bytes

    def read_at(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes."""
        self.largest_read = max(self.largest_read, count)
        return self._data[offset : offset + count]
