"""The rules of `[aggregation]` that end in one distilled network, and `[aggregation.public]`, the inputs they need.

Measured on the quickstart (logistic model, four sites, 3 seeds, 250 held-out digits; accuracy, NLL, ECE):

    teacher                     itself            250 public digits   1000 strokes      1000 pictures of noise
    mixture                     .820 .875 .325    .775 .916 .270      .721 .933 .169    .640 1.279 .219
    predbayes, beta .25         .756 .778 .063    .743 .803 .070      .747 .828 .079    .673 1.045 .098
    predbayes, beta fitted      .793 .693 .102    .775 .720 .090      .749 .748 .065    .712  .878 .077

The fitted beta was .11 to .13; a product of predictions (beta = 1) of these hot chains is far too sure (NLL 2.1). With
a hidden layer of 32 at epsilon 20: mixture .897 .680 .332, beta .25 .879 .378 .052, distilled with the public digits
.859 .435 .055. So: public records, labelled ones if there are any; made-up inputs only where there is nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.site_weighing import LargestShare, SiteWeights

RuleT = TypeVar("RuleT", bound=Config)
InputCount = Annotated[int, Field(ge=1, le=100_000)]


class SyntheticInputs(Config):
    """Made-up inputs: no record enters, so they need no governance.

    `strokes`: random pen strokes, for square grey pictures of handwriting and the like. `noise`: smooth random
    patterns in [0, 1] for images, standard normal values for tables (which fit features that are centred and scaled).
    """

    kind: Literal["synthetic"] = "synthetic"
    pattern: Literal["noise", "strokes"] = "noise"
    count: InputCount = 2000
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PublicFile(Config):
    """Public records that the server holds: a .npz archive (`features`, on request `labels`) or a folder of images.

    They need a governance of their own: in `statement` the user declares that they are public and why, which the
    report shows. At most the first `count` records are used.
    """

    kind: Literal["file"]
    path: Path
    statement: Annotated[
        str,
        Field(
            min_length=10,
            max_length=500,
            pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$",
            description="a sentence of 10 to 500 characters that declares these records public and says why",
        ),
    ]
    count: InputCount = 20_000


PublicInputs = Annotated[SyntheticInputs | PublicFile, Field(discriminator="kind")]


def _number_or_fitted(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "fitted" and not (number and 0 <= value <= 1):
        raise ValueError(f"beta is {value!r}: give a number from 0 (mixture) to 1 (product), or 'fitted'")
    return value


class DistillingRule(Config):
    """A rule on the sites' predictions at `public` inputs, which one network then learns to imitate.

    `iterations` bounds the L-BFGS iterations of that fit.
    """

    public: PublicInputs = Field(
        description="for example --set aggregation.public.kind=synthetic --set aggregation.public.pattern=strokes, or "
        "a file of public records (README, Aggregation)"
    )
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 500


class Distillation(DistillingRule):
    """The mixture of the sites' samples, distilled: as cautious as the mixture, with the cost of one network."""

    rule: Literal["distillation"]
    site_weights: SiteWeights = "units"
    largest_share: LargestShare = None


class PredBayes(DistillingRule):
    """beta-PredBayes: between the mixture (beta = 0) and the product (1) of the sites' predictions, distilled.

    `fitted` chooses the beta with the least loss on public records with labels.
    """

    rule: Literal["predbayes"]
    beta: Annotated[float | Literal["fitted"], BeforeValidator(_number_or_fitted)] = 0.25

    @model_validator(mode="after")
    def _labels_to_fit_to(self) -> "PredBayes":
        if self.beta == "fitted" and self.public.kind != "file":
            raise ValueError(
                "beta 'fitted' needs public records with labels: give public = { kind = 'file', ... }, or a number"
            )
        return self


def with_public_path(rule: RuleT, change: Callable[[Path], Path]) -> RuleT:
    """Return a rule whose public file, if it has one, lies elsewhere.

    Args:
        rule: any section `[aggregation]`.
        change: the old path -> the new one.

    Returns:
        The rule, otherwise the same.
    """
    if not isinstance(rule, DistillingRule) or not isinstance(rule.public, PublicFile):
        return rule
    return rule.model_copy(update={"public": rule.public.model_copy(update={"path": change(rule.public.path)})})
