"""The posterior bank: every site's samples on disk, read back one site at a time."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.files import (
    PARTIAL,
    Entry,
    check_files,
    check_no_others,
    file_entry,
    listed_files,
    replaced,
    sync_all,
    write_arrays,
    written,
)
from fl_dpbayes.posterior.sample_file import open_samples, read_state, write_samples
from fl_dpbayes.posterior.samples import (
    PerSite,
    PosteriorSamples,
    SamplePiece,
    StoredSamples,
    point_of,
)
from fl_dpbayes.protocol import Arrays

_NAME = re.compile(r"(?:chain|last)-\d{4,}-round-\d{6,}\.safetensors")


class PosteriorBank:
    """Keeps released samples below a folder, one file per site and round, so that memory holds one reply at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._new: list[dict[str, Any]] = []
        # Not yet surely on the disk; replaced by them; and of each site, by chain, the newest
        # state.
        self._unsynced: list[Path] = []
        self._replaced: list[Path] = []
        self._last: dict[str, dict[int, Path]] = {}

    def add(
        self, site: str, round_number: int, chain: int, samples: PosteriorSamples, last: Arrays
    ) -> None:
        """Store a site's samples of one round, which belongs to a chain, and the state after its last step.

        They are surely on the disk after `new_entries`. Raises UserError if a file cannot be
        written.
        """
        folder = self._folder / site
        with written(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if len(samples.weights):
            path = self._path("chain", site, round_number, chain)
            with self._written(path) as partial:
                write_samples(partial, samples)
                self._new.append(self._entry(path, partial))
        lasts, path = self._last_paths(site), self._path("last", site, round_number, chain)
        before = lasts.get(chain)
        with self._written(path) as partial:
            write_arrays(partial, last)
            self._new.append(self._entry(path, partial, before))
        if before is not None and before != path:
            self._replaced.append(before)
        self._last[site] = dict(sorted({**lasts, chain: path}.items()))

    @contextmanager
    def _written(self, path: Path) -> Iterator[Path]:
        with written(path), replaced(path, through_power_cut=False) as partial:
            yield partial
        self._unsynced.append(path)

    def new_entries(self) -> list[dict[str, Any]]:
        """Return a journal's entries for the files that were added since the last call, once they are on the disk.

        Raises UserError if they cannot be written to it.
        """
        with written(self._folder):
            sync_all(self._unsynced)
        self._unsynced.clear()
        entries, self._new = self._new, []
        return entries

    def drop_replaced(self) -> None:
        """Delete the states that newer ones have replaced, once a checkpoint knows these."""
        for path in self._replaced:
            path.unlink(missing_ok=True)
        self._replaced.clear()

    def keep_through(self, round_number: int) -> None:
        """Make a round, 0 for none, the last one: what came after goes, and so do last states that it has replaced."""
        self._last.clear()
        for folder in self._folder.glob("*"):
            for path in folder.glob("*"):
                if path.name.endswith(PARTIAL) or (
                    _NAME.fullmatch(path.name) and _round_of(path) > round_number
                ):
                    path.unlink()
            newest = set(self._last_paths(folder.name).values())
            for path in folder.glob("last-*"):
                if _NAME.fullmatch(path.name) and path not in newest:
                    path.unlink()

    def check(self, entries: Iterable[Entry], round_number: int) -> None:
        """Compare the bank with its run's journal, and make a round the last one.

        Raises UserError naming the first file that is missing, damaged or not of the run.
        """
        folder, name = self._folder.parent, self._folder.name
        listed = {
            file: entry
            for file, entry in listed_files(entries).items()
            if file.startswith(f"{name}/")
        }
        check_files(folder, listed)
        self.keep_through(round_number)
        check_no_others(folder, f"{name}/*/*", listed)

    def _entry(self, path: Path, content: Path, before: Path | None = None) -> dict[str, Any]:
        folder = self._folder.parent
        replaces = [] if before in (None, path) else [before.relative_to(folder).as_posix()]
        return file_entry(path.relative_to(folder).as_posix(), content, *replaces)

    def last(self, site: str, chain: int) -> Arrays | None:
        """Return the last state of one of a site's chains, or None before its first reply.

        UserError if damaged.
        """
        path = self._last_paths(site).get(chain)
        return read_state(path) if path else None

    def has_last(self, site: str, chain: int) -> bool:
        """Say whether a site has sent a state of one of its chains."""
        return chain in self._last_paths(site)

    def states_of(self, sites: Sequence[str], chain: int) -> PerSite[Arrays]:
        """Return site -> last state of one of its chains, read at every look-up."""
        return PerSite(sites, lambda site: self.last(site, chain))

    def sample_chains(self, site: str) -> npt.NDArray[np.int64]:
        """Return the number of the chain that each sample of `samples` belongs to, shape (M,)."""
        paths = self._sample_paths(site)
        counts = np.array([len(open_samples(path).weights) for path in paths], np.int64)
        return np.repeat(np.array([_chain_of(path) for path in paths], np.int64), counts)

    def _sample_paths(self, site: str) -> list[Path]:
        return sorted((self._folder / site).glob("chain-*-round-*.safetensors"))

    def _path(self, kind: str, site: str, round_number: int, chain: int) -> Path:
        # With its round: a state of a round that was cut off must not be where the repeated round
        # starts.
        return self._folder / site / f"{kind}-{chain:04d}-round-{round_number:06d}.safetensors"

    def _last_paths(self, site: str) -> dict[int, Path]:
        # By chain, in order; of each the newest. Listed once, since a folder grows with the rounds.
        if site in self._last:
            return self._last[site]
        found = (
            path
            for path in sorted((self._folder / site).glob("last-*"))
            if _NAME.fullmatch(path.name)
        )
        self._last[site] = dict(sorted({_chain_of(path): path for path in found}.items()))
        return self._last[site]

    def stored(self, site: str) -> StoredSamples | None:
        """Return all samples of a site in the order of rounds, left on the disk, or None if it has sent none."""
        pieces = tuple(map(open_samples, self._sample_paths(site)))
        return StoredSamples(pieces) if pieces else None

    def stored_last_states(self, site: str) -> StoredSamples | None:
        """Return the parameters of each of a site's last states as equally weighted points, left on the disk."""
        pieces = tuple(map(_point, self._last_paths(site).values()))
        return StoredSamples(pieces) if pieces else None

    def round_samples(self, site: str, round_number: int, chain: int) -> PosteriorSamples | None:
        """Return a site's samples of one round, or None if it has sent none in it."""
        path = self._path("chain", site, round_number, chain)
        return StoredSamples((open_samples(path),)).in_memory() if path.is_file() else None


def _chain_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _round_of(path: Path) -> int:
    return int(path.stem.split("-")[3])


def _point(path: Path) -> SamplePiece:
    return SamplePiece(np.ones(1), np.zeros(1), lambda _: point_of(read_state(path)).arrays)
