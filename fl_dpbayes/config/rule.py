"""What every aggregation rule says of itself, and the server's own inputs that some rules need."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fl_dpbayes.config.names import counted
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.registry import RULE_GROUP, Choice, Registry
from fl_dpbayes.config.sampler import Sampler
from fl_dpbayes.files import Config

SiteWeights = Literal["units", "uniform"]
LargestShare = Annotated[float, Field(gt=0, le=1)] | None
# By size alone no site of three or more weighs more than all others together.
MOST_BY_SIZE = 0.5
InputCount = Annotated[int, Field(ge=1, le=100_000)]


class SyntheticInputs(Config):
    """Made-up inputs of the server: no record enters, so they need no governance.

    `strokes`: random pen strokes, for square grey pictures of handwriting and the like. `noise`:
    smooth random patterns in [0, 1] for images, standard normal values for tables (which fit
    features that are centred and scaled).
    """

    kind: Literal["synthetic"] = "synthetic"
    pattern: Literal["noise", "strokes"] = "noise"
    count: InputCount = 2000
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PublicFile(Config):
    """Public records that the server holds: a .npz archive or a folder of images.

    An archive has `features`, on request `labels`. The records need a governance of their own: in
    `statement` the user declares that they are public and why, which the report shows. At most the
    first `count` records are used.
    """

    kind: Literal["file"]
    path: Path
    statement: str = Field(
        min_length=10,
        max_length=500,
        pattern=r"^[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*$",
        description="a sentence of 10 to 500 characters that declares these records public "
        "and says why",
    )
    count: InputCount = 20_000


PublicInputs = Annotated[SyntheticInputs | PublicFile, Field(discriminator="kind")]


class Rule(Choice):
    """A section `[aggregation]`: fields are what a scenario may set.

    A rule overrides attributes and properties that are not as here. A rule on independent chains
    has `combine(rule, released)` in the module `code` of `fl_dpbayes.posterior.rules`.

    Attributes:
        whole_prior: Sites target p(w) p(D_k|w) each (convention B), not p(w)^(1/K) p(D_k|w), of
            which precisions add (convention A).
        makes_point: One point of whatever it is given, and no posterior.
        own_rounds: Every round starts from the server's state, by a strategy of the rule's own.
        averages_weights: Hidden units must mean the same at every site and in every chain.
        joins_temperatures: Samples keep the temperatures of their sites.
        shows_mixing: The mixing of the sites' chains, or of the averaged one, bears on the result.
        needs_temperature: It uses the spread of samples, which must have a temperature.
        share_times: How many equal shares a site may weigh by its size, where the scenario names no
            `largest_share`.
        implemented_by: The module with `combine`, in a package that registers the rule.
        rule: The name that a scenario chooses it by.
    """

    whole_prior: ClassVar[bool] = False
    makes_point: ClassVar[bool] = False
    own_rounds: ClassVar[bool] = False
    averages_weights: ClassVar[bool] = True
    joins_temperatures: ClassVar[bool] = False
    shows_mixing: ClassVar[bool] = True
    needs_temperature: ClassVar[bool] = False
    share_times: ClassVar[float] = 1.2

    rule: str

    @property
    def code(self) -> str:
        """The rule's name without its form, `consensus` of `consensus-full`."""
        return self.rule

    @property
    def point_name(self) -> str:
        """The rule's name if it makes one point, else an empty text."""
        return self.rule if self.makes_point else ""

    @property
    def weighing(self) -> SiteWeights:
        """How sites are weighed.

        Rules that weigh by precision count all alike in what they average plainly.
        """
        return "uniform"

    @property
    def cap(self) -> float | None:
        """The greatest weight that a site may have, None where the scenario names none."""
        return None

    @property
    def power(self) -> float:
        """The power of its size that a site weighs as, where sites weigh by size."""
        return 1.0

    @property
    def inputs(self) -> PublicInputs | None:
        """The inputs that the server needs, None for most rules."""
        return None

    @property
    def needs_labels(self) -> bool:
        """Whether the server's inputs must have labels."""
        return False

    def share_bound(self, sites: int) -> float:
        """Return the greatest weight that a training site may have by its size.

        Without `largest_share` it is the rule's `share_times` equal shares, at most a half, and 1
        for two sites or one, of which nobody can say who is right.

        Args:
            sites: The number of training sites, K >= 1.
        """
        if self.cap is not None:
            return self.cap
        return min(MOST_BY_SIZE, self.share_times / sites) if sites >= 3 else 1.0

    def prior_share(self, sites: int) -> float:
        """Return the share s of the prior that each training site must target, 1 or 1/K.

        Args:
            sites: The number of training sites, K >= 1.
        """
        return 1.0 if self.whole_prior else 1.0 / sites

    def least_samples(self, parameters: int) -> int:
        """Return how many samples of a site the rule needs to use it.

        Args:
            parameters: The number of the model's parameters.
        """
        return 1

    def site_plan(self, plan: TrainingPlan) -> TrainingPlan:
        """Make of the scenario's plan the one that sites get.

        Args:
            plan: The scenario's plan.

        Raises:
            ValueError: If something does not fit the rule; the text names it.
        """
        return plan

    def check(self, sampler: Sampler, training_sites: int) -> None:
        """Check that the rule fits the chains.

        Args:
            sampler: The chains' sampler.
            training_sites: The number of training sites.

        Raises:
            ValueError: If it does not; the text names what does not fit, and the remedy.
        """
        if self.needs_temperature and not sampler.has_temperature:
            raise ValueError(
                f"aggregation.rule {self.rule!r} needs samples at a known temperature, which "
                f"sampler.kind {sampler.kind!r} does not have: choose rule 'mixture', 'fedavg' or "
                "'fedbe'"
            )
        if self.cap is not None and cannot_be_kept(self.cap, training_sites):
            least = math.ceil(1e6 / training_sites) / 1e6
            raise ValueError(
                f"aggregation.largest_share is {self.cap:g}, but "
                f"{counted(training_sites, 'training site')} share 1: raise it to {least:g} or "
                "more, or leave it out and set site_weights = 'uniform'"
            )

    def with_public_path(self, change: Callable[[Path], Path]) -> "Rule":
        """Return the rule with its public file, if it has one, elsewhere.

        Args:
            change: Maps the file's path to another.
        """
        if not isinstance(self.inputs, PublicFile):
            return self
        public = self.inputs.model_copy(update={"path": change(self.inputs.path)})
        return self.model_copy(update={"public": public})


RULES = Registry(Rule, RULE_GROUP, switch="rule")
register_rule = RULES.register
Aggregation = Annotated[Rule, RULES]


class WeighedRule(Rule):
    """A rule that weighs sites as the scenario says, by their size or all alike.

    Attributes:
        site_weights: By the declared units, or uniform.
        largest_share: The greatest weight that a site may have, see `share_bound`.
    """

    site_weights: SiteWeights = "units"
    largest_share: LargestShare = None

    @property
    def weighing(self) -> SiteWeights:
        """How sites are weighed."""
        return self.site_weights

    @property
    def cap(self) -> float | None:
        """The greatest weight that a site may have, None where the scenario names none."""
        return self.largest_share


def cannot_be_kept(share: float, sites: int) -> bool:
    """Say whether some weights, which sum to 1, must be above a largest share.

    Args:
        share: The largest share.
        sites: The number of weights.
    """
    return share * sites < 1 - 1e-12
