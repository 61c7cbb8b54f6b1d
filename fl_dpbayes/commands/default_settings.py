"""The settings that `init` writes and `fl.simulate` takes where nothing else is asked for.

They were the best of those that `studies/defaults` tried, on average over its tables.
"""

import math
from dataclasses import dataclass

# Fewer kept states than this cannot show whether a chain has mixed.
KEPT_SAMPLES = 50


@dataclass(frozen=True)
class DefaultSettings:
    """What does not depend on a table, or by which rule it does.

    Attributes:
        epsilon: The budget of each hospital's training.
        clip_share: The clip norm, as a share of the length of a gradient at the start.
        step_length: The farthest that a step can move without noise and prior: step size times
            clip norm.
        prior_scale: Standard deviation of the Gaussian prior.
        sampling_rate: Share of the patients that a step looks at.
        rounds: Rounds of messages.
        steps_per_round: Steps of a hospital in each.
        burn_in_rounds: Rounds that are dropped.
    """

    epsilon: float = 4.0
    clip_share: float = 1.0
    step_length: float = 1.0
    prior_scale: float = 1.0
    sampling_rate: float = 1.0
    rounds: int = 60
    steps_per_round: int = 1
    burn_in_rounds: int = 10

    def clip_norm(self, features: int) -> float:
        """Propose the clip norm of logistic regression on scaled features.

        Args:
            features: Number of a record's features, which is public.
        """
        # About the length of a gradient at the start.
        return two_digits(self.clip_share * math.sqrt(1 + features / 2))

    def written(self, clip_norm: float) -> dict[str, object]:
        """Return what stands in a scenario.

        Args:
            clip_norm: Clip norm of a record's gradient.

        Returns:
            The marks of the template `scenario.toml` -> their values.
        """
        return {
            "epsilon": self.epsilon,
            "clip_norm": clip_norm,
            "step_size": two_digits(self.step_length / clip_norm),
            "prior_scale": self.prior_scale,
            "sampling_rate": self.sampling_rate,
            "rounds": self.rounds,
            "steps_per_round": self.steps_per_round,
            **self.kept(self.rounds, self.steps_per_round),
        }

    def kept(self, rounds: int, steps_per_round: int) -> dict[str, int]:
        """Return the burn-in and the thinning of so many rounds, in steps.

        The burn-in is the same share as of the default; at most one state a round is kept, 50 and
        more where there are so many.

        Args:
            rounds: Rounds of messages.
            steps_per_round: Steps of a hospital in each.
        """
        burn_in = rounds * self.burn_in_rounds // self.rounds
        thinning = max(1, (rounds - burn_in) // KEPT_SAMPLES)
        return {"burn_in": burn_in * steps_per_round, "thinning": thinning * steps_per_round}


DEFAULTS = DefaultSettings()


def two_digits(value: float) -> float:
    """Round a number to two digits."""
    return float(f"{value:.2g}")
