"""A site's ledger as its site file names it: made once, by a command or a simulation, and opened by requests."""

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


def ledger_place(settings: LedgerSettings) -> LedgerPlace:
    """Say where a ledger and its second place lie.

    UserError if links or `..` lead both into one folder.
    """
    place = LedgerPlace(settings.path, settings.witness, settings.durability)
    if place.real_path.parent == place.real_witness.parent:
        led = f"ledger.witness {settings.witness} leads to the folder of the ledger {settings.path}"
        raise LedgerPlaceError(f"{led}: name a file in another folder, best on another disk")
    return place


def cohort_of(site_file: SiteFile) -> Cohort:
    """Describe the cohort of a site file, without reading a record.

    UserError if it names no ledger.
    """
    settings, split = _settings(site_file), site_file.split
    # A site that does not train keeps every unit for testing.
    fractions = (
        (split.test_fraction, split.recalibration_fraction)
        if site_file.role == "train"
        else (1.0, 0.0)
    )
    spent = settings.epsilon, settings.delta, settings.adjacency
    return Cohort(
        settings.cohort,
        site_file.source.unit,
        *spent,
        split=split_name(split.key, *fractions),
        planned_runs=settings.planned_runs,
    )


def delta_problem(site_file: SiteFile) -> str:
    """Say why every request would be refused for the ledger's delta; empty where it would not."""
    settings = site_file.ledger
    if (
        settings is None
        or site_file.role != "train"
        or is_delta_allowed(site_file, "train", settings.delta)
    ):
        return ""
    below = (
        f"{1 / most_units(site_file, 'train'):.6g}, one over the most units that units = "
        f"{site_file.units} admits"
    )
    return f"ledger.delta is {settings.delta:g}: it must be below {below}"


def create_ledger(site_file: SiteFile, site: Site | None = None) -> Ledger:
    """Make a site file's cohort, and its ledger if there is none, comparing a `site`'s records: see `create_cohort`."""
    describe = None if site is None else lambda key: data_version(site, key)
    return Ledger.create(ledger_place(_settings(site_file)), cohort_of(site_file), describe)


@contextmanager
def open_ledger(
    site_file: SiteFile, site: Site, asked_in: AuditLine | None = None
) -> Iterator[Ledger]:
    """Open the ledger that a site file names, for the site's cohort, and note there which version its records are.

    `asked_in`: the line of the audit log that tells the request; a simulated site has no log.
    Raises UserError if the cohort was made with another budget. Raises LedgerError naming the
    ledger's path, in the context as well: if ledger or cohort was not made, the ledger is not the
    one that its second place knows, or another cohort has these records.
    """
    place = ledger_place(_settings(site_file))
    try:
        with Ledger.open(place, cohort_of(site_file)) as ledger:
            ledger.asked_in = asked_in
            ledger.record_data_version(
                lambda key: KEPT.get(
                    ("data version", key, cohort_of(site_file)),
                    lambda: data_version(site, key),
                    lambda _: 2**15,
                    of=site,
                )
            )
            yield ledger
    except LedgerError as error:
        raise LedgerError(with_path(error, place.path)) from error


def with_path(error: LedgerError, path: Path) -> str:
    """Return an error's text, beginning with the ledger's path where it does not name it."""
    return str(error) if str(path) in str(error) else f"ledger {path}: {error}"


def prepare_simulated_ledger(path: Path) -> None:
    """Make the ledger of a virtual site, unless it is there.

    What a cut-off preparation left behind is made anew.
    """
    site_file = read_site_file(path)
    settings = _settings(site_file)
    if settings.path.exists() and settings.witness.exists():
        return
    for left in (
        settings.witness,
        settings.path,
        *(Path(f"{settings.path}{end}") for end in ("-wal", "-shm")),
    ):
        left.unlink(missing_ok=True)
    create_ledger(site_file).close()


def data_version(site: Site, key: bytes) -> DataVersion:
    """Describe a site's records under a secret key.

    The ledger's heads leave the site and are hashes over all that it holds. Without the key, of 1
    to 64 bytes, whoever knows all records but one could try out the last one until the head fits.
    Returns the fingerprint of all parts, and a sketch of their units: by name where the source
    names them (a patient column), else by content. Source: RFC 7693 for keyed BLAKE2b.
    """
    whole, units = hashlib.blake2b(key=key, digest_size=16, person=b"data version"), list[str]()
    for part in filter(None, (site.train, site.test, site.recalibration)):
        rows = zip(
            np.ascontiguousarray(part.features), np.ascontiguousarray(part.labels), strict=True
        )
        records = [_hash(row.tobytes() + label.tobytes(), key) for row, label in rows]
        whole.update(
            f"{part.features.dtype.str}{part.features.shape}{part.labels.dtype.str}".encode()
        )
        whole.update("".join(records).encode() + part.unit_index.tobytes())
        units += records if site.unit in UNNAMED_UNITS else _named(part, records, key)
    return DataVersion(whole.hexdigest(), unit_sketch(units))


def _settings(site_file: SiteFile) -> LedgerSettings:
    if site_file.ledger is None:
        raise UserError(
            f"the site file of {site_file.name!r} names no ledger: only sites that train need one"
        )
    return site_file.ledger


def _named(part: SiteSplit, records: list[str], key: bytes) -> list[str]:
    names = part.unit_names
    if names is None or names.dtype.kind != "U":
        return records
    return [_hash(b"name:" + str(name).encode(), key) for name in names]


def _hash(content: bytes, key: bytes) -> str:
    return hashlib.blake2b(content, key=key, digest_size=16, person=b"unit").hexdigest()
