"""What recalibration does to predictions, and the plan by which its parameters are fitted."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from fl_dpbayes.config.outcome import AnyOutcome
from fl_dpbayes.config.plan import MIN_CLIP_NORM, Adjacency, AnyPrivacyPlan, Probability
from fl_dpbayes.files import Config, by_default

# Far beyond any useful value: exp(10) = 22,026.
PARAMETER_BOUND = 10.0
Parameter = Annotated[float, Field(ge=-PARAMETER_BOUND, le=PARAMETER_BOUND)]
Parameters = Annotated[tuple[Parameter, ...], Field(min_length=1, max_length=2000)]
# Public constant: equal-width bins of a probability, the grid of an isotonic map.
ISOTONIC_BINS = 15


@dataclass(frozen=True)
class Method:
    """A recalibration method, whose code is `calibration/recalibration/<name>.py`.

    Attributes:
        name: Name in scenarios and messages.
        parameters: Number of a map's parameters, whatever the number of classes.
        per_class: Number of further parameters for each class.
        for_more_classes: What to choose instead for more than two classes; empty where the method
            takes any number.
        outcome: Kind of the outcome whose predictions it maps.
        rising_knots: Whether the parameters are positions of knots, then values, in [0, 1] and
            never falling.
    """

    name: str
    parameters: int = 0
    per_class: int = 0
    for_more_classes: str = ""
    outcome: str = "classification"
    rising_knots: bool = False


# Fitted by descent at the sites, of whose parameters the server takes the median.
DESCENTS = (
    Method("temperature", parameters=1),
    Method("vector", per_class=2),
    Method("platt", parameters=2, for_more_classes="vector"),
)
# Fitted by the server to one count of bins at each site.
COUNTS = (Method("isotonic", parameters=2 * ISOTONIC_BINS, rising_knots=True),)
METHODS = {method.name: method for method in (*DESCENTS, *COUNTS)}
COUNTED = tuple(method.name for method in COUNTS)

if TYPE_CHECKING:
    DescentMethod = str
    CountingMethod = str
    RecalibrationMethod = str
else:
    DescentMethod = Literal[tuple(method.name for method in DESCENTS)]
    CountingMethod = Literal[COUNTED]
    RecalibrationMethod = Literal[tuple(METHODS)]


def parameter_count(method: RecalibrationMethod, outcome: AnyOutcome) -> int:
    """Return how many parameters a map has.

    Args:
        method: Name of the method.
        outcome: Whose predictions are mapped.

    Raises:
        ValueError: The method is not for this outcome.
    """
    record = METHODS[method]
    if outcome.kind != record.outcome:
        raise ValueError(f"method {method!r} is for {record.outcome}, not for {outcome.kind}")
    if record.for_more_classes and not outcome.is_event:
        allowed = f"here are {outcome.outputs}: choose {record.for_more_classes!r}"
        raise ValueError(f"method {method!r} is for two classes, {allowed}")
    return record.parameters + record.per_class * outcome.outputs


class RecalibrationMap(Config):
    """A map of class probabilities.

    `temperature`: log T. `vector`: the log scales of all classes, then their biases. `platt`: log
    scale and bias of the log odds of class 1. Of these, all parameters 0 change nothing.
    `isotonic`: the positions of ISOTONIC_BINS knots, then their values; both in [0, 1] and neither
    ever falls.
    """

    method: RecalibrationMethod
    parameters: Parameters

    def _check_keys(self) -> None:
        record = METHODS[self.method]
        if not record.rising_knots:
            return
        if len(self.parameters) != record.parameters:
            raise ValueError(
                f"an {self.method} map has {record.parameters} parameters, not "
                f"{len(self.parameters)}"
            )
        half = record.parameters // 2
        for knots in (self.parameters[:half], self.parameters[half:]):
            falls = any(knot > next_knot for knot, next_knot in pairwise(knots))
            if knots[0] < 0 or knots[-1] > 1 or falls:
                raise ValueError(f"the knots of an {self.method} map lie in [0, 1] and never fall")


def _check_rounds(rounds: int, steps: int) -> None:
    if steps % rounds:
        raise ValueError(f"rounds is {rounds}: it must divide steps, {steps}")


class RecalibrationPlan(Config):
    """The fit of a map by descent at each site.

    Its `steps` full-batch steps, over all rounds, cost `epsilon` together. Without `epsilon` the
    fit has no noise and no privacy, and a site takes part only if its policy says so. The step
    size falls linearly from `step_size` to 0 over the plan.
    """

    method: DescentMethod
    epsilon: PositiveFloat | None
    delta: Probability
    adjacency: Adjacency
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)]
    steps: Annotated[int, Field(ge=1, le=10_000)]
    rounds: PositiveInt
    step_size: PositiveFloat

    @property
    def steps_per_round(self) -> int:
        """Steps that each round asks for."""
        return self.steps // self.rounds

    def _check_keys(self) -> None:
        _check_rounds(self.rounds, self.steps)


class CountingPlan(Config):
    """One count of bins at each site, released once at a cost of `epsilon`.

    The server fits the map to it. Without `epsilon` the count is exact and not private, and a site
    takes part only if its policy says so.
    """

    method: CountingMethod = "isotonic"
    epsilon: PositiveFloat | None
    delta: Probability
    adjacency: Adjacency
    steps: Literal[1] = 1
    rounds: Literal[1] = 1

    steps_per_round: ClassVar[int] = 1


AnyRecalibrationPlan = Annotated[RecalibrationPlan | CountingPlan, Field(discriminator="method")]


class Recalibration(Config):
    """A map of the posterior's probabilities, fitted by private descent.

    It is fitted on the share `fraction` of each training site's units. The share is kept from
    training, so `epsilon` (default: `privacy.epsilon`) is spent beside that of training, not on top
    of it. With the scope `federated` the median of the sites' parameters is taken after each of
    `rounds`, into which `steps` are divided, and every site uses it. With `site` each training site
    uses its own parameters, the other sites the median.
    """

    method: DescentMethod = "temperature"
    scope: Literal["federated", "site"] = "federated"
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    epsilon: PositiveFloat | None = None
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)] = 5.0
    steps: Annotated[int, Field(ge=1, le=10_000)] = 40
    rounds: PositiveInt = 1
    step_size: PositiveFloat = 1.0

    def _check_keys(self) -> None:
        _check_rounds(self.rounds, self.steps)
        if self.scope == "site" and self.rounds > 1:
            raise ValueError(
                f"rounds is {self.rounds}, but with scope 'site' nothing is combined: leave it at 1"
            )


class IsotonicRecalibration(Config):
    """A rising map of the posterior's probabilities, from a private count of bins at each site.

    Each training site counts once. `fraction`, `epsilon` and `scope` are as for the other methods;
    with the scope `federated` all sites use the median of their maps.
    """

    method: CountingMethod = "isotonic"
    scope: Literal["federated", "site"] = "federated"
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    epsilon: PositiveFloat | None = None


AnyRecalibration = Annotated[
    Annotated[Recalibration | IsotonicRecalibration, Field(discriminator="method")],
    by_default(method="temperature"),
]


def recalibration_plan(
    recalibration: AnyRecalibration, privacy: AnyPrivacyPlan
) -> AnyRecalibrationPlan:
    """Build the plan that every recalibration request carries.

    The plan of the training gives delta, adjacency and, where the section has none, epsilon.
    """
    epsilon = recalibration.epsilon or privacy.epsilon
    settings = recalibration.model_dump(exclude={"scope", "fraction"})
    settings["epsilon"] = epsilon if math.isfinite(epsilon) else None
    settings["delta"] = privacy.delta
    settings["adjacency"] = privacy.adjacency
    if isinstance(recalibration, IsotonicRecalibration):
        return CountingPlan.model_validate(settings)
    return RecalibrationPlan.model_validate(settings)
