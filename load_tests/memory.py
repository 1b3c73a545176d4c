"""What a process holds, as the kernel counts it: memory, open files, threads."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """What a process holds at one instant; memory in bytes."""

    memory: int
    files: int
    threads: int


def memory_of(pid: int | str = "self") -> int:
    """Bytes of a process: its own, and those of mapped files; what several mappings share counts once (PSS).

    Libraries are left out: what they count for changes when other processes come and go. Raises `OSError` when the
    process is gone, or the kernel does not tell.
    """
    total, counts = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):  # a mapping begins: addresses, rights, offset, device, inode, and the file
            counts = ".so" not in "".join(rest[4:])
        elif name == "Pss:" and counts:
            total += int(rest[0]) * 1024
    return total


def held_by(pid: int) -> Held:
    """All that a process holds. Raises `OSError` when it is gone."""
    files, threads = (len(list(Path(f"/proc/{pid}/{what}").iterdir())) for what in ("fd", "task"))
    return Held(memory_of(pid), files, threads)


def megabytes(nbytes: float) -> str:
    """For people."""
    return f"{nbytes / 1e6:.1f} MB"
