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

    `samples`: of each site, as many as the rule needs; they may lie on disk. `weights`: site -> w_k
    >= 0; rules renormalise them over the sites that sent samples. `sites`: number of training sites
    K that the prior was shared between. `starts`: parameters from which the chains of each number
    started. `student`: for rules that need inputs.
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
    """A global posterior; a rule that gives a point returns one sample, at temperature 0.

    `warnings`: of assumptions that do not hold, each once, in the order of the sites' names.
    `facts`: for the record.
    """

    samples: AnySamples
    warnings: tuple[RunWarning, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def combine_sites(rule: Rule, released: Released) -> Aggregate:
    """Combine the sites' samples, one site in memory at a time where the rule allows it.

    Raises ValueError if the rule cannot use the samples.
    """
    return implementation("fl_dpbayes.posterior.rules", rule.code, rule.implemented_by).combine(
        rule, released
    )


def posterior_aggregate(
    draws: npt.NDArray[np.float64],
    shapes: Mapping[str, tuple[int, ...]],
    warnings: Iterable[RunWarning],
    temperature: float = 1.0,
) -> Aggregate:
    """Wrap draws (M, d) as equally weighted samples at a temperature, 0 of points that claim no posterior width.

    Raises ValueError if a draw leaves the range of float32.
    """
    if not (np.abs(draws) <= np.finfo(np.float32).max).all():
        raise ValueError(
            "the combined parameters leave float32's range: a site's samples are out of "
            "all proportion"
        )
    count = len(draws)
    samples = PosteriorSamples(
        unflatten(draws, shapes), np.ones(count), np.full(count, temperature)
    )
    return Aggregate(samples, tuple(dict.fromkeys(warnings)))
