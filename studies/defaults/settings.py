"""The settings that the search tries: one list, the same for every table.

Every clip norm with every step and prior, each at two random lengths of the chain. Clip norm and
step size follow from the number of features, which is public.
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

Coupling = Literal["constant", "floor"]
# As they stand in an assignment; nothing removes the key.
TEMPERATURES: dict[Coupling, str] = {"constant": "", "floor": "1.0"}
_SEED = 1
CLIP_SHARES = (0.5, 1.0, 2.0)
STEP_LENGTHS = (0.3, 1.0, 3.0)
PRIOR_SCALES = (0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Length:
    """How long a chain runs; each keeps 50 samples.

    Attributes:
        rounds: Rounds of messages.
        steps_per_round: Steps of a hospital in each.
        burn_in: Rounds that are dropped.
        thinning: One state in so many rounds is kept.
        sampling_rate: Share of the patients that a step looks at.
    """

    rounds: int
    steps_per_round: int
    burn_in: int
    thinning: int
    sampling_rate: float

    @property
    def steps(self) -> int:
        """All steps of a hospital."""
        return self.rounds * self.steps_per_round


LENGTHS = (
    Length(rounds=60, steps_per_round=1, burn_in=10, thinning=1, sampling_rate=1.0),
    Length(rounds=120, steps_per_round=1, burn_in=20, thinning=2, sampling_rate=1.0),
    Length(rounds=240, steps_per_round=1, burn_in=40, thinning=4, sampling_rate=1.0),
    Length(rounds=60, steps_per_round=4, burn_in=10, thinning=1, sampling_rate=0.5),
)


@dataclass(frozen=True)
class Settings:
    """One try.

    Attributes:
        clip_share: The clip norm, as a share of the length of a gradient at the start.
        step_length: The farthest that a step can move without noise and prior: step size times
            clip norm.
        prior_scale: Standard deviation of the prior.
        length: How long the chain runs.
    """

    clip_share: float
    step_length: float
    prior_scale: float
    length: Length

    def overrides(self, features: int, coupling: Coupling = "constant") -> list[str]:
        """Return the settings of a scenario, as `--set` takes them.

        Args:
            features: Of a record.
            coupling: Constant noise, or Langevin dynamics at temperature 1 and above.
        """
        clip_norm = self.clip_share * np.sqrt(1 + features / 2)
        length = self.length
        steps = length.steps_per_round
        return [
            f"privacy.coupling={coupling}",
            f"privacy.temperature={TEMPERATURES[coupling]}",
            f"privacy.clip_norm={clip_norm:.2g}",
            f"privacy.sampling_rate={length.sampling_rate}",
            f"sampler.step_size={{kind='constant', initial={self.step_length / clip_norm:.2g}}}",
            f"sampler.prior.scale={self.prior_scale}",
            f"training={{rounds={length.rounds}, steps_per_round={steps}, "
            f"burn_in={length.burn_in * steps}, thinning={length.thinning * steps}}}",
        ]


def former_overrides(features: int) -> list[str]:
    """Return what `init` proposed before the search: Langevin dynamics at temperature 1.

    Args:
        features: Of a record.
    """
    return [
        "privacy.coupling=floor",
        "privacy.temperature=1.0",
        f"privacy.clip_norm={np.sqrt(1 + features / 2):.1g}",
        "privacy.sampling_rate=0.5",
        "sampler.step_size={kind='constant', initial=0.2}",
        "sampler.prior.scale=1.0",
        "training={rounds=10, steps_per_round=20, burn_in=100, thinning=10}",
    ]


def all_settings() -> list[Settings]:
    """Return the tries, in the order of their numbers."""
    generator = np.random.default_rng(_SEED)
    grid = list(product(CLIP_SHARES, STEP_LENGTHS, PRIOR_SCALES))
    first = generator.integers(len(LENGTHS), size=len(grid))
    # Another one than the first.
    second = (first + generator.integers(1, len(LENGTHS), size=len(grid))) % len(LENGTHS)
    return [
        Settings(*rules, LENGTHS[place])
        for places in (first, second)
        for rules, place in zip(grid, places.tolist(), strict=True)
    ]
