"""The methods of `aggregation` that need more than the shared chains: rounds with a cavity, or inputs of the server."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fl_dpbayes.posterior.rules import mixture
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.site_weights import unit_weights
from fl_dpbayes.run.reproduce.aggregation_chains import Budget, ChainSettings, independent_chains
from fl_dpbayes.run.reproduce.aggregation_distillation import DistillationSettings, distilled_mixture
from fl_dpbayes.run.reproduce.aggregation_predictors import (
    DISTILLED_NOISE,
    DISTILLED_STROKES,
    DRAWS,
    PVI,
    Predictor,
    predicted,
)
from fl_dpbayes.run.reproduce.aggregation_pvi import PVISettings, refined_posterior
from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals

PATTERNS: Mapping[str, Literal["noise", "strokes"]] = {DISTILLED_STROKES: "strokes", DISTILLED_NOISE: "noise"}


@dataclass(frozen=True)
class FurtherSettings:
    """What such a cell depends on.

    Attributes:
        methods: which are measured.
        pvi: chains and damping of partitioned variational inference.
        teacher: the chains of the mixture, those of its own row.
        distillation: of inputs and fit.
    """

    methods: tuple[str, ...]
    pvi: PVISettings
    teacher: ChainSettings
    distillation: DistillationSettings

    def as_json(self) -> dict[str, Any]:
        """Return JSON values from which `from_json` makes the same."""
        return {**asdict(self), "methods": list(self.methods)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "FurtherSettings":
        """Read what `as_json` gave."""
        return cls(
            tuple(values["methods"]),
            PVISettings(**values["pvi"]),
            ChainSettings(**values["teacher"]),
            DistillationSettings(**values["distillation"]),
        )


def further_predictors(
    hospitals: Hospitals, settings: FurtherSettings, budget: Budget, seed: int
) -> Iterator[Predictor]:
    """Measure partitioned variational inference and the distilled mixture.

    Args:
        hospitals: the sites.
        settings: of the methods.
        budget: of each site.
        seed: of noise, draws and made-up inputs.

    Yields:
        Predictors, those that are among `settings.methods`.
    """
    if PVI in settings.methods:
        refined = refined_posterior(hospitals, settings.pvi, budget, DRAWS, seed)
        yield Predictor(PVI, predicted(hospitals, refined.samples)[None], refined.history, refined.warnings)
    patterns = {method: pattern for method, pattern in PATTERNS.items() if method in settings.methods}
    if not patterns:
        return
    chains = independent_chains(hospitals, settings.teacher, budget, 1.0, seed)
    units = {name: len(records.labels) for name, records in hospitals.training.items()}
    teacher = mixture.joined(chains.samples, unit_weights(units)).in_memory()
    for method, pattern in patterns.items():
        found = distilled_mixture(hospitals, teacher, pattern, settings.distillation, seed)
        said = [f"the network differs from its teacher by {found.divergence:.3g} nats at the average input"]
        if not found.converged:
            said.append(f"its fit stopped at {settings.distillation.iterations} iterations before it converged")
        point = {name: array[None] for name, array in found.parameters.items()}
        probabilities = predicted(hospitals, PosteriorSamples(point, np.ones(1), np.zeros(1)))[None]
        yield Predictor(method, probabilities, chains.history, tuple(said))
