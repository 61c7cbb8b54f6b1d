"""A site's records as a few short texts, by which its ledger tells their versions apart and finds them again."""

import hashlib
from collections.abc import Iterator

import numpy as np

from fl_dpbayes.data.site import Site, SiteSplit
from fl_dpbayes.privacy.ledger.cohort_creation import unit_sketch
from fl_dpbayes.privacy.ledger.state import DataVersion

# Where each record or picture is its own unit, its name is a row number or a file's: only its content identifies it.
UNNAMED_UNITS = ("record", "image")


def data_version(site: Site, key: bytes) -> DataVersion:
    """Describe a site's records under a secret key.

    The ledger's heads leave the site and are hashes over all that it holds. Without the key, whoever knows all
    records but one could try out the last one until the head fits.

    Args:
        site: its records, after selection and preprocessing.
        key: the ledger's secret key, 1 to 64 bytes.

    Returns:
        The fingerprint of all parts, and a sketch of their units: by name where the source names them (a patient
        column), else by content.

    Source:
        RFC 7693 for keyed BLAKE2b.
    """
    whole = hashlib.blake2b(key=key, digest_size=16, person=b"data version")
    units: list[str] = []
    for part in (site.train, site.test, site.recalibration):
        if part is not None:
            records = [_hash(content, key) for content in _contents(part)]
            whole.update(f"{part.features.dtype.str}{part.features.shape}{part.labels.dtype.str}".encode())
            whole.update("".join(records).encode())
            whole.update(part.unit_index.tobytes())
            units += records if site.unit in UNNAMED_UNITS else _named(part, records, key)
    return DataVersion(whole.hexdigest(), unit_sketch(units))


def _contents(part: SiteSplit) -> Iterator[bytes]:
    features, labels = np.ascontiguousarray(part.features), np.ascontiguousarray(part.labels)
    return (features[row].tobytes() + labels[row].tobytes() for row in range(len(labels)))


def _named(part: SiteSplit, records: list[str], key: bytes) -> list[str]:
    names = part.unit_names
    if names is None or names.dtype.kind != "U":
        return records
    return [_hash(b"name:" + str(name).encode(), key) for name in names]


def _hash(content: bytes, key: bytes) -> str:
    return hashlib.blake2b(content, key=key, digest_size=16, person=b"unit").hexdigest()
