"""The posterior bank: every site's samples on disk, read back one site at a time."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix


class PosteriorBank:
    """Keeps released samples below a folder, one file per site and round, so that memory holds one reply at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, site: str, round_number: int, samples: PosteriorSamples, last: Arrays) -> None:
        """Store a site's samples of one round and its last state.

        Args:
            site: name of the site.
            round_number: the round, >= 1.
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
            save_file(content, folder / f"round-{round_number:06d}.safetensors")
        save_file(dict(last), folder / "last.safetensors")

    def sites(self) -> list[str]:
        """Return the names of the sites that have sent a state, in alphabetical order."""
        return sorted(path.parent.name for path in self._folder.glob("*/last.safetensors"))

    def last(self, site: str) -> Arrays | None:
        """Return the site's last state, or None before its first reply."""
        path = self._folder / site / "last.safetensors"
        return load_file(path) if path.is_file() else None

    def samples(self, site: str) -> PosteriorSamples | None:
        """Return all samples of a site in the order of rounds, or None if it has sent none."""
        parts = []
        for path in sorted((self._folder / site).glob("round-*.safetensors")):
            content = load_file(path)
            parts.append(
                PosteriorSamples(
                    arrays=without_prefix("samples", content),
                    weights=content["weights"],
                    temperatures=content["temperatures"],
                )
            )
        return concatenate(parts) if parts else None
