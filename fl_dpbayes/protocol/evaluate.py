"""The evaluation request and its reply."""

from typing import Annotated, Literal

from pydantic import Field

from fl_dpbayes.config import GroupText, RecalibrationMap, TrainedPrevalence, parameter_count
from fl_dpbayes.protocol.train import Digest, PrivacyStatement, StageReply, StageRequest

PredictorName = Literal["last", "posterior", "hierarchical"]
RECALIBRATED = "recalibrated"
PRIOR_CORRECTED = "prior_corrected"
MAPPED = (RECALIBRATED, PRIOR_CORRECTED)  # each is the posterior's predictions, mapped
MAX_GROUPS = 20
# Of one reply; the server keeps those of every site. Without it 20 subgroups of 100 classes would
# take 230 MiB.
MAX_SUBGROUP_BYTES = 32 * 2**20
Weights = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1, max_length=10_000)
]
Group = tuple[GroupText, GroupText]  # an attribute and its value


def most_groups(group_bytes: int) -> int:
    """Return how many subgroups a reply may hold, if the tables of one take so many bytes."""
    return min(MAX_GROUPS, MAX_SUBGROUP_BYTES // group_bytes)


def subgroup_prefix(number: int) -> str:
    """Return what stands before the names of a subgroup's arrays.

    `number` is its place in the reply's `groups`.
    """
    return f"group-{number}"


class EvaluateRequest(StageRequest):
    """Predictors to be measured at a site: `<predictor>/<name>` arrays of shape (M, ...), one weight per sample.

    With `recalibration` the site also measures `recalibrated`: the map applied to the predictions
    of `posterior`. With `trained_prevalence`, the declared shares of the classes at training, it
    also measures `prior_corrected`: the predictions of `posterior` (not recalibrated) moved from
    there to the prevalence that the site declares or estimates.
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
        further = {RECALIBRATED: self.recalibration, PRIOR_CORRECTED: self.trained_prevalence}
        return (*self.predictors, *(name for name, given in further.items() if given is not None))

    def _check_keys(self) -> None:
        shares, mapping = self.trained_prevalence, self.recalibration
        if not all(map(any, self.predictors.values())):
            raise ValueError("predictors needs a weight above 0 for each")
        if shares is not None and (
            "posterior" not in self.predictors or len(shares) != self.task.classes
        ):
            raise ValueError(
                "trained_prevalence needs the predictor 'posterior' and one share for each class"
            )
        if mapping is None:
            return
        if "posterior" not in self.predictors:
            raise ValueError("recalibration needs the predictor 'posterior', which it maps")
        expected = parameter_count(mapping.method, self.task.classes)
        if len(mapping.parameters) != expected:
            raise ValueError(
                f"recalibration has {len(mapping.parameters)} parameters, the method "
                f"takes {expected}"
            )


class EvaluateReply(StageReply):
    """Additive calibration statistics `<predictor>/<table>`, and `group-<i>/<predictor>/<table>` of subgroup i.

    `groups` are subgroups of the test records, attribute and value; sums over them leave only with
    public test data. `groups_left_out` counts those whose tables would have been too large.
    `release` says how the sums left: exactly (public test data) or with Gaussian noise that the
    ledger paid for, of standard deviation `noise_std` on each sum.
    """

    release: Literal["public", "noised"]
    groups: Annotated[tuple[Group, ...], Field(max_length=MAX_GROUPS)] = ()
    groups_left_out: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    noise_std: Annotated[float, Field(gt=0)] | None = None
    privacy: PrivacyStatement | None = None

    def _check_keys(self) -> None:
        if (self.release == "noised") != (self.noise_std is not None and self.privacy is not None):
            raise ValueError("noise_std and privacy must be given exactly when release is 'noised'")
        if self.release != "public" and (self.groups or self.groups_left_out):
            raise ValueError("groups may be measured only where release is 'public'")
        if len(set(self.groups)) < len(self.groups):
            raise ValueError("groups names a subgroup twice")
