"""What the server keeps of the sites' ledgers across runs: the last head of each, to be echoed by the next run.

A site has one ledger for all its cohorts. So a head goes by the site's name alone: a renamed cohort
or a second ledger lacks it as an older copy does. Who begins anew with other patients takes another
name.
"""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fl_dpbayes.config import SiteName
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config, read_sealed_json, write_sealed_json, written
from fl_dpbayes.protocol import Digest

HEADS_FILE = "ledger-heads.json"
MOST_SITES = 10_000


class KnownHeads(Config):
    """The content of the file: site -> last head seen."""

    format: Literal[1] = 1
    heads: Annotated[dict[SiteName, Digest], Field(max_length=MOST_SITES)]


def read_heads(path: Path | None) -> dict[str, str]:
    """Read the heads that earlier runs saw, by site, if any.

    UserError if the file is not what `keep` writes.
    """
    # A link that leads nowhere is a lost file, and not one that never was.
    if path is None or not (path.exists() or path.is_symlink()):
        return {}
    try:
        return dict(KnownHeads.model_validate(read_sealed_json(path)).heads)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}, which keeps the last head of every site's ledger, cannot be read "
            f"({str(error).splitlines()[0][:200]}): put back its last copy. Without the file a "
            "run begins as if no "
            "site had ever answered, and only the sites' own second places tell an older ledger"
        ) from None


class LedgerHeads:
    """Site -> last head of its ledger's chain that was seen.

    `path` keeps them across runs, where given.
    """

    def __init__(self, path: Path | None) -> None:
        # A link stays one.
        self._path = None if path is None else path.resolve()
        self._earlier = read_heads(path)
        self.seen: dict[str, str] = dict(self._earlier)

    def restore(self, heads: Mapping[str, str]) -> None:
        """Go on from a run's checkpoint; another run may have asked the sites since."""
        self.seen = dict(heads) | self._earlier

    def keep(self) -> None:
        """Write those that this run saw beside those of other sites, at most `MOST_SITES`.

        UserError if that fails.
        """
        heads = {site: head for site, head in self.seen.items() if self._earlier.get(site) != head}
        if self._path is None or not heads:
            return
        # Two runs may end a round at once.
        with (
            written(self._path),
            self._path.with_name(f".{self._path.name}.lock").open("ab") as lock,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            others = [
                (site, head) for site, head in read_heads(self._path).items() if site not in heads
            ]
            known = dict([*others, *heads.items()][-MOST_SITES:])
            write_sealed_json(self._path, KnownHeads(heads=known).model_dump(mode="json"), indent=1)
