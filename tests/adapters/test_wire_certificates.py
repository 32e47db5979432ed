"""Certificates in a home, and the reviewed records of the package."""

import json
from collections import Counter
from pathlib import Path

import pytest

from p2pmesh.adapters.wire_certificates import (
    certificate_path,
    load_certificate,
    reviewed_records,
    store_certificate,
)
from p2pmesh.base.errors import ConfigError
from p2pmesh.core.wire_certificate import CutRecord, WireCertificate, WireFigures, WireVerdict, find_reviewed
from p2pmesh.wire.dtype import LOSSY_DTYPES, WireDtype

DIGEST = "ab" * 32
FIGURES = WireFigures(0.97, 0.003, 0.02, -0.001, 4)
RECORD = CutRecord(15, 512, 21.5, 23_000.0, FIGURES, dict.fromkeys(LOSSY_DTYPES, FIGURES))
CERTIFICATE = WireCertificate(DIGEST, 30, "print", (RECORD,))


def test_a_certificate_comes_back_by_the_digest_alone(tmp_path: Path) -> None:
    path = store_certificate(tmp_path, CERTIFICATE)
    assert path == tmp_path / "certificates" / "wire" / f"{DIGEST}.json"
    assert load_certificate(tmp_path, DIGEST) == CERTIFICATE
    assert load_certificate(tmp_path, "cd" * 32) is None


def test_a_verdict_written_into_the_file_counts_for_nothing(tmp_path: Path) -> None:
    path = store_certificate(tmp_path, CERTIFICATE)
    value = json.loads(path.read_text())
    value["cuts"][0]["dtypes"]["q8-row"] |= {"mean_kl": 1.0, "verdict": "validated"}
    path.write_text(json.dumps(value))
    loaded = load_certificate(tmp_path, DIGEST)
    assert loaded is not None
    assert loaded.judge(WireDtype.Q8_ROW, 15).verdict is WireVerdict.REJECTED


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"version": 2}', "\x00", "nonsense"])
def test_a_file_that_is_no_certificate_is_named(tmp_path: Path, text: str) -> None:
    path = certificate_path(tmp_path, DIGEST)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_certificate(tmp_path, DIGEST)
    assert str(path) in error.value.message


def test_a_certificate_under_the_digest_of_another_model_is_refused(tmp_path: Path) -> None:
    other = certificate_path(tmp_path, "cd" * 32)
    store_certificate(tmp_path, CERTIFICATE).rename(other)
    with pytest.raises(ConfigError, match="another model"):
        load_certificate(tmp_path, "cd" * 32)


def test_the_reviewed_records_are_all_there() -> None:
    records = reviewed_records()
    assert len(records) == 96
    assert Counter(record.q8.value for record in records) == {"validated": 48, "rejected": 40, "untested": 8}
    assert Counter(record.default_dtype for record in records) == {WireDtype.F16: 94, WireDtype.F32: 2}


def test_neighbours_of_a_family_are_not_found() -> None:
    records = reviewed_records()
    deepseek2 = find_reviewed(records, "deepseek2", 27, 2048)
    assert deepseek2 is not None
    assert deepseek2.family == "deepseek2"
    assert find_reviewed(records, "deepseek", 30, 4096) is None
    assert find_reviewed(records, "gemma3n", 30, 2048) is not None
    assert find_reviewed(records, "gemma3", 30, 2048) is None
    rwkv7 = find_reviewed(records, "rwkv7", 12, 768)
    arwkv7 = find_reviewed(records, "arwkv7", 28, 3584)
    assert rwkv7 is not None
    assert arwkv7 is not None
    assert (rwkv7.q8, arwkv7.q8) == (WireVerdict.VALIDATED, WireVerdict.REJECTED)
    assert find_reviewed(records, "rwkv7", 28, 3584) is None


def test_the_demo_models_are_reviewed_by_nobody() -> None:
    assert find_reviewed(reviewed_records(), "llama", 30, 576) is None
    assert find_reviewed(reviewed_records(), "gemma3", 18, 640) is None
