"""A journal: what was appended is read back, what no mark binds goes, a changed byte is found."""

import errno
from pathlib import Path

import pytest

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.atomic_file import replaced_atomically, written
from fl_dpbayes.files.journal import Journal, JournalMark, read_journal
from tests.asking import refused

ENTRIES = [{"round": number, "text": "a\nb\u2028é"} for number in range(4)]


def test_entries_come_back_and_the_file_only_grows(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert read_journal(path) == ([], JournalMark())
    journal = Journal(path, JournalMark())
    before = b""
    for entry in ENTRIES:
        mark = journal.append([entry])
        assert path.read_bytes().startswith(before)
        before = path.read_bytes()
    assert read_journal(path) == read_journal(path, mark) == (ENTRIES, mark)
    together = Journal(tmp_path / "together", JournalMark())
    together.append(ENTRIES)
    assert (tmp_path / "together").read_bytes() == before


def test_what_a_mark_does_not_reach_is_left_out_and_then_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, JournalMark())
    mark = journal.append(ENTRIES)
    journal.append([{"cut": "off"}])
    with path.open("ab") as file:
        file.write(bytes(30) + b'\n{"sha256":"')
    assert read_journal(path, mark) == (ENTRIES, mark)
    assert read_journal(path)[0] == [*ENTRIES, {"cut": "off"}]
    Journal(path, mark).append([{"again": 1}])
    assert read_journal(path)[0] == [*ENTRIES, {"again": 1}]
    assert path.read_bytes().count(b"\n") == len(ENTRIES) + 1


def test_every_changed_byte_and_every_lost_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    mark = Journal(path, JournalMark()).append(ENTRIES)
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        )
        refused(rf"{path} is not as it was written", read_journal, path, mark)
    lines = content.splitlines(keepends=True)
    for number in range(len(lines)):
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        refused(rf"{path} is missing or was cut off", read_journal, path, mark)
    path.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    refused("is not as it was written", read_journal, path, mark)


def test_full_disk_is_told_in_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fill() -> None:
        with replaced_atomically(path) as partial:
            partial.write_text("half of the n")
            raise OSError(errno.ENOSPC, "No space left on device")

    refused(rf"{path} cannot be written \(No space left on device\): free space on its", fill)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="see to its disk and its permissions"), written(path):
        raise PermissionError(errno.EACCES, "Permission denied")
