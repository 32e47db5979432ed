"""Requirements and the mesh id that is their hash."""

from dataclasses import replace

import pytest
from hypothesis import given

from p2pmesh.base.errors import LocalProtocolError
from p2pmesh.base.ids import is_mesh_id
from p2pmesh.wire.requirements import MeshRequirements, encode_requirements, mesh_id_of
from p2pmesh.wire.schema import from_map, unpack
from tests.wire.keys import FOUNDER
from tests.wire.records import records_of


@given(records_of(MeshRequirements))
def test_requirements_come_back_with_the_same_mesh_id(terms: MeshRequirements) -> None:
    read = from_map(MeshRequirements, unpack(encode_requirements(terms), "requirements"), "requirements")
    assert read == terms
    assert mesh_id_of(read) == mesh_id_of(terms)
    assert is_mesh_id(mesh_id_of(terms))


@given(records_of(MeshRequirements), records_of(MeshRequirements))
def test_other_requirements_are_another_mesh(terms: MeshRequirements, others: MeshRequirements) -> None:
    assert (mesh_id_of(terms) == mesh_id_of(others)) == (terms == others)


def test_the_mesh_id_is_the_one_of_the_document() -> None:
    assert mesh_id_of(FOUNDER.requirements) == FOUNDER.mesh_id == "89691dae391ca915ee167c6214220990"


def test_what_no_reader_would_take_is_not_hashed() -> None:
    with pytest.raises(LocalProtocolError):
        mesh_id_of(replace(FOUNDER.requirements, version_min="1" * 65))
