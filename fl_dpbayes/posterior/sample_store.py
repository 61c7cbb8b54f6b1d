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
    """Keeps released samples below a folder, one file per site and round.

    Memory then holds one reply at a time.

    Args:
        folder: Where the bank lies, in the run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._new_entries: list[dict[str, Any]] = []
        # Files that may not be on the disk yet.
        self._unsynced: list[Path] = []
        # Last states that newer ones have replaced.
        self._replaced: list[Path] = []
        # Site -> chain -> its newest last state.
        self._newest: dict[str, dict[int, Path]] = {}

    def add(
        self, site: str, round_number: int, chain: int, samples: PosteriorSamples, last: Arrays
    ) -> None:
        """Store a site's samples of one round.

        They are surely on the disk after `new_entries`.

        Args:
            site: Its name.
            round_number: From 1.
            chain: Number of the chain that the round belongs to.
            samples: None or more.
            last: The state after the chain's last step.

        Raises:
            UserError: If a file cannot be written.
        """
        folder = self._folder / site
        with written(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if len(samples.weights):
            path = self._path("chain", site, round_number, chain)
            with self._replacing(path) as partial:
                write_samples(partial, samples)
                self._new_entries.append(self._entry(path, partial))
        newest = self._newest_states(site)
        before = newest.get(chain)
        path = self._path("last", site, round_number, chain)
        with self._replacing(path) as partial:
            write_arrays(partial, last)
            self._new_entries.append(self._entry(path, partial, before))
        if before is not None and before != path:
            self._replaced.append(before)
        self._newest[site] = dict(sorted({**newest, chain: path}.items()))

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[Path]:
        with written(path), replaced(path, through_power_cut=False) as partial:
            yield partial
        self._unsynced.append(path)

    def new_entries(self) -> list[dict[str, Any]]:
        """Return a journal's entries for the files that were added since the last call.

        The files are then on the disk.

        Raises:
            UserError: If they cannot be written to it.
        """
        with written(self._folder):
            sync_all(self._unsynced)
        self._unsynced.clear()
        entries = self._new_entries
        self._new_entries = []
        return entries

    def drop_replaced(self) -> None:
        """Delete the states that newer ones have replaced, once a checkpoint knows these."""
        for path in self._replaced:
            path.unlink(missing_ok=True)
        self._replaced.clear()

    def keep_through(self, round_number: int) -> None:
        """Make a round, 0 for none, the last one.

        What came after goes, and so do last states that it has replaced.
        """
        self._newest.clear()
        for folder in self._folder.glob("*"):
            for path in folder.glob("*"):
                is_later = _NAME.fullmatch(path.name) and _round_of(path) > round_number
                if path.name.endswith(PARTIAL) or is_later:
                    path.unlink()
            newest = set(self._newest_states(folder.name).values())
            for path in folder.glob("last-*"):
                if _NAME.fullmatch(path.name) and path not in newest:
                    path.unlink()

    def check(self, entries: Iterable[Entry], round_number: int) -> None:
        """Compare the bank with its run's journal, and make a round the last one.

        Args:
            entries: Of the journal.
            round_number: As for `keep_through`.

        Raises:
            UserError: Naming the first file that is missing, damaged or not of the run.
        """
        run_folder = self._folder.parent
        name = self._folder.name
        listed = {
            file: entry
            for file, entry in listed_files(entries).items()
            if file.startswith(f"{name}/")
        }
        check_files(run_folder, listed)
        self.keep_through(round_number)
        check_no_others(run_folder, f"{name}/*/*", listed)

    def _entry(self, path: Path, content: Path, before: Path | None = None) -> dict[str, Any]:
        run_folder = self._folder.parent
        replaces = None
        if before is not None and before != path:
            replaces = before.relative_to(run_folder).as_posix()
        return file_entry(
            name=path.relative_to(run_folder).as_posix(), content=content, replaces=replaces
        )

    def last(self, site: str, chain: int) -> Arrays | None:
        """Return the last state of one of a site's chains, or None before its first reply.

        Raises:
            UserError: If it is damaged.
        """
        path = self._newest_states(site).get(chain)
        return read_state(path) if path else None

    def has_last(self, site: str, chain: int) -> bool:
        """Say whether a site has sent a state of one of its chains."""
        return chain in self._newest_states(site)

    def states_of(self, sites: Sequence[str], chain: int) -> PerSite[Arrays]:
        """Return site -> last state of one of its chains, read at every look-up."""
        return PerSite(sites, lambda site: self.last(site, chain))

    def sample_chains(self, site: str) -> npt.NDArray[np.int64]:
        """Return the number of the chain that each sample of `stored` belongs to, shape (M,)."""
        paths = self._sample_paths(site)
        chains = np.array([_chain_of(path) for path in paths], np.int64)
        counts = np.array([len(open_samples(path).weights) for path in paths], np.int64)
        return np.repeat(chains, counts)

    def stored(self, site: str) -> StoredSamples | None:
        """Return all samples of a site in the order of rounds, left on the disk.

        None if it has sent none.
        """
        pieces = tuple(map(open_samples, self._sample_paths(site)))
        return StoredSamples(pieces) if pieces else None

    def stored_last_states(self, site: str) -> StoredSamples | None:
        """Return a site's last states as equally weighted points, left on the disk."""
        pieces = tuple(map(_point, self._newest_states(site).values()))
        return StoredSamples(pieces) if pieces else None

    def round_samples(self, site: str, round_number: int, chain: int) -> PosteriorSamples | None:
        """Return a site's samples of one round, or None if it has sent none in it."""
        path = self._path("chain", site, round_number, chain)
        return StoredSamples((open_samples(path),)).in_memory() if path.is_file() else None

    def _path(self, kind: str, site: str, round_number: int, chain: int) -> Path:
        # With its round: a state of a round that was cut off must not be where the repeated round
        # starts.
        return self._folder / site / f"{kind}-{chain:04d}-round-{round_number:06d}.safetensors"

    def _sample_paths(self, site: str) -> list[Path]:
        return sorted((self._folder / site).glob("chain-*-round-*.safetensors"))

    def _newest_states(self, site: str) -> dict[int, Path]:
        """Return chain -> its newest last state, in the order of chains."""
        # Listed once, since a folder grows with the rounds.
        if site not in self._newest:
            paths = sorted((self._folder / site).glob("last-*"))
            newest = {_chain_of(path): path for path in paths if _NAME.fullmatch(path.name)}
            self._newest[site] = dict(sorted(newest.items()))
        return self._newest[site]


def _chain_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _round_of(path: Path) -> int:
    return int(path.stem.split("-")[3])


def _point(path: Path) -> SamplePiece:
    return SamplePiece(
        weights=np.ones(1),
        temperatures=np.zeros(1),
        rows=lambda _: point_of(read_state(path)).arrays,
    )
