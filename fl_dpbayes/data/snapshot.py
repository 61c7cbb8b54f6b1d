"""A site's validated records in one file, made by `fl-dpbayes site check` and read by every run at a real site.

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

import numpy as np

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


@dataclass(frozen=True)
class _Snapshot:
    records: Records
    files: list[tuple[str, int, int]]


class DataUncheckedError(UserError):
    """There is no sound snapshot of the site's records as its file describes them."""


class DataChangedError(UserError):
    """The files that a snapshot was made from are not as they were."""


def source_files(site_file: SiteFile) -> list[tuple[str, int, int]]:
    """Return path, size and last change, in ns, of each file of a site's records.

    DataChangedError if one is gone.
    """
    source = site_file.source
    given = getattr(source, "path", None) or getattr(source, "folder", None) or ()
    places = [
        *(given if isinstance(given, tuple) else (given,)),
        *filter(None, [site_file.selection.indices]),
    ]
    paths = files_below(places)
    try:
        return [
            (str(path), (at := path.stat()).st_size, at.st_mtime_ns)
            for path in sorted(paths)
            if not path.is_dir()
        ]
    except OSError as error:
        raise DataChangedError(
            f"{error.filename} cannot be read ({error.strerror}): put it back"
        ) from None


def write_snapshot(site_file: SiteFile, records: Records, files: list[tuple[str, int, int]]) -> str:
    """Write validated records, selected and shifted, where the site file says.

    `files`: of the source, before they were read. Returns the SHA-256 over their paths and
    contents. Raises UserError if one of them has changed since, or the snapshot cannot be written.
    """
    path = site_file.records_file
    if path is None:
        raise UserError(
            f"site file of {site_file.name!r}: add a line  snapshot = 'FILE'  above its tables"
        )
    hasher = hashlib.sha256()
    for name, *_ in files:
        hasher.update(f"{name}\0{file_sha256(Path(name))}\n".encode())
    if source_files(site_file) != files:
        raise DataChangedError(f"the data changed while they were read: {CHECK}")
    arrays = {name: values for name in COLUMNS if (values := getattr(records, name)) is not None}
    arrays |= {f"group{number}": values for number, values in enumerate(records.groups.values())}
    header = {
        "version": VERSION,
        "described": described(site_file),
        "files": files,
        "sha256": hasher.hexdigest(),
    }
    header |= {
        "unit": records.unit,
        "feature_names": records.feature_names,
        "groups": list(records.groups),
    }
    header["arrays"] = list(arrays)
    if objects := [name for name, values in arrays.items() if values.dtype.hasobject]:
        raise UserError(
            f"the source gives {objects[0]} as Python objects, which no snapshot can "
            "hold: give text"
        )
    with replaced_atomically(path) as partial:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    return hasher.hexdigest()


def read_snapshot(site_file: SiteFile) -> Records:
    """Read the records of a site's snapshot, never unpickling.

    The source's files are looked at, not read.

    Read once in a process, while the snapshot stays as it is; the arrays are read-only. Raises
    DataUncheckedError if there is none, it is damaged, or the site file now describes other
    records. Raises DataChangedError if size or time of a source's file is another than when the
    snapshot was made.
    """
    path, says = site_file.records_file, described(site_file)
    assert path is not None
    try:
        found = KEPT.get(
            ("snapshot", path, says), lambda: _read(path, site_file, says), array_bytes, [path]
        )
    except FileNotFoundError:
        raise DataUncheckedError(f"there is no snapshot {path}: {CHECK}") from None
    except DAMAGED:
        raise DataUncheckedError(
            f"snapshot {path} is damaged, or cannot be read: {CHECK}"
        ) from None
    if found.files != source_files(site_file):
        raise DataChangedError(f"the data changed since snapshot {path} was made: {CHECK}")
    return found.records


def _read(path: Path, site_file: SiteFile, says: str) -> _Snapshot:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        if header["version"] != VERSION or header["described"] != says:
            raise DataUncheckedError(
                f"snapshot {path} is of another source, selection or shift: {CHECK}"
            )
        arrays = {name: archive[name] for name in header["arrays"]}
    groups = {name: arrays.pop(f"group{number}") for number, name in enumerate(header["groups"])}
    more = {
        "groups": groups,
        "feature_names": tuple(header["feature_names"]),
        "unit": header["unit"],
    }
    records = Records(
        **dict.fromkeys(COLUMNS) | arrays | more, natural_site=None, task=site_file.source.task
    )
    return _Snapshot(frozen(records), [tuple(file) for file in header["files"]])


def described(site_file: SiteFile) -> str:
    """Return the digest of what a site file says of which records are the site's, and how they are prepared."""
    keys = {"name", "source", "selection", "shift", "shift_seed"}
    return hashlib.sha256(site_file.model_dump_json(include=keys).encode()).hexdigest()
