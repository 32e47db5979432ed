"""The syntax of ``certify wire`` and ``bench codecs``."""

import json

import pytest

from p2pmesh.cli.main import main
from p2pmesh.cli.parser import build_parser
from p2pmesh.wire.dtype import LOSSY_DTYPES, WireDtype


def test_options_of_certify_wire() -> None:
    args = build_parser().parse_args(
        ["certify", "wire", "m", "--cuts", "4,9", "--dtypes", "bf16,q8-row", "--tokens", "99"]
    )
    assert (args.cuts, args.dtypes, args.tokens) == ((4, 9), (WireDtype.BF16, WireDtype.Q8_ROW), 99)
    args = build_parser().parse_args(["certify", "wire", "m"])
    assert (args.cuts, args.dtypes, args.tokens, args.json) == (None, LOSSY_DTYPES, 512, False)
    assert build_parser().parse_args(["certify", "wire", "m", "--cuts", "all"]).cuts == "all"


@pytest.mark.parametrize(
    "more", ["--cuts x", "--cuts 1,,2", "--dtypes q8", "--dtypes f32", "--dtypes f16,none", "--tokens x"]
)
def test_what_makes_no_sense_is_a_syntax_error(more: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "wire", "m", *more.split()]) == 2
    assert more.split()[0] in capsys.readouterr().err


def test_bench_codecs_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "codecs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hidden_size"] == 2048
