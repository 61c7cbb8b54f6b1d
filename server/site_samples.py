"""The sites' samples as a mapping that reads them from disk, one site at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from fl_dpbayes.posterior.samples import PosteriorSamples


class SiteSamples(Mapping[str, PosteriorSamples]):
    """Site -> its samples, read anew at every look-up, so that memory holds only those in use.

    `read` returns None for a site without samples.
    """

    def __init__(self, sites: Sequence[str], read: Callable[[str], PosteriorSamples | None]) -> None:
        self._sites, self._read = sites, read

    def __getitem__(self, site: str) -> PosteriorSamples:
        samples = self._read(site) if site in self._sites else None
        if samples is None:
            raise KeyError(site)
        return samples

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)
