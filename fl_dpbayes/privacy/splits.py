"""Which units test and recalibrate: each is decided alone, so the parts stay disjoint.

docs/proofs/parallel-parts.md says what follows for the budget.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Unit = str | bytes | int


def unit_scores(units: Sequence[Unit], key: bytes) -> npt.NDArray[np.float64]:
    """Give each privacy unit a uniform score that depends on its name and a secret key only.

        score = floor(BLAKE2b(unit; key) / 2^11) / 2^53

    Args:
        units: N names of units; a text, a number and bytes are different units even where they
            look alike.
        key: 1 to 64 secret bytes, fixed for the life of the cohort.

    Returns:
        Scores in [0, 1), shape (N,).

    Raises:
        ValueError: If the key is empty or longer than 64 bytes, or a unit has another type.
    """
    if not 1 <= len(key) <= 64:
        raise ValueError(f"the key has {len(key)} bytes: it must have 1 to 64")
    digests = [
        hashlib.blake2b(_unit_bytes(unit), key=key, digest_size=8, person=b"unit split").digest()
        for unit in units
    ]
    bits = np.frombuffer(b"".join(digests), dtype="<u8")
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def parts_of_units(
    units: Sequence[Unit],
    key_hex: str,
    test_fraction: float,
    recalibration_fraction: float = 0.0,
) -> npt.NDArray[np.str_]:
    """Say to which part each unit belongs: so each is in one, and no other unit moves it.

        score < test: "test";   score < test + recalibration: "recalibration";   else "train"

    Args:
        units: N names of units.
        key_hex: The secret key in hexadecimal.
        test_fraction: In [0, 1].
        recalibration_fraction: In [0, 1 - test_fraction].

    Returns:
        The parts' names, shape (N,).
    """
    scores = unit_scores(units, bytes.fromhex(key_hex))
    edges = (test_fraction, test_fraction + recalibration_fraction)
    return np.array(["test", "recalibration", "train"])[np.digitize(scores, edges)]


def split_name(key_hex: str, test_fraction: float, recalibration_fraction: float = 0.0) -> str:
    """Name a split without giving its key away: equal for equal key and fractions.

    Args:
        key_hex: The secret key in hexadecimal.
        test_fraction: In [0, 1].
        recalibration_fraction: In [0, 1].

    Returns:
        32 hexadecimal characters.
    """
    fractions = [test_fraction]
    # Ledgers that were made before there was a recalibration part hold the name without one.
    if recalibration_fraction:
        fractions.append(recalibration_fraction)
    text = " ".join(repr(float(fraction)) for fraction in fractions)
    digest = hashlib.blake2b(
        text.encode(), key=bytes.fromhex(key_hex), digest_size=16, person=b"split name"
    )
    return digest.hexdigest()


def _unit_bytes(unit: Unit) -> bytes:
    if isinstance(unit, str):
        return b"text:" + unit.encode()
    if isinstance(unit, bytes):
        return b"bytes:" + unit
    if isinstance(unit, (int, np.integer)):
        return b"number:" + str(int(unit)).encode()
    raise ValueError(
        f"a unit's name is a {type(unit).__name__}: it must be text, bytes or a whole number"
    )
