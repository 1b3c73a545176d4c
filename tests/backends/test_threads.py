"""The cores that this process may use."""

import os

import pytest

from app.backends.threads import usable_cores

CORES = len(os.sched_getaffinity(0))


def group(root, cgroup, **files):
    """A system root with one control group of version 1 or 2."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_control_groups_it_is_the_affinity(tmp_path):
    assert usable_cores(tmp_path) == CORES


def test_affinity_counts(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("100000", 1), ("150000", 1), ("50000", 1), ("max", CORES), ("99900000", CORES)],
)
def test_a_quota_clips_and_leaves_at_least_one(tmp_path, quota, cores):
    assert usable_cores(group(tmp_path, "0::/a/b\n", a__b__cpu_DOT_max=f"{quota} 100000")) == cores


def test_a_parents_quota_clips_too(tmp_path):
    root = group(tmp_path, "0::/a/b\n", a__b__cpu_DOT_max="max 100000", a__cpu_DOT_max="100000 100000")
    assert usable_cores(root) == 1


def test_inside_a_container_the_mount_is_the_group(tmp_path):
    assert usable_cores(group(tmp_path, "0::/host/path\n", cpu_DOT_max="100000 100000")) == 1


def test_version_one_has_two_files(tmp_path):
    root = group(tmp_path, "4:cpu,cpuacct:/a\n3:memory:/a\n")
    place = root / "sys/fs/cgroup/cpu,cpuacct/a"
    place.mkdir(parents=True)
    (place / "cpu.cfs_quota_us").write_text("100000\n")
    (place / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(root) == 1


def test_version_one_without_a_quota_does_not_clip(tmp_path):
    root = group(tmp_path, "4:cpu,cpuacct:/\n")
    place = root / "sys/fs/cgroup/cpu,cpuacct"
    place.mkdir(parents=True)
    (place / "cpu.cfs_quota_us").write_text("-1\n")
    (place / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(root) == CORES
