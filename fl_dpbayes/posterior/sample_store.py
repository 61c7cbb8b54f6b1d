"""The posterior bank: every site's samples in the run's store, read back one reply at a time."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fl_dpbayes.files import RunStore, StoredArrays
from fl_dpbayes.posterior.samples import (
    PerSite,
    PosteriorSamples,
    SamplePiece,
    StoredSamples,
    point_of,
)
from fl_dpbayes.protocol import Arrays, prefixed, without_prefix

_SAMPLES = "samples"


class PosteriorBank:
    """Keeps released samples in a run's store.

    Memory then holds one reply at a time.

    Args:
        store: The run's store.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def add(
        self, site: str, round_number: int, chain: int, samples: PosteriorSamples, last: Arrays
    ) -> None:
        """Put a site's samples of one round, and its last state in the place of that before.

        They stay if the store gets an entry after them.

        Args:
            site: Its name.
            round_number: From 1.
            chain: Number of the chain that the round belongs to.
            samples: None or more.
            last: The state after the chain's last step.

        Raises:
            UserError: If they cannot be written.
        """
        if len(samples):
            vectors = {"weights": samples.weights, "temperatures": samples.temperatures}
            states = prefixed(_SAMPLES, dict(sorted(samples.arrays.items())))
            self._store.add_samples(site, chain, round_number, {**vectors, **states})
        self._store.replace_state(site, chain, round_number, last)

    def last(self, site: str, chain: int) -> Arrays | None:
        """Return the last state of one of a site's chains, or None before its first reply.

        Raises:
            UserError: If it is damaged.
        """
        stored = self._store.state(site, chain)
        return stored.read() if stored else None

    def checked_last(
        self, name: str, is_valid: Callable[[str, npt.NDArray], bool]
    ) -> dict[str, npt.NDArray] | None:
        """Return numbers that the server keeps from round to round; None before the first round.

        Args:
            name: Under which they are kept.
            is_valid: Says of an array and its name whether the server can have kept it.

        Raises:
            UserError: If they are damaged, or not what the server keeps.
        """
        last = self.last(name, 0)
        with self._store.reading():
            if last is not None and not all(is_valid(*item) for item in last.items()):
                raise ValueError(f"the {name} are not what a run keeps")
        return None if last is None else {**last}

    def has_last(self, site: str, chain: int) -> bool:
        """Say whether a site has sent a state of one of its chains."""
        return self._store.state(site, chain) is not None

    def states_of(self, sites: Sequence[str], chain: int) -> PerSite[Arrays]:
        """Return site -> last state of one of its chains, read at every look-up."""
        return PerSite(sites, lambda site: self.last(site, chain))

    def sample_chains(self, site: str) -> npt.NDArray[np.int64]:
        """Return the number of the chain that each sample of `stored` belongs to, shape (M,)."""
        stored = self._store.samples(site)
        counts = [len(_piece(arrays).weights) for arrays in stored]
        return np.repeat(np.array([arrays.chain for arrays in stored], np.int64), counts)

    def stored(self, site: str) -> StoredSamples | None:
        """Return all samples of a site in the order of rounds, left on the disk.

        None if it has sent none.
        """
        stored = self._store.samples(site)
        with self._store.reading():
            # As the server checks what comes of a site, all of one model are alike.
            if len({tuple(_one_sample(arrays).items()) for arrays in stored}) > 1:
                raise ValueError(f"samples of {site[:60]!r} have different shapes")
        pieces = tuple(map(_piece, stored))
        return StoredSamples(pieces) if pieces else None

    def stored_last_states(self, site: str) -> StoredSamples | None:
        """Return a site's last states as equally weighted points, left on the disk."""
        pieces = tuple(map(_point, self._store.states(site)))
        return StoredSamples(pieces) if pieces else None

    def round_samples(self, site: str, round_number: int, chain: int) -> PosteriorSamples | None:
        """Return a site's samples of one round, or None if it has sent none in it."""
        pieces = tuple(
            _piece(arrays)
            for arrays in self._store.samples(site)
            if (arrays.chain, arrays.round) == (chain, round_number)
        )
        return StoredSamples(pieces).in_memory() if pieces else None


def _one_sample(stored: StoredArrays) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one sample's parameters."""
    shapes = sorted(stored.shapes.items())
    return {name: shape[1:] for name, shape in shapes if name.startswith(f"{_SAMPLES}/")}


def _piece(stored: StoredArrays) -> SamplePiece:
    """Read weights and temperatures, and leave the samples on the disk.

    Raises:
        UserError: If they are damaged.
    """
    with stored.store.reading():
        vectors = stored.read(names=("weights", "temperatures"))
        weights = vectors["weights"]
        temperatures = vectors["temperatures"]
        if weights.ndim != 1 or weights.shape != temperatures.shape:
            raise ValueError("weights and temperatures need one number for each sample")
        if min(weights.min(initial=0), temperatures.min(initial=0)) < 0:
            raise ValueError("a weight or temperature is below 0")
    return SamplePiece(
        weights=weights,
        temperatures=temperatures,
        rows=lambda rows: _sample_rows(stored, rows),
    )


def _sample_rows(stored: StoredArrays, rows: npt.NDArray[np.intp]) -> Arrays:
    with stored.store.reading():
        samples = without_prefix(_SAMPLES, stored.read())
        return {name: array[rows] for name, array in samples.items()}


def _point(stored: StoredArrays) -> SamplePiece:
    return SamplePiece(
        weights=np.ones(1),
        temperatures=np.zeros(1),
        rows=lambda _: point_of(stored.read()).arrays,
    )
