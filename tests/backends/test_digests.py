"""Digests that are computed once for as long as nobody touches the file."""

import hashlib
import os
from pathlib import Path

import pytest

from app.backends.digests import SMALL, FileDigests, digest_file

CONTENT = b"x" * (SMALL + 1)


class Reader:
    """Computes digests, and remembers of which files."""

    def __init__(self) -> None:
        self.read: list[Path] = []

    def __call__(self, file: Path) -> str:
        self.read.append(file)
        return digest_file(file)


@pytest.fixture
def reader():
    return Reader()


@pytest.fixture
def digests(tmp_path, reader):
    return _digests(tmp_path, reader)


def _digests(folder: Path, compute) -> FileDigests:
    """Every change counts as one of long ago: its time cannot be set."""
    return FileDigests(folder / "notes", compute, settled_ns=-1)


def _written(file: Path, content: bytes = CONTENT) -> Path:
    file.write_bytes(content)
    return file


def test_a_large_file_is_read_once_and_its_digest_is_that_of_its_content(tmp_path, digests, reader):
    file = _written(tmp_path / "file")
    expected = hashlib.sha256(CONTENT).hexdigest()
    assert [digests.digest(file), digests.digest(file)] == [expected, expected]
    assert _digests(tmp_path, reader).digest(file) == expected  # another start
    assert reader.read == [file]


def test_a_small_file_leaves_no_note(tmp_path, digests, reader):
    file = _written(tmp_path / "file", b"small")
    assert digests.digest(file) == hashlib.sha256(b"small").hexdigest()
    assert reader.read == []
    assert not (tmp_path / "notes").exists()


def _rewrite(file: Path) -> None:
    file.write_bytes(b"y" * len(CONTENT))


def _rewrite_with_the_same_times(file: Path) -> None:
    seen = file.stat()
    _rewrite(file)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def _replace(file: Path) -> None:
    seen = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"y" * len(CONTENT))
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    other.replace(file)


def _append(file: Path) -> None:
    with file.open("ab") as stream:
        stream.write(b"y")


@pytest.mark.parametrize("change", [_rewrite, _rewrite_with_the_same_times, _replace, _append])
def test_a_changed_file_is_read_again(change, tmp_path, digests, reader):
    file = _written(tmp_path / "file")
    digests.digest(file)
    change(file)
    assert digests.digest(file) == digest_file(file)
    assert len(reader.read) == 2


def test_a_file_that_was_changed_just_now_is_not_trusted_to_stay_as_it_is(tmp_path, reader):
    digests, file = FileDigests(tmp_path / "notes", reader), _written(tmp_path / "file")
    digests.digest(file)
    digests.digest(file)
    assert len(reader.read) == 2


def test_a_file_that_changes_while_it_is_read_leaves_no_note(tmp_path):
    file = _written(tmp_path / "file")

    def read(file):
        found = digest_file(file)
        _rewrite(file)
        return found

    _digests(tmp_path, read).digest(file)
    reader = Reader()
    assert _digests(tmp_path, reader).digest(file) == hashlib.sha256(b"y" * len(CONTENT)).hexdigest()
    assert reader.read == [file]


def test_a_note_that_was_cut_short_counts_as_none(tmp_path, digests, reader):
    file = _written(tmp_path / "file")
    digests.digest(file)
    (note,) = (tmp_path / "notes").iterdir()
    note.write_text("abc")
    assert digests.digest(file) == hashlib.sha256(CONTENT).hexdigest()
    assert note.read_text() == digest_file(file)


def test_where_no_note_can_be_written_digests_are_computed_all_the_same(tmp_path, reader):
    (tmp_path / "notes").write_text("no directory")
    file = _written(tmp_path / "file")
    assert _digests(tmp_path, reader).digest(file) == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_that_is_not_there_is_an_os_error(tmp_path, digests):
    with pytest.raises(FileNotFoundError):
        digests.digest(tmp_path / "none")
