"""The scenario's section `[hierarchical]`: a posterior over hospitals beside the federation's one model."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.names import GroupText

if TYPE_CHECKING:
    from fl_dpbayes.config.scenario import Scenario


class Hierarchical(Config):
    """Hospitals differ in the level of the outcome: each has an intercept of its own, drawn from a population.

    `group`: what the sites' `group` names, for example "country"; it makes a level above the hospitals, and every site
    needs one. Without it there is one level. `largest_sd`: the prior of both standard deviations, in log odds, is
    uniform from 0 to it. Features should be centred and of one scale: that is how the clipping of scores sees them.
    """

    group: GroupText | None = None
    largest_sd: Annotated[float, Field(gt=0, le=10)] = 3.0


def check_hierarchical(scenario: "Scenario") -> None:
    """Raise ValueError unless a run with `[hierarchical]` releases what its estimator reads.

    A state of one plain step at q = 1 from the broadcast one gives the noisy sum of clipped gradients exactly; no other
    rule, sampler or number of steps does.
    """
    section, rule, privacy = scenario.hierarchical, scenario.aggregation, scenario.privacy
    level = section.group if section else None
    for name, site in scenario.sites.items():
        if (site.group is None) != (level is None):
            said = f"hierarchical.group is {level!r} and sites.{name}.group {site.group!r}"
            raise ValueError(f"{said}: set both, as group = 'country' and group = 'uk', or neither")
    for key, found, needed in () if section is None else (
        ("model.kind", scenario.model.kind, "logistic"), ("aggregation.rule", rule.rule, "fald"),
        ("model.features.kind", getattr(scenario.model.features, "kind", "standard"), "standard"),
        ("aggregation.robust", getattr(rule, "robust", "none"), "none"),
        ("sampler.kind", scenario.sampler.algorithm, "sgld"),
        ("training.steps_per_round", scenario.training.steps_per_round, 1),
        ("privacy.sampling_rate", privacy.sampling_rate, 1.0), ("privacy.clipping.kind", privacy.clipping.kind, "flat"),
        ("privacy.pre_noise", privacy.pre_noise, 0.0),
    ):  # fmt: skip
        if found != needed:
            reads = "[hierarchical] reads the sites' clipped sums from their states, which needs"
            raise ValueError(f"{key} is {found!r}, and {reads} {needed!r}: set it, or remove [hierarchical]")
