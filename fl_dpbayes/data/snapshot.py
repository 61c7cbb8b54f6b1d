"""A site's validated records in one file, a snapshot.

`fl-dpbayes site check` makes it, and every run at a real site reads it.
It is as confidential as the records, readable by its owner only, and bound to the files that it was
made from.
"""

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import SiteFile
from fl_dpbayes.data.records import Records, array_bytes, frozen
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, file_sha256, files_below, replaced_atomically

VERSION = 1
COLUMNS = ("features", "labels", "units", "truth", "published")
# What NumPy and zipfile raise at an archive that is not as it was written.
DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
CHECK = "run  fl-dpbayes site check SITE_FILE  to look at the data and make a new snapshot"


class SourceFile(NamedTuple):
    """A file of a site's source as it was when it was looked at; JSON stores it as a list.

    Attributes:
        path: The file's path.
        size: Its size in bytes.
        changed_ns: The time of its last change, in nanoseconds.
    """

    path: str
    size: int
    changed_ns: int


@dataclass(frozen=True)
class _Snapshot:
    records: Records
    files: list[SourceFile]


class DataUncheckedError(UserError):
    """There is no sound snapshot of the site's records as its file describes them."""


class DataChangedError(UserError):
    """The files that a snapshot was made from are not as they were."""


def source_files(site_file: SiteFile) -> list[SourceFile]:
    """Look at each file of a site's records, without reading it.

    Args:
        site_file: Names the source and the file of the selected records' numbers.

    Raises:
        DataChangedError: If a file is gone.
    """
    places = [*site_file.source.places]
    if site_file.selection.indices is not None:
        places.append(site_file.selection.indices)
    paths = files_below(places)
    files = []
    try:
        for path in sorted(paths):
            if path.is_dir():
                continue
            status = path.stat()
            files.append(
                SourceFile(path=str(path), size=status.st_size, changed_ns=status.st_mtime_ns)
            )
    except OSError as error:
        raise DataChangedError(
            f"{error.filename} cannot be read ({error.strerror}): put it back"
        ) from None
    return files


def write_snapshot(site_file: SiteFile, records: Records, files: list[SourceFile]) -> str:
    """Write validated records where the site file says, readable by their owner only.

    Args:
        site_file: The site's file.
        records: The site's records, selected and shifted.
        files: The files of the source, from `source_files` before they were read.

    Returns:
        The SHA-256 over the files' paths and contents.

    Raises:
        UserError: If the site file names no snapshot, records are Python objects, or the snapshot
            cannot be written.
        DataChangedError: If one of the files has changed since.
    """
    path = site_file.records_file
    if path is None:
        raise UserError(
            f"site file of {site_file.name!r}: add a line  snapshot = 'FILE'  above its tables"
        )
    digest = _content_digest(files)
    if source_files(site_file) != files:
        raise DataChangedError(f"the data changed while they were read: {CHECK}")
    arrays = _arrays(records)
    header = {
        "version": VERSION,
        "described": described(site_file),
        "files": files,
        "sha256": digest,
        "unit": records.unit,
        "feature_names": records.feature_names,
        "groups": list(records.groups),
        "arrays": list(arrays),
    }
    with replaced_atomically(path) as partial:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            header_bytes = np.frombuffer(json.dumps(header).encode(), np.uint8)
            # The stub of NumPy takes the arrays for `allow_pickle` too.
            np.savez(file, header=header_bytes, **arrays)  # type: ignore[arg-type]
    return digest


def _content_digest(files: list[SourceFile]) -> str:
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(f"{file.path}\0{file_sha256(Path(file.path))}\n".encode())
    return hasher.hexdigest()


def _arrays(records: Records) -> dict[str, npt.NDArray]:
    """Return the arrays of a snapshot of these records, by their names in the archive."""
    arrays = {}
    for name in COLUMNS:
        values = getattr(records, name)
        if values is not None:
            arrays[name] = values
    for number, values in enumerate(records.groups.values()):
        arrays[f"group{number}"] = values
    for name, values in arrays.items():
        if values.dtype.hasobject:
            raise UserError(
                f"the source gives {name} as Python objects, which no snapshot can hold: give text"
            )
    return arrays


def read_snapshot(site_file: SiteFile) -> Records:
    """Read the records of a site's snapshot, never unpickling.

    The source's files are looked at, not read. The snapshot is read once in a process, while it
    stays as it is; the arrays are read-only.

    Args:
        site_file: The site's file, which names a snapshot.

    Raises:
        DataUncheckedError: If there is no snapshot, it is damaged, or the site file now describes
            other records.
        DataChangedError: If size or time of a source's file is another than when the snapshot was
            made.
    """
    path = site_file.records_file
    assert path is not None
    description = described(site_file)

    def read() -> _Snapshot:
        return _read(path, site_file, description)

    try:
        snapshot = KEPT.get(("snapshot", path, description), read, array_bytes, [path])
    except FileNotFoundError:
        raise DataUncheckedError(f"there is no snapshot {path}: {CHECK}") from None
    except DAMAGED:
        raise DataUncheckedError(
            f"snapshot {path} is damaged, or cannot be read: {CHECK}"
        ) from None
    if snapshot.files != source_files(site_file):
        raise DataChangedError(f"the data changed since snapshot {path} was made: {CHECK}")
    return snapshot.records


def _read(path: Path, site_file: SiteFile, description: str) -> _Snapshot:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        if header["version"] != VERSION or header["described"] != description:
            raise DataUncheckedError(
                f"snapshot {path} is of another source, selection or shift: {CHECK}"
            )
        arrays = {name: archive[name] for name in header["arrays"]}
    groups = {name: arrays.pop(f"group{number}") for number, name in enumerate(header["groups"])}
    columns = dict.fromkeys(COLUMNS) | arrays
    records = Records(
        **columns,
        natural_site=None,
        task=site_file.source.task,
        unit=header["unit"],
        groups=groups,
        feature_names=tuple(header["feature_names"]),
    )
    files = [SourceFile(*file) for file in header["files"]]
    return _Snapshot(records=frozen(records), files=files)


def described(site_file: SiteFile) -> str:
    """Return the digest of what a site file says of its records.

    That is: which records are the site's, and how they are prepared.

    Args:
        site_file: The site's file.
    """
    keys = {"name", "source", "selection", "shift", "shift_seed"}
    return hashlib.sha256(site_file.model_dump_json(include=keys).encode()).hexdigest()
