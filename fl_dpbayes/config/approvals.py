"""What a site's steward has approved, and what waits for a look: a file and a folder beside the site file.

Both are read at every message, so that an approval holds without a restart. Only `fl-dpbayes site approve` writes the
file; the folder is written by what meets something unknown, and cannot fill a disk.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import Field

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.atomic_file import replaced, write_atomically
from fl_dpbayes.config.validation_text import read_record, read_toml

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Kind = Literal["bundles", "plans"]
SUFFIXES: dict[Kind, str] = {"bundles": ".fab", "plans": ".json"}
MOST_HELD, MOST_HELD_BYTES = 20, 4 * 2**20


class Approvals(Config):
    """SHA-256 of the app bundles that may run, and digests of the plans that may."""

    bundles: Annotated[tuple[Digest, ...], Field(max_length=1000)] = ()
    plans: Annotated[tuple[Digest, ...], Field(max_length=1000)] = ()


def approvals_file(site_file: Path) -> Path:
    """Return where a site's approvals are kept: `north.approved.toml` beside `north.toml`."""
    return site_file.with_suffix(".approved.toml")


def read_approvals(site_file: Path) -> Approvals:
    """Read a site's approvals; where there is no file, nothing is approved.

    Raises UserError if the file is not valid.
    """
    path = approvals_file(site_file)
    if not path.exists():
        return Approvals()
    return read_record(Approvals, read_toml(path, "approvals"), f"approvals {path}")


def approve(site_file: Path, kind: Kind, digest: str) -> None:
    """Add a bundle or plan to a site's approvals; what was held of it is removed.

    Raises UserError if the file is not valid, full, or cannot be written.
    """
    values = read_approvals(site_file).model_dump()
    values[kind] = sorted({*values[kind], digest})
    path = approvals_file(site_file)
    checked = read_record(Approvals, values, f"approvals {path}")
    write_atomically(path, tomli_w.dumps(checked.model_dump(mode="json")))
    # Who runs Flower reads it; nobody but who approves writes it.
    path.chmod(0o644)
    with suppress(OSError):
        (held_folder(site_file, kind) / f"{digest}{SUFFIXES[kind]}").unlink()


def held_folder(site_file: Path, kind: Kind) -> Path:
    """Return where unknown bundles or plans of a site are held: `north.held/bundles` beside `north.toml`.

    A folder each: under process isolation another user writes the one than the other.
    """
    return site_file.with_suffix(".held") / kind


def node_log(site_file: Path) -> Path:
    """Return the name under which the audit log of decisions on bundles is kept, by the node's user."""
    return held_folder(site_file, "bundles") / "node"


def hold(site_file: Path, kind: Kind, digest: str, content: bytes) -> bool:
    """Keep what is unknown for the steward's look, if it is small enough and there are few; say whether it is there.

    What is held stays: who sends more cannot push it out.
    """
    folder = held_folder(site_file, kind)
    path = folder / f"{digest}{SUFFIXES[kind]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return True
        if len(content) > MOST_HELD_BYTES or sum(1 for _ in folder.glob(f"*{SUFFIXES[kind]}")) >= MOST_HELD:
            return False
        with replaced(path) as partial:
            partial.write_bytes(content)
    except OSError:
        return False
    return True


def held(site_file: Path) -> Iterator[tuple[Kind, str, Path]]:
    """Yield kind, digest and file of all that waits for the steward's look.

    Raises UserError if the folder cannot be read.
    """
    for kind, suffix in SUFFIXES.items():
        folder = held_folder(site_file, kind)
        try:
            found = sorted(folder.glob(f"*{suffix}"))
        except OSError as error:
            raise UserError(f"{folder} cannot be read: {error.strerror}") from None
        yield from ((kind, path.name.removesuffix(suffix), path) for path in found if not path.name.startswith("."))
