"""A site's records as one short text, by which its ledger tells their versions apart."""

import hashlib

from fl_dpbayes.data.site import Site


def fingerprint(site: Site, key_hex: str) -> str:
    """Return BLAKE2b over a site's records, under a secret key.

    The ledger's heads leave the site and are hashes over all that it holds. Without the key, whoever knows all
    records but one could try out the last one until the head fits.

    Args:
        site: its records, after selection and preprocessing.
        key_hex: the secret key of its splits, in hexadecimal, 1 to 64 bytes.

    Returns:
        32 hexadecimal characters.

    Source:
        RFC 7693 for keyed BLAKE2b.
    """
    hasher = hashlib.blake2b(key=bytes.fromhex(key_hex), digest_size=16, person=b"data version")
    for part in (site.train, site.test, site.recalibration):
        if part is not None:
            for array in (part.features, part.labels, part.unit_index):
                hasher.update(f"{array.dtype.str}{array.shape}".encode())
                hasher.update(array.tobytes())
    return hasher.hexdigest()
