"""The table of tensor types against the format's own Python package."""

import gguf
import pytest

from p2pmesh.model.tensor_types import TENSOR_TYPES, tensor_bytes

Q8_1 = 9


def test_sizes_are_those_of_the_gguf_package() -> None:
    published = {int(number): sizes for number, sizes in gguf.GGML_QUANT_SIZES.items() if number != Q8_1}
    ours = {number: (kind.block_size, kind.block_bytes) for number, kind in TENSOR_TYPES.items()}
    assert {number: ours.get(number) for number in published} == published


def test_names_are_those_of_the_gguf_package() -> None:
    published = {int(number): number.name for number in gguf.GGML_QUANT_SIZES if number != Q8_1}
    assert {number: TENSOR_TYPES[number].name for number in published} == published


def test_bytes_of_whole_blocks() -> None:
    assert tensor_bytes(TENSOR_TYPES[2], (64, 3)) == 6 * 18


def test_rows_that_are_no_whole_number_of_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="33 elements"):
        tensor_bytes(TENSOR_TYPES[2], (33, 32))
