"""The last head of each site's ledger, kept across runs and echoed by the next one.

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
    """The content of the file.

    Attributes:
        format: Version of the file.
        heads: Site -> last head seen.
    """

    format: Literal[1] = 1
    heads: Annotated[dict[SiteName, Digest], Field(max_length=MOST_SITES)]


def read_heads(path: Path | None) -> dict[str, str]:
    """Read the heads that earlier runs saw, by site, if any.

    Raises:
        UserError: The file is not what `LedgerHeads.keep` writes.
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
            "run begins as if no site had ever answered, and only the sites' own second places "
            "tell an older ledger"
        ) from None


class LedgerHeads:
    """The last heads of the sites' ledgers that were seen.

    Attributes:
        last: Site -> last head of its ledger's chain.
    """

    def __init__(self, path: Path | None) -> None:
        """Begin with those that earlier runs saw.

        Args:
            path: Keeps the heads across runs; None keeps none.
        """
        # A link stays one.
        self._path = None if path is None else path.resolve()
        self._earlier = read_heads(path)
        self.last: dict[str, str] = dict(self._earlier)

    def restore(self, heads: Mapping[str, str]) -> None:
        """Go on from a run's checkpoint; another run may have asked the sites since."""
        self.last = dict(heads) | self._earlier

    def keep(self) -> None:
        """Write those that this run saw beside those of other sites, at most `MOST_SITES`.

        Raises:
            UserError: The file cannot be written.
        """
        heads = {site: head for site, head in self.last.items() if self._earlier.get(site) != head}
        if self._path is None or not heads:
            return
        lock_path = self._path.with_name(f".{self._path.name}.lock")
        with written(self._path), lock_path.open("ab") as lock:
            # Two runs may end a round at once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = read_heads(self._path)
            of_other_sites = [(site, head) for site, head in stored.items() if site not in heads]
            newest = dict([*of_other_sites, *heads.items()][-MOST_SITES:])
            content = KnownHeads(heads=newest).model_dump(mode="json")
            write_sealed_json(self._path, content, indent=1)
