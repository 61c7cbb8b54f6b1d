"""Strategy: independent chains whose combined predictions at the server's own inputs one network learns to imitate."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.distillation import Distillation, PredBayes, SyntheticInputs
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import logits_at
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.posterior.rules.aggregate import Aggregate
from fl_dpbayes.posterior.rules.distillation import distil
from fl_dpbayes.posterior.rules.predbayes import best_between, between, product_and_mixture, temperature_warnings
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.server_inputs import server_inputs
from fl_dpbayes.posterior.site_samples import SiteSamples
from fl_dpbayes.protocol.arrays import without_prefix
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.independent_chains import IndependentChainsStrategy

# By Pinsker's inequality the mean total variation between student and teacher is then below 0.1.
LARGE_DIVERGENCE = 0.02


class DistillingStrategy(IndependentChainsStrategy):
    """Each site samples its own posterior with the whole prior; the server's network imitates their predictions.

    The network starts from the weights that all first chains started from, not from an average of the sites' weights:
    the result then depends on the sites' predictions alone, whatever the order of their hidden units. `last` is the
    mixture of last states, as for every rule on independent chains.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        scenario, task = federation.scenario, federation.roster.task
        assert isinstance(scenario.aggregation, Distillation | PredBayes)
        self._rule = scenario.aggregation
        fitted = isinstance(self._rule, PredBayes) and self._rule.beta == "fitted"
        # Before any site spends budget, since a file that does not fit ends the run.
        self._inputs = server_inputs(self._rule.public, task, scenario.model, labelled=fitted)
        self._module = build_model(scenario.model, task, scenario.seed)
        self._done: dict[tuple[tuple[str, int, float], ...], Aggregate] = {}
        record.aggregation_inputs = dict(self._inputs.description)

    def _combined(self, sites: list[str]) -> Aggregate:
        # The posterior is asked for more than once, and a fit takes time.
        key = tuple((site, len(self.bank.sample_chains(site)), self.site_weights[site]) for site in sites)
        if key not in self._done:
            self._done = {key: self._distilled(SiteSamples(sites, self.bank.samples))}
        return self._done[key]

    def _distilled(self, site_samples: Mapping[str, PosteriorSamples]) -> Aggregate:
        rule, warnings, said = self._rule, list[RunWarning](), dict(self._inputs.description)
        if isinstance(rule, Distillation):
            teacher = self._mixture(site_samples)
        else:
            ends = product_and_mixture(self._predictions(site_samples[site]) for site in site_samples)
            labels = self._inputs.labels
            beta = best_between(ends, labels) if labels is not None else float(rule.beta)
            teacher, said["beta"] = between(ends, beta), beta
            if self.federation.scenario.sampler.has_temperature:
                warnings += temperature_warnings(site_samples)
        start = without_prefix("parameters", self.initial_state(0))
        student = logits_at(self._module, self._inputs.features)
        found = distil(student, start, teacher, max_iterations=rule.iterations)
        said["divergence"] = found.divergence
        self.record.aggregation_inputs = said
        if found.divergence > LARGE_DIVERGENCE and not found.converged:
            stopped = warning("distillation-stopped", iterations=rule.iterations, divergence=found.divergence)
            warnings.append(stopped)
        elif found.divergence > LARGE_DIVERGENCE:
            warnings.append(warning("distillation-differs", divergence=found.divergence))
        if isinstance(rule.public, SyntheticInputs):
            warnings.append(warning("distillation-synthetic"))
        return Aggregate(found.aggregate.samples, (*warnings, *found.aggregate.warnings))

    def _mixture(self, site_samples: Mapping[str, PosteriorSamples]) -> npt.NDArray[np.float64]:
        total = sum(self.site_weights[site] for site in site_samples)
        parts = (self.site_weights[site] / total * self._predictions(site_samples[site]) for site in site_samples)
        return sum(parts, start=np.zeros(()))

    def _predictions(self, samples: PosteriorSamples) -> npt.NDArray[np.float64]:
        return predictive_probabilities(self._module, samples.arrays, samples.weights, self._inputs.features)
