"""From what independent chains released to one posterior, by the rule that a scenario names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Rule, RunWarning, Sampler, implementation
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.samples import AnySamples, PosteriorSamples
from fl_dpbayes.posterior.student import Student
from fl_dpbayes.protocol import Arrays


@dataclass(frozen=True)
class Released:
    """What a rule consumes: released samples, and public constants of the run.

    Attributes:
        samples: Site -> its samples, as many as the rule needs; they may lie on disk.
        weights: Site -> w_k >= 0; rules renormalise them over the sites that sent samples.
        sampler: The sampler that drew them.
        sites: Number of training sites K between which the prior was shared.
        generator: Source of the rule's own draws.
        starts: Parameters from which the chains of each number started.
        student: The server's network and inputs, for rules that distil; else None.
    """

    samples: Mapping[str, AnySamples]
    weights: Mapping[str, float]
    sampler: Sampler
    sites: int
    generator: np.random.Generator
    starts: tuple[Arrays, ...] = ()
    student: Student | None = None


@dataclass(frozen=True)
class Aggregate:
    """A global posterior, and what is to be said of it.

    Attributes:
        samples: Weighted samples; a rule that gives a point has one, at temperature 0.
        warnings: Assumptions that do not hold, each once, in the order of the sites' names.
        facts: Name -> value, for the record of the run.
    """

    samples: AnySamples
    warnings: tuple[RunWarning, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def combine_sites(rule: Rule, released: Released) -> Aggregate:
    """Combine the sites' samples, one site in memory at a time where the rule allows it.

    Args:
        rule: The scenario's section; it names the module whose `combine` is called.
        released: What the sites released.

    Returns:
        The global posterior.

    Raises:
        ValueError: If the rule cannot use the samples.
    """
    module = implementation("fl_dpbayes.posterior.rules", rule.code, rule.implemented_by)
    return module.combine(rule, released)


def posterior_aggregate(
    draws: npt.NDArray[np.float64],
    shapes: Mapping[str, tuple[int, ...]],
    warnings: Iterable[RunWarning],
    temperature: float = 1.0,
) -> Aggregate:
    """Wrap draws as equally weighted samples at one temperature.

    Args:
        draws: Parameter vectors, shape (M, d).
        shapes: Parameter name -> shape, in the order of the columns.
        warnings: What is to be said; of equal ones the first stays.
        temperature: T >= 0; 0 for points that claim no posterior width.

    Returns:
        The global posterior.

    Raises:
        ValueError: If a draw leaves the range of float32.
    """
    if not (np.abs(draws) <= np.finfo(np.float32).max).all():
        raise ValueError(
            "the combined parameters leave float32's range: a site's samples are out of "
            "all proportion"
        )
    count = len(draws)
    samples = PosteriorSamples(
        arrays=unflatten(draws, shapes),
        weights=np.ones(count),
        temperatures=np.full(count, temperature),
    )
    return Aggregate(samples, tuple(dict.fromkeys(warnings)))
