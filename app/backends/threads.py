"""How many cores this process may really use: its CPU affinity, clipped by the quota of its control groups."""

import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Cores for one execution, at least 1. Asking ONNX Runtime for more makes it pin threads to forbidden cores."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([float(affinity), *_quotas(root)])))


def _quotas(root: Path) -> list[float]:
    """CPU quotas, in cores, of this process's control groups and their parents, versions 1 and 2."""
    quotas = []
    for controllers, group in _groups(root):
        base = root / "sys/fs/cgroup" / controllers
        # Inside a container the path may be that of the host, while the mount already is the group itself.
        for place in {base, *(base / part for part in [Path(group.lstrip("/")), *Path(group.lstrip("/")).parents])}:
            quota = _quota(place)
            if quota is not None:
                quotas.append(quota)
    return quotas


def _groups(root: Path) -> list[tuple[str, str]]:
    """(mount below the control-group root, path of the group) for the hierarchies that limit CPU time."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            groups.append((controllers, group))
    return groups


def _quota(place: Path) -> float | None:
    """The quota of one group in cores; None where it has none."""
    try:
        if (place / "cpu.max").exists():
            quota, period = (place / "cpu.max").read_text().split()
        else:
            quota, period = ((place / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
