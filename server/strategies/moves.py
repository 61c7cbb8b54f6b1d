"""How far each site's chain moves from the server's state, by sketches summed over rounds."""

import secrets
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import TrainingPlan
from fl_dpbayes.posterior import (
    SKETCH_SIZE,
    PosteriorBank,
    noise_of_mean,
    relative_distances,
    sketched_move,
)
from fl_dpbayes.privacy import planned_chain
from fl_dpbayes.protocol import Arrays, without_prefix
from server.check_reply import NO_SAMPLES

# The bank's name for the summed moves of all sites; no site can be called so.
MOVES = "sums of moves"
SEED = "seed"
# A float64 holds as many exactly.
SEED_BITS = 53


def _is_valid(name: str, numbers: npt.NDArray) -> bool:
    """Say whether an array is a seed of sketches, or a site's moves in one round at least."""
    if name == SEED:
        return numbers.shape == () and 0 <= numbers < 2**SEED_BITS
    return numbers.shape == (SKETCH_SIZE + 1,) and numbers[-1] >= 1


class SketchedMoves:
    """Each site's sketched moves from the server's state and their number, summed over rounds."""

    def __init__(self, bank: PosteriorBank, simulation_seed: int | None) -> None:
        """Go on from what a bank holds, or begin with a new seed of the sketches.

        Args:
            bank: The run's bank.
            simulation_seed: A simulation's seed, which makes it repeatable. Real sites may know a
                scenario's seed, so there it is None and the sketches' seed is a secret.
        """
        self._bank = bank
        self._arrays: dict[str, npt.NDArray]
        stored = bank.checked_last(MOVES, _is_valid)
        if stored is not None and SEED in stored:
            self._arrays = stored
            return
        seed = secrets.randbits(SEED_BITS)
        if simulation_seed is not None:
            seed = simulation_seed % 2**SEED_BITS
        self._arrays = {SEED: np.array(seed, np.float64)}

    def add(self, site: str, start: Arrays, last: Arrays) -> None:
        """Add a site's move in a round.

        Args:
            site: The site's name.
            start: The parameters of the server's state, by name.
            last: The parameters at the end of the site's chain, by name.
        """
        move = sketched_move(start, last, int(self._arrays[SEED]))
        name = f"site/{site}"
        before = self._arrays.get(name, np.zeros(SKETCH_SIZE + 1))
        self._arrays[name] = before + np.append(move, 1.0)

    def store(self, round_number: int) -> None:
        """Put the sums of a round into the bank."""
        self._bank.add(MOVES, round_number, 0, NO_SAMPLES, self._arrays)

    def relative_distances(self, plan: TrainingPlan, units: Mapping[str, int]) -> dict[str, float]:
        """Say how many times as far from the median site each site is as the others are.

        Args:
            plan: The plan of every site.
            units: Declared units of each site.
        """
        means = {}
        noise = {}
        for site, sums in without_prefix("site", self._arrays).items():
            rounds = sums[-1]
            means[site] = sums[:-1] / rounds
            noise[site] = noise_of_mean(planned_chain(plan, units[site]), int(rounds))
        return relative_distances(means, noise)
