"""Digests of large files, which are computed once: a file that nobody has touched since is not read again.

Reading a file of 340 MB takes a core for 0.4 s, at the start of every server and four times in every compilation; done
on a thread of the server, it was what other models' answers felt most of a load.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Bytes up to which a file is read rather than looked up.
SMALL = 1 << 20

#: Nanoseconds that a change must be in the past when a file is looked at: file systems tell times in ticks, so a change
#: of just now may be followed by another that leaves the times as they are.
SETTLED_NS = 2_000_000_000


def digest_file(file: Path) -> str:
    """SHA-256 of a whole file, in hex; the interpreter lock is free while it is computed."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class FileDigests:
    """Notes of digests in a directory, by what the system says of a file: path, inode, size and times."""

    def __init__(self, root: Path, compute: Callable[[Path], str] = digest_file, settled_ns: int = SETTLED_NS) -> None:
        """`compute` reads the large files."""
        self._root = root
        self._compute = compute
        self._settled_ns = settled_ns

    def digest(self, file: Path) -> str:
        """SHA-256 of a whole file, in hex. Raises `OSError`."""
        before = file.stat()
        if before.st_size <= SMALL:
            return digest_file(file)
        note = self._root / _identity(file, before)
        with suppress(OSError):
            if len(known := note.read_text()) == hashlib.sha256().digest_size * 2:
                return known
        found = self._compute(file)
        with suppress(OSError):  # a note that cannot be written is written another time
            self._write(note, found, file, before)
        return found

    def _write(self, note: Path, found: str, file: Path, before: os.stat_result) -> None:
        """Keep a digest, unless the file was changed lately, or while it was read."""
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(mode="w", dir=self._root) as written:
            written.write(found)
            written.flush()
            now = os.fstat(written.fileno()).st_mtime_ns
            settled = now - max(before.st_mtime_ns, before.st_ctime_ns) > self._settled_ns
            if settled and _identity(file, file.stat()) == note.name:
                note.unlink(missing_ok=True)  # one that was cut short
                os.link(written.name, note)


def _identity(file: Path, seen: os.stat_result) -> str:
    facts = (str(file.absolute()), seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
    return hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()
