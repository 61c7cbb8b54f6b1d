"""A file that is written at once: a full disk is told in one line and leaves the old one."""

import errno
from pathlib import Path

import pytest

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.atomic_file import replaced_atomically, written
from tests.asking import refused


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
