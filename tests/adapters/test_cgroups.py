"""Limits of control groups, as the kernel writes them."""

from pathlib import Path

from p2pmesh.adapters.cgroups import memory_left_bytes, processor_quota
from p2pmesh.base.quantities import GIB, MIB


def groups_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def write_second(folder: Path, limit: str, usage: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


def test_a_service_has_what_its_own_group_and_those_above_leave(tmp_path: Path) -> None:
    own = groups_of(tmp_path, "0::/system.slice/p2pmesh.service\n")
    root = tmp_path / "cgroup"
    write_second(root / "system.slice", "max", 5 * GIB)
    write_second(root / "system.slice" / "p2pmesh.service", str(4 * GIB), GIB, 512 * MIB)
    assert memory_left_bytes(root, own) == 3 * GIB + 512 * MIB
    write_second(root / "system.slice", str(6 * GIB), 5 * GIB)
    assert memory_left_bytes(root, own) == GIB


def test_a_container_whose_group_stands_at_the_root(tmp_path: Path) -> None:
    own = groups_of(tmp_path, "0::/\n")
    write_second(tmp_path / "cgroup", str(2 * GIB), 512 * MIB)
    assert memory_left_bytes(tmp_path / "cgroup", own) == 2 * GIB - 512 * MIB


def test_the_first_version(tmp_path: Path) -> None:
    own = groups_of(tmp_path, "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    folder = tmp_path / "cgroup" / "memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{256 * MIB}\n")
    (folder / "memory.stat").write_text(f"total_inactive_file {56 * MIB}\n")
    assert memory_left_bytes(tmp_path / "cgroup", own) == GIB - 200 * MIB


def test_more_in_use_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    own = groups_of(tmp_path, "0::/\n")
    write_second(tmp_path / "cgroup", str(GIB), 2 * GIB)
    assert memory_left_bytes(tmp_path / "cgroup", own) == 0


def test_without_limits_without_groups_and_with_nonsense_nothing_is_known(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    write_second(root, "max", GIB)
    assert memory_left_bytes(root, groups_of(tmp_path, "0::/\n")) is None
    assert memory_left_bytes(tmp_path / "none", tmp_path / "nothing") is None
    write_second(root, str(2**63 - 4096), GIB)
    assert memory_left_bytes(root, groups_of(tmp_path, "0::/\n")) is None
    write_second(root, "-5", GIB)
    assert memory_left_bytes(root, groups_of(tmp_path, "0::/../../etc\nnonsense\n::\n")) is None


def test_the_smallest_share_of_processors_of_all_groups(tmp_path: Path) -> None:
    own = groups_of(tmp_path, "0::/system.slice/p2pmesh.service\n")
    service = tmp_path / "cgroup" / "system.slice" / "p2pmesh.service"
    service.mkdir(parents=True)
    assert processor_quota(tmp_path / "cgroup", own) is None
    (service / "cpu.max").write_text("max 100000\n")
    assert processor_quota(tmp_path / "cgroup", own) is None
    (service.parent / "cpu.max").write_text("250000 100000\n")
    assert processor_quota(tmp_path / "cgroup", own) == 2.5
    (service / "cpu.max").write_text("50000 100000\n")
    assert processor_quota(tmp_path / "cgroup", own) == 0.5


def test_the_share_of_the_first_version(tmp_path: Path) -> None:
    own = groups_of(tmp_path, "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    folder = tmp_path / "cgroup" / "cpu" / "docker" / "abc"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    for quota, expected in (("-1", None), ("150000", 1.5), ("nonsense", None), ("", None)):
        (folder / "cpu.cfs_quota_us").write_text(quota)
        assert processor_quota(tmp_path / "cgroup", own) == expected
