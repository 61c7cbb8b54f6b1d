"""JSON files that carry a checksum of their content and of files beside them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.config.files.journal import file_sha256

CHECKSUM, BESIDE = "checksum", "checksums_beside"


class DamagedError(ValueError):
    """A stored file is not as it was written; the text says what is wrong, without the path."""


def write_sealed_json(
    path: Path, content: Mapping[str, Any], *, indent: int | None = None, beside: Sequence[str] = ()
) -> None:
    """Write a JSON object with the SHA-256 of its canonical form; a reader meets the old file or the whole new one.

    `indent`: as for `json.dumps`. Raises UserError if it cannot be written.
    """
    files = {name: file_sha256(path.parent / name) for name in beside if (path.parent / name).is_file()}
    whole = {**content, **({BESIDE: files} if beside else {})}
    text = json.dumps({**whole, CHECKSUM: _checksum(whole)}, indent=indent, allow_nan=False, ensure_ascii=False)
    write_atomically(path, text + "\n")


def read_sealed_json(path: Path) -> dict[str, Any]:
    """Read the content of a file of `write_sealed_json`, without its own checksum.

    Raises OSError if it cannot be read. Raises DamagedError if it is no JSON object, has no checksum, or was
    changed since it was written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it cannot be read as JSON ({str(error)[:80]})") from None
    if not isinstance(content, dict):
        raise DamagedError("expected a JSON object")
    stored = content.pop(CHECKSUM, None)
    if stored is None:
        raise DamagedError("it has no checksum: an older version of fl-dpbayes wrote it, or it is damaged")
    if stored != _checksum(content):
        raise DamagedError("it was changed since it was written (its checksum differs)")
    return content


def check_beside(path: Path, content: Mapping[str, Any], name: str) -> None:
    """Compare a file beside a sealed one with the checksum in its content; one that it does not know is not compared.

    Raises OSError if it cannot be read. Raises DamagedError if it is missing, or not as it was written.
    """
    stored, file = content.get(BESIDE, {}).get(name), path.parent / name
    if stored is None:
        return
    if not file.is_file():
        raise DamagedError("it is missing")
    if file_sha256(file) != stored:
        raise DamagedError("it was changed since it was written (its checksum differs)")


def _checksum(content: Mapping[str, Any]) -> str:
    # As JSON reads it back: a tuple is a list, a key is a string.
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
