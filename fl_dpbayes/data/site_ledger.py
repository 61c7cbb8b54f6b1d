"""A site's ledger as its site file names it.

A command or a simulation makes it once, and requests open it.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fl_dpbayes.config import LedgerSettings, SiteFile, read_site_file
from fl_dpbayes.data.site import Site, SiteSplit, is_delta_allowed, most_units
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, AuditLine
from fl_dpbayes.privacy import (
    Cohort,
    DataVersion,
    Ledger,
    LedgerError,
    LedgerPlace,
    LedgerPlaceError,
    split_name,
    unit_sketch,
)

# Where each record or picture is its own unit, its name is a row number or a file's: only its
# content identifies it.
UNNAMED_UNITS = ("record", "image")


# What a stored version of a site's records counts as in the cache of what was read, in bytes.
DATA_VERSION_BYTES = 2**15


def ledger_place(settings: LedgerSettings) -> LedgerPlace:
    """Say where a ledger and its second place lie.

    Args:
        settings: The ledger of a site file.

    Raises:
        LedgerPlaceError: If links or `..` lead both into one folder.
    """
    place = LedgerPlace(
        path=settings.path, witness=settings.witness, durability=settings.durability
    )
    if place.real_path.parent == place.real_witness.parent:
        raise LedgerPlaceError(
            f"ledger.witness {settings.witness} leads to the folder of the ledger {settings.path}: "
            "name a file in another folder, best on another disk"
        )
    return place


def cohort_of(site_file: SiteFile) -> Cohort:
    """Describe the cohort of a site file, without reading a record.

    Args:
        site_file: The site's file.

    Raises:
        UserError: If it names no ledger.
    """
    settings = _settings(site_file)
    split = site_file.split
    # A site that does not train keeps every unit for testing.
    test_fraction = 1.0
    recalibration_fraction = 0.0
    if site_file.role == "train":
        test_fraction = split.test_fraction
        recalibration_fraction = split.recalibration_fraction
    return Cohort(
        name=settings.cohort,
        unit=site_file.source.unit,
        epsilon=settings.epsilon,
        delta=settings.delta,
        adjacency=settings.adjacency,
        split=split_name(split.key, test_fraction, recalibration_fraction),
        planned_runs=settings.planned_runs,
    )


def delta_problem(site_file: SiteFile) -> str:
    """Say why every request would be refused for the ledger's delta; empty where it would not.

    Args:
        site_file: The site's file.
    """
    settings = site_file.ledger
    if settings is None or site_file.role != "train":
        return ""
    if is_delta_allowed(site_file, "train", settings.delta):
        return ""
    bound = 1 / most_units(site_file, "train")
    return (
        f"ledger.delta is {settings.delta:g}: it must be below {bound:.6g}, one over the most "
        f"units that units = {site_file.units} admits"
    )


def create_ledger(site_file: SiteFile, site: Site | None = None) -> Ledger:
    """Make a site file's cohort, and its ledger if there is none: see `create_cohort`.

    Args:
        site_file: Names ledger and cohort.
        site: Its records are compared with those of other cohorts. None leaves that to the first
            request.
    """

    def describe_records(key: bytes) -> DataVersion:
        assert site is not None
        return data_version(site, key)

    describe = None if site is None else describe_records
    return Ledger.create(ledger_place(_settings(site_file)), cohort_of(site_file), describe)


@contextmanager
def open_ledger(
    site_file: SiteFile, site: Site, asked_in: AuditLine | None = None
) -> Iterator[Ledger]:
    """Open the ledger that a site file names, and note there which version its records are.

    Args:
        site_file: Names ledger and cohort.
        site: The site's records.
        asked_in: The line of the audit log that tells the request; a simulated site has no log.

    Raises:
        UserError: If the cohort was made with another budget.
        LedgerError: If ledger or cohort was not made, the ledger is not the one that its second
            place knows, or another cohort has these records. The text names the ledger's path; so
            it does where the caller's block raises a LedgerError.
    """
    place = ledger_place(_settings(site_file))
    cohort = cohort_of(site_file)

    def describe_records(key: bytes) -> DataVersion:
        return KEPT.get(
            ("data version", key, cohort),
            lambda: data_version(site, key),
            lambda _: DATA_VERSION_BYTES,
            of=site,
        )

    try:
        with Ledger.open(place, cohort) as ledger:
            ledger.asked_in = asked_in
            ledger.record_data_version(describe_records)
            yield ledger
    except LedgerError as error:
        raise LedgerError(with_path(error, place.path)) from error


def with_path(error: LedgerError, path: Path) -> str:
    """Return an error's text, beginning with the ledger's path where it does not name it.

    Args:
        error: The error.
        path: The ledger's file.
    """
    return str(error) if str(path) in str(error) else f"ledger {path}: {error}"


def prepare_simulated_ledger(path: Path) -> None:
    """Make the ledger of a virtual site, unless it is there.

    What a cut-off preparation left behind is made anew.

    Args:
        path: The site file.
    """
    site_file = read_site_file(path)
    settings = _settings(site_file)
    if settings.path.exists() and settings.witness.exists():
        return
    settings.witness.unlink(missing_ok=True)
    # The database's own file and those that its write-ahead mode puts beside it.
    for ending in ("", "-wal", "-shm"):
        Path(f"{settings.path}{ending}").unlink(missing_ok=True)
    create_ledger(site_file).close()


def data_version(site: Site, key: bytes) -> DataVersion:
    """Describe a site's records under a secret key.

    The ledger's heads leave the site and are hashes over all that it holds. Without the key whoever
    knows all records but one could try out the last one until the head fits.

    Args:
        site: The site's records.
        key: 1 to 64 bytes.

    Returns:
        The fingerprint of all parts, and a sketch of their units: by name where the source names
        them (a patient column), else by content.

    Source:
        RFC 7693 for keyed BLAKE2b.
    """
    hasher = hashlib.blake2b(key=key, digest_size=16, person=b"data version")
    unit_hashes: list[str] = []
    for part in (site.train, site.test, site.recalibration):
        if part is None:
            continue
        record_hashes = _record_hashes(part, key)
        hasher.update(
            f"{part.features.dtype.str}{part.features.shape}{part.labels.dtype.str}".encode()
        )
        hasher.update("".join(record_hashes).encode() + part.unit_index.tobytes())
        if site.unit in UNNAMED_UNITS:
            unit_hashes += record_hashes
        else:
            unit_hashes += _unit_name_hashes(part, key) or record_hashes
    return DataVersion(fingerprint=hasher.hexdigest(), units=unit_sketch(unit_hashes))


def _settings(site_file: SiteFile) -> LedgerSettings:
    if site_file.ledger is None:
        raise UserError(
            f"the site file of {site_file.name!r} names no ledger: only sites that train need one"
        )
    return site_file.ledger


def _record_hashes(part: SiteSplit, key: bytes) -> list[str]:
    features = np.ascontiguousarray(part.features)
    labels = np.ascontiguousarray(part.labels)
    return [
        _hash(row.tobytes() + label.tobytes(), key)
        for row, label in zip(features, labels, strict=True)
    ]


def _unit_name_hashes(part: SiteSplit, key: bytes) -> list[str]:
    """Return a hash of each unit's name, none where the source does not name units."""
    names = part.unit_names
    if names is None or names.dtype.kind != "U":
        return []
    return [_hash(b"name:" + str(name).encode(), key) for name in names]


def _hash(content: bytes, key: bytes) -> str:
    return hashlib.blake2b(content, key=key, digest_size=16, person=b"unit").hexdigest()
