"""The posterior bank: every site's samples on disk, read back one site at a time."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import load_file

from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from server.atomic_file import save_atomically


class PosteriorBank:
    """Keeps released samples below a folder, one file per site and round, so that memory holds one reply at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, site: str, round_number: int, chain: int, samples: PosteriorSamples, last: Arrays) -> None:
        """Store a site's samples of one round and its last state.

        Args:
            site: name of the site.
            round_number: the round, >= 1.
            chain: number of the chain that the round belongs to, >= 0.
            samples: M >= 0 samples.
            last: the state after the round's last step.
        """
        folder = self._folder / site
        folder.mkdir(parents=True, exist_ok=True)
        if len(samples.weights):
            content: dict[str, npt.NDArray] = {
                **prefixed("samples", samples.arrays),
                "weights": np.asarray(samples.weights, dtype=np.float64),
                "temperatures": np.asarray(samples.temperatures, dtype=np.float64),
            }
            save_atomically(self._samples_path(site, round_number, chain), content)
        save_atomically(self._last_path(site, round_number, chain), last)

    def keep_through(self, round_number: int) -> None:
        """Make a round the last one: what came after it goes, and so do last states that it has replaced.

        Args:
            round_number: the last round that is complete; 0 empties the bank.
        """
        for folder in self._folder.glob("*"):
            for path in folder.glob("*-round-*.safetensors"):
                if _round_of(path) > round_number:
                    path.unlink()
            for path in set(folder.glob("last-*.safetensors")) - set(self._last_paths(folder.name)):
                path.unlink()

    def sites(self) -> list[str]:
        """Return the names of the sites that have sent a state, in alphabetical order."""
        return sorted({path.parent.name for path in self._folder.glob("*/last-*.safetensors")})

    def last(self, site: str, chain: int) -> Arrays | None:
        """Return the last state of one of a site's chains, or None before its first reply in it."""
        paths = [path for path in self._last_paths(site) if _chain_of(path) == chain]
        return load_file(paths[0]) if paths else None

    def last_states(self, site: str) -> list[Arrays]:
        """Return the last state of each of a site's chains so far."""
        return [load_file(path) for path in self._last_paths(site)]

    def sample_chains(self, site: str) -> npt.NDArray[np.int64]:
        """Return the number of the chain that each sample of `samples` belongs to, shape (M,)."""
        numbers: list[int] = []
        for path in self._sample_paths(site):
            with safe_open(path, framework="numpy") as file:
                numbers += [_chain_of(path)] * file.get_slice("weights").get_shape()[0]
        return np.array(numbers, dtype=np.int64)

    def _sample_paths(self, site: str) -> list[Path]:
        return sorted((self._folder / site).glob("chain-*-round-*.safetensors"))

    def _samples_path(self, site: str, round_number: int, chain: int) -> Path:
        return self._folder / site / f"chain-{chain:04d}-round-{round_number:06d}.safetensors"

    def _last_path(self, site: str, round_number: int, chain: int) -> Path:
        # With its round: a state of a round that was cut off must not be where the repeated round starts.
        return self._folder / site / f"last-{chain:04d}-round-{round_number:06d}.safetensors"

    def _last_paths(self, site: str) -> list[Path]:
        newest = {_chain_of(path): path for path in sorted((self._folder / site).glob("last-*.safetensors"))}
        return [newest[chain] for chain in sorted(newest)]

    def samples(self, site: str) -> PosteriorSamples | None:
        """Return all samples of a site in the order of rounds, or None if it has sent none."""
        parts = [_read_samples(path) for path in self._sample_paths(site)]
        return concatenate(parts) if parts else None

    def round_samples(self, site: str, round_number: int, chain: int) -> PosteriorSamples | None:
        """Return a site's samples of one round, or None if it has sent none in it."""
        path = self._samples_path(site, round_number, chain)
        return _read_samples(path) if path.is_file() else None


def _chain_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _round_of(path: Path) -> int:
    return int(path.stem.split("-")[3])


def _read_samples(path: Path) -> PosteriorSamples:
    content = load_file(path)
    return PosteriorSamples(
        arrays=without_prefix("samples", content),
        weights=content["weights"],
        temperatures=content["temperatures"],
    )
