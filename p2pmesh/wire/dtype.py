"""The number formats of activations between stages: their numbers on the wire and their names for people.

Apart from the codecs (``wire.activation``), so that the command line knows the names without loading numpy.
"""

from enum import IntEnum


class WireDtype(IntEnum):
    """Format of an activation body; NONE where there is none. The numbers are normative."""

    NONE = 0
    F32 = 1
    F16 = 2
    BF16 = 3
    Q8_ROW = 4  # bytes, one scale a row
    Q8_BLOCK = 5  # bytes, one scale for 32 elements
    Q8_OUTLIER = 6  # the same, the largest elements of each row kept exactly

    @property
    def label(self) -> str:
        """How people write it, such as ``q8-row``."""
        return self.name.lower().replace("_", "-")


LOSSY_DTYPES = tuple(dtype for dtype in WireDtype if dtype > WireDtype.F32)
DTYPE_LABELS = tuple(dtype.label for dtype in WireDtype if dtype is not WireDtype.NONE)


def dtype_of_label(label: str) -> WireDtype:
    """The format of that name; ``ValueError`` lists those there are."""
    for dtype in WireDtype:
        if dtype.label == label and dtype is not WireDtype.NONE:
            return dtype
    raise ValueError(f"{label!r} is no wire dtype; there are {', '.join(DTYPE_LABELS)}")
