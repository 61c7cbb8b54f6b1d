"""The scenario's section `[hierarchical]`: a posterior over hospitals beside the federation's one model."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.names import GroupText
from fl_dpbayes.config.rule import PublicInputs, SyntheticInputs

if TYPE_CHECKING:
    from fl_dpbayes.config.scenario import Scenario


class Hierarchical(Config):
    """Hospitals differ in the level of the outcome: each has an intercept of its own, drawn from a population.

    `group`: what the sites' `group` names, for example "country"; it makes a level above the hospitals, and every site
    needs one. Without it there is one level. `public`: covariates that the clipping of scores is averaged over;
    synthetic ones are standard normal numbers, for features that are centred and scaled. `largest_sd`: the prior of
    both standard deviations, in log odds, is uniform from 0 to it.
    """

    group: GroupText | None = None
    public: PublicInputs = SyntheticInputs()
    largest_sd: Annotated[float, Field(gt=0, le=10)] = 3.0


def check_hierarchical(scenario: "Scenario") -> None:
    """Check that a run with `[hierarchical]` releases what its estimator reads, or raise ValueError.

    A state of one plain step at q = 1 from the broadcast one gives the noisy sum of clipped gradients exactly; no other
    rule, sampler or number of steps does.
    """
    section = scenario.hierarchical
    without = [name for name, site in scenario.sites.items() if site.group is None]
    if section is None:
        if len(without) < len(scenario.sites):
            named = next(name for name, site in scenario.sites.items() if site.group is not None)
            raise ValueError(f"sites.{named}.group is for [hierarchical]: add group there, or remove it here")
        return
    if section.group is not None and without:
        raise ValueError(f"hierarchical.group is {section.group!r}, sites.{without[0]} has no group: give each one")
    if section.group is None and len(without) < len(scenario.sites):
        raise ValueError("sites have a group and hierarchical.group has no name for it: set it, as group = 'country'")
    rule, sampler, privacy = scenario.aggregation, scenario.sampler, scenario.privacy
    for key, found, allowed in (
        ("model.kind", scenario.model.kind, "logistic"),
        ("aggregation.rule", rule.rule, "fald"),
        ("aggregation.robust", getattr(rule, "robust", "none"), "none"),
        ("sampler.kind", sampler.algorithm, "sgld"),
        ("training.steps_per_round", scenario.training.steps_per_round, 1),
        ("privacy.sampling_rate", privacy.sampling_rate, 1.0),
        ("privacy.clipping.kind", privacy.clipping.kind, "flat"),
        ("privacy.pre_noise", privacy.pre_noise, 0.0),
    ):
        if found != allowed:
            raise ValueError(
                f"{key} is {found!r}, and [hierarchical] reads the sites' clipped sums from their states, which needs "
                f"{allowed!r}: set it, or remove [hierarchical]"
            )
