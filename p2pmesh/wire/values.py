"""Plain msgpack values from hostile bytes, with bounded memory.

Owns depth, counts, text keys, repeated keys and extension types. What the values mean is ``wire.schema``'s.

The msgpack library caps each container by itself but not their number nor their nesting: two mebibytes of empty maps
would become 150 MiB of objects, and a thousand nested headers would reserve gigabytes before the first item is read.
So containers are walked here, each header checked against the bytes that are left, and only scalars are left to the
library.
"""

from typing import Any

import msgpack

from p2pmesh.base.limits import MAX_MESSAGE_CONTAINERS, MAX_MESSAGE_DEPTH, MAX_MESSAGE_VALUES

_MAP_LEADS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_LIST_LEADS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_CONTAINER_LEADS = _MAP_LEADS | _LIST_LEADS
_SHORT_LIST_ITEMS = 64


def unpack_value(data: bytes | memoryview, max_values: int = MAX_MESSAGE_VALUES) -> Any:
    """The one value that fills ``data`` exactly. Raises ``ValueError`` with a short reason."""
    if not len(data):
        raise ValueError("no bytes")
    try:
        return _Walk(data, max_values).whole()
    except msgpack.OutOfData:
        raise ValueError("incomplete") from None
    except UnicodeDecodeError:
        raise ValueError("text that is not UTF-8") from None


class _Walk:
    """One pass over one message."""

    __slots__ = ("_containers_left", "_data", "_size", "_unpacker", "_values_left")

    def __init__(self, data: bytes | memoryview, max_values: int) -> None:
        self._data = data
        self._size = len(data)
        self._values_left = max_values
        self._containers_left = MAX_MESSAGE_CONTAINERS
        # max_array_len and max_map_len 0: the library itself never builds a container that holds anything.
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=self._size, max_array_len=0, max_map_len=0, max_ext_len=0, ext_hook=_refuse_extension
        )
        self._unpacker.feed(data)

    def whole(self) -> Any:
        value = self._value(0)
        if self._unpacker.tell() != self._size:
            raise ValueError("bytes after the value")
        return value

    def _value(self, depth: int) -> Any:
        offset = self._unpacker.tell()
        lead = self._data[offset] if offset < self._size else None
        if lead in _MAP_LEADS:
            return self._map(depth)
        if lead in _LIST_LEADS:
            return self._list(depth)
        return self._unpacker.unpack()

    def _map(self, depth: int) -> dict[str, Any]:
        count = self._unpacker.read_map_header()
        self._charge(2 * count, depth)
        result: dict[str, Any] = {}
        for _ in range(count):
            key = self._unpacker.unpack()
            if not isinstance(key, str):
                raise ValueError("a map key that is not text")  # noqa: TRY004 - bad bytes, not a bad argument
            if key in result:
                raise ValueError("a repeated map key")
            result[key] = self._value(depth + 1)
        return result

    def _list(self, depth: int) -> list[Any]:
        count = self._unpacker.read_array_header()
        self._charge(count, depth)
        if count <= _SHORT_LIST_ITEMS or self._data[self._unpacker.tell()] in _CONTAINER_LEADS:
            return [self._value(depth + 1) for _ in range(count)]
        # A long list that starts with a scalar holds scalars only (token ids): four times as fast.
        return [self._unpacker.unpack() for _ in range(count)]

    def _charge(self, values: int, depth: int) -> None:
        """Pays for a container whose header was read, before anything is allocated for it."""
        self._containers_left -= 1
        self._values_left -= values
        if depth >= MAX_MESSAGE_DEPTH:
            raise ValueError(f"nested deeper than {MAX_MESSAGE_DEPTH}")
        if values > self._size - self._unpacker.tell():
            raise ValueError("incomplete")
        if self._containers_left < 0 or self._values_left < 0:
            raise ValueError("too many values")


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")
