"""``certify wire`` on a tiny model: what it prints, what it keeps, what it refuses."""

import io
import json
from pathlib import Path

import pytest

from p2pmesh.adapters.wire_certificates import certificate_path, load_certificate, store_certificate
from p2pmesh.app.certify_text import CERTIFY_TEXT
from p2pmesh.app.certify_wire import CertifyWireOptions, certify_wire
from p2pmesh.app.wire_clearance import with_clearance
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.wire_certificate import CutRecord, WireCertificate, WireFigures
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.wire.dtype import WireDtype
from tests.fakes.models import fake_model
from tests.fakes.tiny_gguf import TinyShape, tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    path.write_bytes(tiny_llama(TinyShape(layers=4), seed=3))
    return path


def certify(home: Path, model: Path, **given: object) -> str:
    out = io.StringIO()
    options = CertifyWireOptions(home, str(model), token_count=70, **given)  # type: ignore[arg-type]
    assert certify_wire(options, out) == 0
    return out.getvalue()


def test_a_certificate_grows_by_what_is_measured(tmp_path: Path, model: Path) -> None:
    facts = json.loads(certify(tmp_path, model, cuts=(2,), dtypes=(WireDtype.F16,), is_json=True))
    digest = facts["model_digest"]
    assert Path(facts["path"]) == certificate_path(tmp_path, digest)
    shown = certify(tmp_path, model, cuts=(3, 2), dtypes=(WireDtype.Q8_ROW,))
    assert "cut 2: 70 tokens" in shown
    assert "q8-row" in shown
    held = load_certificate(tmp_path, digest)
    assert held is not None
    assert [(record.cut, list(record.figures)) for record in held.cuts] == [
        (2, [WireDtype.F16, WireDtype.Q8_ROW]),
        (3, [WireDtype.Q8_ROW]),
    ]


@pytest.mark.parametrize(("cuts", "named"), [((0,), "0"), ((4,), "4"), ((2, 9), "9")])
def test_a_cut_that_is_none_is_refused(tmp_path: Path, model: Path, cuts: tuple[int, ...], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        certify(tmp_path, model, cuts=cuts)
    assert error.value.code is ErrorCode.CUT_UNSUPPORTED
    assert f"--cuts {named}: tiny may be cut at 1, 2, 3" in error.value.message


def test_a_number_of_tokens_out_of_range_is_refused(tmp_path: Path) -> None:
    for count in (0, 4097):
        with pytest.raises(ConfigError):
            CertifyWireOptions(tmp_path, "any", token_count=count)


def test_the_text_is_long_enough_for_its_default_length() -> None:
    assert len(CERTIFY_TEXT.split()) > 512


def options(dtype: WireDtype) -> ServingOptions:
    return ServingOptions(2, 4096, 4, dtype)


def test_a_home_clears_what_it_has_certified_of_this_very_file(tmp_path: Path) -> None:
    named = fake_model()
    assert with_clearance(options(WireDtype.F32), named, "fake", tmp_path).clearance.cuts is None
    refused = with_clearance(options(WireDtype.F16), named, "a file.gguf", tmp_path).clearance
    assert refused.cuts == frozenset()
    assert "`p2pmesh certify wire 'a file.gguf'`" in refused.reason
    good = WireFigures(1.0, 1e-4, 1e-3, 0.0)
    record = CutRecord(1, 512, 20.0, 9.0, good, {WireDtype.F16: good})
    store_certificate(tmp_path, WireCertificate(named.digest, named.index.layer_count, "any", (record,)))
    assert with_clearance(options(WireDtype.F16), named, "fake", tmp_path).clearance.cuts == {1}
    assert with_clearance(options(WireDtype.BF16), named, "fake", tmp_path).clearance.cuts == frozenset()
