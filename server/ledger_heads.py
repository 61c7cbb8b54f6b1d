"""What the server keeps of the sites' ledgers across runs: the last head of each, to be echoed by the next run.

A site has one ledger for all its cohorts. So a head goes by the site's name alone: a renamed cohort or a second ledger
lacks it as an older copy does. Who begins anew with other patients takes another name.
"""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.atomic_file import written
from fl_dpbayes.config.files.sealed_json import read_sealed_json, write_sealed_json
from fl_dpbayes.config.names import SiteName
from fl_dpbayes.protocol.train import Digest

HEADS_FILE = "ledger-heads.json"
MOST_SITES = 10_000


class KnownHeads(Config):
    """The content of the file: site -> last head seen."""

    format: Literal[1] = 1
    heads: Annotated[dict[SiteName, Digest], Field(max_length=MOST_SITES)]


def read_heads(path: Path | None) -> dict[str, str]:
    """Read the heads that earlier runs saw.

    Args:
        path: the file; None where the ledgers are made for the run.

    Returns:
        Site -> head; empty if there is no file.

    Raises:
        UserError: if the file is not what `keep_heads` writes.
    """
    # A link that leads nowhere is a lost file, and not one that never was.
    if path is None or not (path.exists() or path.is_symlink()):
        return {}
    try:
        return dict(KnownHeads.model_validate(read_sealed_json(path)).heads)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}, which keeps the last head of every site's ledger, cannot be read "
            f"({str(error).splitlines()[0][:200]}): put back its last copy. Without the file a run begins as if no "
            "site had ever answered, and only the sites' own second places tell an older ledger"
        ) from None


def keep_heads(path: Path | None, heads: Mapping[str, str]) -> None:
    """Note the heads that this run saw beside those of other sites.

    Args:
        path: the file, in a folder that exists; None: keep nothing.
        heads: site -> last head, of the sites that answered in this run. Beyond `MOST_SITES` those seen longest ago go.

    Raises:
        UserError: if the file is damaged or cannot be written.
    """
    if path is None or not heads:
        return
    # A link stays one. Two runs may end a round at once.
    path = path.resolve()
    with written(path), path.with_name(f".{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [(site, head) for site, head in read_heads(path).items() if site not in heads]
        known = dict([*others, *heads.items()][-MOST_SITES:])
        write_sealed_json(path, KnownHeads(heads=known).model_dump(mode="json"), indent=1)
