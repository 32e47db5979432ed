from pathlib import Path

import pytest

from p2pmesh.adapters.usage_file import USAGE_FILE, HomeUsage
from p2pmesh.core.usage import MAX_USERS, Totals, Use

TOTALS = Totals(5, 100, 90, 7, 1, 10, 20, (Use("p", "Pia", "m", 7, 1, 20),))


async def test_what_was_saved_is_restored(tmp_path: Path) -> None:
    assert HomeUsage(tmp_path).restored() is None
    await HomeUsage(tmp_path).save(TOTALS)
    assert HomeUsage(tmp_path).restored() == TOTALS
    assert (tmp_path / USAGE_FILE).stat().st_mode & 0o077 == 0


async def test_as_many_users_as_there_may_be_fit_into_the_file(tmp_path: Path) -> None:
    uses = tuple(Use(f"{n:0128}", "n" * 200, "m" * 200, 10**15, 10**9, 10**10) for n in range(MAX_USERS))
    await HomeUsage(tmp_path).save(Totals(uses=uses))
    restored = HomeUsage(tmp_path).restored()
    assert restored is not None
    assert restored.uses == uses


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version":2,"uses":[]}', '{"version":1,"uses":[],"tokens":-1}',
     '{"version":1,"uses":[],"tokens":"1"}', '{"version":1,"uses":[],"what":1}', '{"version":1,"uses":[1]}',
     '{"version":1,"uses":[{"peer":1,"name":"","model":""}]}',
     '{"version":1,"uses":[{"peer":"","name":"","model":"","tokens":true}]}',
     '{"version":1,"uses":[{"peer":"","name":"","model":"","other":1}]}', "[" * 5000],
)  # fmt: skip
def test_a_damaged_file_begins_at_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / USAGE_FILE).write_text(text)
    assert HomeUsage(tmp_path).restored() is None


async def test_a_disk_that_refuses_costs_no_node(tmp_path: Path) -> None:
    (tmp_path / USAGE_FILE).mkdir()
    await HomeUsage(tmp_path).save(TOTALS)
    assert HomeUsage(tmp_path).restored() is None
