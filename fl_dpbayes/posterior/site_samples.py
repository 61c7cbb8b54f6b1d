"""What the sites sent, as mappings that read it from disk, one site at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from fl_dpbayes.posterior.samples import PosteriorSamples

ValueT = TypeVar("ValueT")


class PerSite(Mapping[str, ValueT]):
    """Site -> what it sent, read anew at every look-up, so that memory holds only what is in use.

    `read` returns None for a site that sent nothing.
    """

    def __init__(self, sites: Sequence[str], read: Callable[[str], ValueT | None]) -> None:
        self._sites, self._read = sites, read

    def __getitem__(self, site: str) -> ValueT:
        value = self._read(site) if site in self._sites else None
        if value is None:
            raise KeyError(site)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)


SiteSamples = PerSite[PosteriorSamples]
