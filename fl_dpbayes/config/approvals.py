"""What a site's steward has approved, and what waits for a look.

The one is a file, the other a folder, beside the site file. Both are read at every message, so that
an approval holds without a restart. Only `fl-dpbayes site approve` writes the file; the folder is
written by what meets something unknown, and cannot fill a disk.
"""

import getpass
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import Field

from fl_dpbayes.config.names import OutsideText, outside_text
from fl_dpbayes.config.validation_text import read_record, read_toml
from fl_dpbayes.files import Config, replaced, write_atomically

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Kind = Literal["bundles", "plans"]
SUFFIXES: dict[Kind, str] = {"bundles": ".fab", "plans": ".json"}
MOST_HELD = 20
MOST_HELD_BYTES = 4 * 2**20


class Given(Config):
    """By whom, as this machine names its users, and when (UTC) something was approved."""

    by: OutsideText
    time: OutsideText


class Approvals(Config):
    """What a site's steward has approved.

    Attributes:
        bundles: SHA-256 of the app bundles that may run.
        plans: Digests of the plans that may run.
        code: Name of installed code -> SHA-256 of its files when a bundle was last approved.
        given: Digest of a bundle or plan -> by whom it was approved last.
    """

    bundles: Annotated[tuple[Digest, ...], Field(max_length=1000)] = ()
    plans: Annotated[tuple[Digest, ...], Field(max_length=1000)] = ()
    code: Annotated[dict[OutsideText, Digest], Field(max_length=1000)] = Field(default_factory=dict)
    given: Annotated[dict[Digest, Given], Field(max_length=2000)] = Field(default_factory=dict)

    def described(self, digest: str) -> str:
        """Say by whom and when something was approved, as far as it is known."""
        approval = self.given.get(digest)
        if approval is None:
            return "by nobody that is noted here"
        return f"by {approval.by} on {approval.time}"


def approvals_file(site_file: Path) -> Path:
    """Return where a site's approvals are kept: `north.approved.toml` beside `north.toml`."""
    return site_file.with_suffix(".approved.toml")


def read_approvals(site_file: Path) -> Approvals:
    """Read a site's approvals; where there is no file, nothing is approved.

    Raises:
        UserError: It is not valid.
    """
    path = approvals_file(site_file)
    content = read_toml(path, "approvals") if path.exists() else {}
    return read_record(Approvals, content, origin=f"approvals {path}")


def approve(
    site_file: Path, kind: Kind, digest: str, code: Mapping[str, str] | None = None
) -> None:
    """Add a bundle or plan to a site's approvals, and remove what was held of it.

    Args:
        site_file: Place of the site file.
        kind: What is approved.
        digest: Its digest.
        code: What is installed, name -> digest, which takes the place of what was approved before;
            None: as it was.

    Raises:
        UserError: The file is not valid, full, or cannot be written.
    """
    path = approvals_file(site_file)
    values = read_approvals(site_file).model_dump(mode="json")
    values[kind] = sorted({*values[kind], digest})
    values["given"][digest] = {
        "by": outside_text(_user()),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if code is not None:
        values["code"] = dict(code)
    read_record(Approvals, values, origin=f"approvals {path}")
    write_atomically(path, tomli_w.dumps(values))
    # Who runs Flower reads it; nobody but who approves writes it.
    path.chmod(0o644)
    with suppress(OSError):
        (held_folder(site_file, kind) / f"{digest}{SUFFIXES[kind]}").unlink()


def held_folder(site_file: Path, kind: Kind) -> Path:
    """Return where unknown bundles or plans are held: `north.held/bundles` beside `north.toml`.

    Each kind has a folder of its own: under process isolation different users write them.
    """
    return site_file.with_suffix(".held") / kind


def node_log(site_file: Path) -> Path:
    """Return where the node's user keeps the audit log of decisions on bundles."""
    return held_folder(site_file, "bundles") / "node"


def hold(site_file: Path, kind: Kind, digest: str, content: bytes) -> bool:
    """Keep an unknown bundle or plan for the steward's look, if it is small and few wait.

    What is held stays: who sends more cannot push it out.

    Args:
        site_file: Place of the site file.
        kind: What it is.
        digest: Its digest.
        content: Its bytes.

    Returns:
        Whether it is held now.
    """
    path = held_folder(site_file, kind) / f"{digest}{SUFFIXES[kind]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            return True
        is_full = len(list(held(site_file, kind))) >= MOST_HELD
        if is_full or len(content) > MOST_HELD_BYTES:
            return False
        with replaced(path) as partial:
            partial.write_bytes(content)
    except OSError:
        return False
    return True


def held(site_file: Path, *kinds: Kind) -> Iterator[tuple[Kind, str, Path]]:
    """Yield kind, digest and file of all that waits for the steward's look, or of these kinds."""
    for kind in kinds or SUFFIXES:
        files = held_folder(site_file, kind).glob(f"[!.]*{SUFFIXES[kind]}")
        yield from ((kind, path.stem, path) for path in sorted(files))


def _user() -> str:
    """Name who runs this process; where somebody became root for it, that person."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        # Of a user without a name.
        return f"user {os.getuid()}"
