"""The evaluation request and its reply."""

from typing import Annotated, Literal

from pydantic import Field

from fl_dpbayes.config import (
    GroupText,
    RecalibrationMap,
    TrainedPrevalence,
    parameter_count,
)
from fl_dpbayes.protocol.train import Digest, PrivacyStatement, StageReply, StageRequest

PredictorName = Literal["last", "posterior", "hierarchical"]
RECALIBRATED = "recalibrated"
PRIOR_CORRECTED = "prior_corrected"
# Each is the posterior's predictions, mapped.
MAPPED = (RECALIBRATED, PRIOR_CORRECTED)
MAX_GROUPS = 20
# Of one reply; the server keeps those of every site. Without it 20 subgroups of 100 classes would
# take 230 MiB.
MAX_SUBGROUP_BYTES = 32 * 2**20
Weights = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1, max_length=10_000)
]
# An attribute and its value.
Group = tuple[GroupText, GroupText]


def most_groups(group_bytes: int) -> int:
    """Return how many subgroups a reply may hold.

    Args:
        group_bytes: The size of one subgroup's tables in bytes.
    """
    return min(MAX_GROUPS, MAX_SUBGROUP_BYTES // group_bytes)


def subgroup_prefix(number: int) -> str:
    """Return what stands before the names of a subgroup's arrays.

    Args:
        number: The subgroup's place in the reply's `groups`.
    """
    return f"group-{number}"


class EvaluateRequest(StageRequest):
    """Predictors to be measured at a site, from arrays `<predictor>/<name>` of shape (M, ...).

    Attributes:
        predictors: Predictor -> one weight per sample.
        arrays: The digest of the arrays.
        recalibration: With it the site also measures `recalibrated`: the map applied to the
            predictions of `posterior`.
        trained_prevalence: The declared shares of the classes at training. With them the site also
            measures `prior_corrected`: the predictions of `posterior` (not recalibrated) moved from
            there to the prevalence that the site declares or estimates.
        noise_multiplier: Of the sums, where they leave with noise.
        delta: For which the noise's epsilon is accounted.
    """

    protocol: Literal[1] = 1
    predictors: dict[PredictorName, Weights]
    arrays: Digest
    recalibration: RecalibrationMap | None = None
    trained_prevalence: TrainedPrevalence | None = None
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)]

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of all predictors that the reply holds, in order."""
        names: list[str] = list(self.predictors)
        if self.recalibration is not None:
            names.append(RECALIBRATED)
        if self.trained_prevalence is not None:
            names.append(PRIOR_CORRECTED)
        return tuple(names)

    def _check_keys(self) -> None:
        shares = self.trained_prevalence
        recalibration = self.recalibration
        if not all(any(weights) for weights in self.predictors.values()):
            raise ValueError("predictors needs a weight above 0 for each")
        has_posterior = "posterior" in self.predictors
        fits = shares is None or self.task.outcome.is_prevalence(shares)
        if not fits or (shares is not None and not has_posterior):
            raise ValueError(
                "trained_prevalence needs the predictor 'posterior' and one share for each class"
            )
        if recalibration is None:
            return
        if not has_posterior:
            raise ValueError("recalibration needs the predictor 'posterior', which it maps")
        expected = parameter_count(recalibration.method, self.task.outcome)
        if len(recalibration.parameters) != expected:
            raise ValueError(
                f"recalibration has {len(recalibration.parameters)} parameters, the method "
                f"takes {expected}"
            )


class EvaluateReply(StageReply):
    """Additive calibration statistics `<predictor>/<table>`.

    Those of subgroup i are `group-<i>/<predictor>/<table>`.

    Attributes:
        release: How the sums left: exactly (public test data) or with Gaussian noise that the
            ledger paid for.
        groups: Subgroups of the test records, attribute and value. Where the sums left with noise
            these are all that the site declares, whatever its records are.
        groups_left_out: How many subgroups' tables would have been too large.
        noise_std: The standard deviation of the noise on each sum.
        privacy: What the run has cost so far, where the sums left with noise.
    """

    release: Literal["public", "noised"]
    groups: Annotated[tuple[Group, ...], Field(max_length=MAX_GROUPS)] = ()
    groups_left_out: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    noise_std: Annotated[float, Field(gt=0)] | None = None
    privacy: PrivacyStatement | None = None

    def _check_keys(self) -> None:
        if (self.release == "noised") != (self.noise_std is not None and self.privacy is not None):
            raise ValueError("noise_std and privacy must be given exactly when release is 'noised'")
        if len(set(self.groups)) < len(self.groups):
            raise ValueError("groups names a subgroup twice")
