"""``p2pmesh certify wire``: measures what each wire dtype costs a model, and writes its certificate.

The judgement is ``core.wire_certificate``'s, the measuring a child process's. A certificate grows: cuts and dtypes that
are measured again replace the old figures, others stay.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import trio

from p2pmesh.adapters.llama.wire_trial import WireTrialRequest, run_wire_trial
from p2pmesh.adapters.model_store import DiskModelStore
from p2pmesh.adapters.processors import usable_threads
from p2pmesh.adapters.wire_certificates import certificate_to_json, load_certificate, store_certificate
from p2pmesh.app.certify_text import CERTIFY_TEXT
from p2pmesh.app.model_access import open_access
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.ids import LayerRange
from p2pmesh.core.wire_certificate import CutRecord, WireCertificate
from p2pmesh.model.families import permitted_cuts
from p2pmesh.ports.models import ModelFile
from p2pmesh.wire.dtype import LOSSY_DTYPES, WireDtype

DEFAULT_TOKENS = 512
MAX_TOKENS = 4096
_DEFAULT_QUARTERS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class CertifyWireOptions:
    """What ``p2pmesh certify wire`` was asked to do; ``cuts`` None is a quarter, half and three quarters of the layers,
    ``takes_all_cuts`` every permitted one."""

    home: Path
    model: str
    cuts: tuple[int, ...] | None = None
    takes_all_cuts: bool = False
    dtypes: tuple[WireDtype, ...] = LOSSY_DTYPES
    token_count: int = DEFAULT_TOKENS
    is_json: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.token_count <= MAX_TOKENS:
            raise ConfigError(ErrorCode.CONFIG_INVALID, f"--tokens must be 1 to {MAX_TOKENS}, not {self.token_count}")


def certify_wire(options: CertifyWireOptions, out: TextIO) -> int:
    """Measures cut by cut, prints each as it is done, stores the certificate after each; 0."""
    access = open_access(options.home)
    store, model = access.store, trio.run(access.obtain, options.model, lambda _: None)
    cuts = _choose_cuts(model, options)
    certificate = load_certificate(options.home, model.digest)
    if not options.is_json:
        _write(out, f"{model.name}, {len(cuts)} cuts, {options.token_count} tokens at most, against f32")
    seconds = {}
    for cut in cuts:
        began = time.monotonic()
        record, fingerprint = trio.run(_measure, store, model, cut, options)
        seconds[cut] = round(time.monotonic() - began, 1)
        certificate = _joined(certificate, model, record, fingerprint)
        path = store_certificate(options.home, certificate)
        if not options.is_json:
            _write(out, "\n".join(_lines_of(certificate, record, seconds[cut])))
    assert certificate is not None
    if options.is_json:
        facts = {"model": model.name, **certificate_to_json(certificate), "seconds": seconds, "path": str(path)}
        _write(out, json.dumps(facts, indent=2))
    else:
        _write(out, f"written to {path}")
    return 0


def _choose_cuts(model: ModelFile, options: CertifyWireOptions) -> tuple[int, ...]:
    permitted = permitted_cuts(model.index)
    if not permitted:
        raise ConfigError(ErrorCode.CUT_UNSUPPORTED, f"{model.name} must stay whole: no wire dtype matters to it")
    if options.takes_all_cuts:
        return permitted
    if options.cuts is None:
        wanted = [model.index.layer_count * quarter // 4 for quarter in _DEFAULT_QUARTERS]
        return tuple(sorted({min(permitted, key=lambda cut: (abs(cut - near), cut)) for near in wanted}))
    for cut in options.cuts:
        if cut not in permitted:
            listed = ", ".join(map(str, permitted))
            raise ConfigError(ErrorCode.CUT_UNSUPPORTED, f"--cuts {cut}: {model.name} may be cut at {listed}")
    return tuple(sorted(set(options.cuts)))


async def _measure(
    store: DiskModelStore, model: ModelFile, cut: int, options: CertifyWireOptions
) -> tuple[CutRecord, str]:
    first = await store.cut(model, LayerRange(0, cut))
    try:
        last = await store.cut(model, LayerRange(cut, model.index.layer_count))
        try:
            request = WireTrialRequest(
                first.path, last.path, CERTIFY_TEXT, options.token_count, tuple(map(int, options.dtypes)),
                usable_threads(),
            )  # fmt: skip
            return await trio.to_thread.run_sync(run_wire_trial, request, cut)
        finally:
            store.release(last.digest)
    finally:
        store.release(first.digest)


def _joined(old: WireCertificate | None, model: ModelFile, record: CutRecord, fingerprint: str) -> WireCertificate:
    """The certificate with a record more. Figures of another engine or another length of text do not stay beside it."""
    kept: Iterable[CutRecord] = ()
    if old is not None and old.fingerprint == fingerprint:
        same = next((item for item in old.cuts if item.cut == record.cut and item.tokens == record.tokens), None)
        if same is not None:
            record = replace(record, figures={**same.figures, **record.figures})
        kept = (item for item in old.cuts if item.cut != record.cut)
    cuts = tuple(sorted((*kept, record), key=lambda item: item.cut))
    return WireCertificate(model.digest, model.index.layer_count, fingerprint, cuts)


def _lines_of(certificate: WireCertificate, record: CutRecord, seconds: float) -> list[str]:
    floor = record.floor
    lines = [
        f"cut {record.cut}: {record.tokens} tokens, perplexity {record.perplexity:.2f}, largest magnitude "
        f"{record.largest_magnitude:.0f}, {seconds} s",
        f"  {'':12}{'agreement':>10}{'mean KL':>10}{'perplexity':>12}",
        f"  {'floor':12}{floor.argmax_agreement:>10.1%}{floor.mean_kl:>10.1e}{floor.perplexity_loss:>+12.2%}",
    ]
    for dtype, item in record.figures.items():
        judgement = certificate.judge(dtype, record.cut)
        lines.append(
            f"  {dtype.label:12}{item.argmax_agreement:>10.1%}{item.mean_kl:>10.1e}{item.perplexity_loss:>+12.2%}"
            f"  {judgement.verdict.value}: {judgement.reason}"
        )
    return lines


def _write(out: TextIO, text: str) -> None:
    out.write(text + "\n")
    out.flush()
