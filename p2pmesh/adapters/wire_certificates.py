"""Wire certificates on disk, ``HOME/certificates/wire/<model digest>.json``, and the reviewed records of the package.

Owns both formats. What they mean is ``core.wire_certificate``'s.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from p2pmesh.adapters.private_files import read_private, write_private
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.core.wire_certificate import CutRecord, ReviewedRecord, WireCertificate, WireFigures, WireVerdict
from p2pmesh.wire.dtype import DTYPE_LABELS, dtype_of_label

CERTIFICATE_VERSION = 1
MAX_CERTIFICATE_BYTES = 4 * 1024 * 1024
_REVIEWED_FILE = Path(__file__).with_name("reviewed_families.json")


def certificate_path(home: Path, model_digest: str) -> Path:
    """Where the certificate of a model stands."""
    return home / "certificates" / "wire" / f"{model_digest}.json"


def load_certificate(home: Path, model_digest: str) -> WireCertificate | None:
    """The certificate of a model; None without one. ``ConfigError`` for a file that is none, or another model's."""
    path = certificate_path(home, model_digest)
    data = read_private(path, MAX_CERTIFICATE_BYTES)
    if data is None:
        return None
    try:
        certificate = _from_json(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            ErrorCode.CONFIG_INVALID, f"{path} is no wire certificate; remove it and certify again"
        ) from None
    if certificate.model_digest != model_digest:
        text = f"{path} is the certificate of another model; remove it and certify again"
        raise ConfigError(ErrorCode.CONFIG_INVALID, text)
    return certificate


def store_certificate(home: Path, certificate: WireCertificate) -> Path:
    """Writes a certificate whole or not at all; its path."""
    path = certificate_path(home, certificate.model_digest)
    write_private(path, (json.dumps(certificate_to_json(certificate), indent=1) + "\n").encode())
    return path


def certificate_to_json(certificate: WireCertificate) -> dict[str, Any]:
    """Plain values, verdicts included for people; only figures are read back."""
    return {
        "version": CERTIFICATE_VERSION,
        "model_digest": certificate.model_digest,
        "layer_count": certificate.layer_count,
        "fingerprint": certificate.fingerprint,
        "cuts": [_cut_to_json(certificate, record) for record in certificate.cuts],
    }


def _cut_to_json(certificate: WireCertificate, record: CutRecord) -> dict[str, Any]:
    dtypes = {}
    for dtype, figures in record.figures.items():
        judgement = certificate.judge(dtype, record.cut)
        dtypes[dtype.label] = {"verdict": judgement.verdict.value, "reason": judgement.reason, **asdict(figures)}
    return {
        "cut": record.cut,
        "tokens": record.tokens,
        "perplexity": record.perplexity,
        "largest_magnitude": record.largest_magnitude,
        "floor": asdict(record.floor),
        "dtypes": dtypes,
    }


def _from_json(value: Mapping[str, Any]) -> WireCertificate:
    if value["version"] != CERTIFICATE_VERSION:
        raise ValueError("another version")
    cuts = tuple(_cut_from_json(item) for item in value["cuts"])
    return WireCertificate(str(value["model_digest"]), int(value["layer_count"]), str(value["fingerprint"]), cuts)


def _cut_from_json(item: Mapping[str, Any]) -> CutRecord:
    return CutRecord(
        cut=int(item["cut"]),
        tokens=int(item["tokens"]),
        perplexity=float(item["perplexity"]),
        largest_magnitude=float(item["largest_magnitude"]),
        floor=_figures(item["floor"]),
        figures={dtype_of_label(label): _figures(figures) for label, figures in item["dtypes"].items()},
    )


def _figures(value: Mapping[str, Any]) -> WireFigures:
    return WireFigures(
        float(value["argmax_agreement"]), float(value["mean_kl"]), float(value["largest_kl"]),
        float(value["perplexity_loss"]), int(value["widened_rows"]),
    )  # fmt: skip


@cache
def reviewed_records() -> tuple[ReviewedRecord, ...]:
    """The reviewed records that come with the package, in the order of their source."""
    document = json.loads(_REVIEWED_FILE.read_text())
    return tuple(_reviewed(item) for item in document["records"])


def _reviewed(item: Mapping[str, Any]) -> ReviewedRecord:
    assert item["wire"] in DTYPE_LABELS
    return ReviewedRecord(
        item["family"], item["architecture"], item["model"], item["layers"], item["width"],
        dtype_of_label(item["wire"]), WireVerdict(item["q8"]),
    )  # fmt: skip
