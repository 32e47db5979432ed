"""Promises in a home."""

import json
from pathlib import Path
from typing import Any

import pytest

from p2pmesh.adapters.grant_file import GRANTS_FILE, HomeGrants, load_grants
from p2pmesh.adapters.private_files import remove_drafts
from p2pmesh.base.errors import ConfigError, ErrorCode
from p2pmesh.base.limits import MAX_CLAIMED_MODELS
from p2pmesh.core.grants import KeptGrant
from tests.wire.keys import JOINER

GRANT = KeptGrant("ab" * 32, 7, bytes(range(16)), JOINER.peer_id, 15_000_000)


async def test_promises_come_back_from_a_private_file(tmp_path: Path) -> None:
    grants = HomeGrants(tmp_path)
    assert grants.restored() == ()
    await grants.save((GRANT,))
    assert HomeGrants(tmp_path).restored() == (GRANT,)
    assert (tmp_path / GRANTS_FILE).stat().st_mode & 0o777 == 0o600


async def test_a_promise_that_was_given_back_keeps_its_term_without_a_lease(tmp_path: Path) -> None:
    released = KeptGrant(GRANT.model, 7, GRANT.run_id, GRANT.coordinator, 0)
    await HomeGrants(tmp_path).save((released,))
    assert HomeGrants(tmp_path).restored() == (released,)


async def test_as_many_as_a_node_promises_fit(tmp_path: Path) -> None:
    many = tuple(
        KeptGrant(f"{i:064x}", 2**53 - 1, GRANT.run_id, GRANT.coordinator, 1) for i in range(MAX_CLAIMED_MODELS)
    )
    await HomeGrants(tmp_path).save(many)
    assert load_grants(tmp_path) == many


@pytest.mark.parametrize(
    "change",
    [
        {"term": 0}, {"term": True}, {"term": 2**53}, {"term": "7"}, {"run_id": "00"}, {"run_id": 7}, {"model": "m"},
        {"model": None}, {"coordinator": "peer"}, {"lease_us": -1}, {"lease_us": 10**9}, {"lease_us": None},
    ],
    ids=str,
)  # fmt: skip
async def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path, change: dict[str, Any]) -> None:
    await HomeGrants(tmp_path).save((GRANT,))
    document = json.loads((tmp_path / GRANTS_FILE).read_text())
    document["grants"][0] |= change
    (tmp_path / GRANTS_FILE).write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=GRANTS_FILE) as error:
        HomeGrants(tmp_path)
    assert error.value.code is ErrorCode.HOME_UNUSABLE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"version": 2, "grants": []}', '{"version": 1, "grants": 3}']
)
def test_what_is_no_such_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / GRANTS_FILE).write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        load_grants(tmp_path)


def test_drafts_of_a_killed_node_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".{GRANTS_FILE}.abcd1234").write_text("{")
    remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []
