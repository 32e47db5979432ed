"""Whether this node may cut a model with the wire dtype that was asked for, by what the home and the package know."""

import shlex
from dataclasses import replace
from pathlib import Path

from p2pmesh.adapters.wire_certificates import load_certificate, reviewed_records
from p2pmesh.core.wire_certificate import clear_wire, find_reviewed
from p2pmesh.node.serving_options import ServingOptions
from p2pmesh.ports.models import ModelFile


def with_clearance(options: ServingOptions, model: ModelFile, reference: str, home: Path) -> ServingOptions:
    """The options with what is certified of this very file, or reviewed of one of its shape.

    ``reference`` is how the model was asked for, and will be again by whoever certifies it.
    """
    index = model.index
    reviewed = find_reviewed(reviewed_records(), index.architecture, index.layer_count, index.hidden_size)
    certificate = load_certificate(home, model.digest)
    return replace(options, clearance=clear_wire(options.wire_dtype, certificate, reviewed, shlex.quote(reference)))
