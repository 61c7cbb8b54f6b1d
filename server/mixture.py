"""Strategy: every site samples its own posterior; the global posterior is the mixture of all sites' samples."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.aggregation.mixture import combine
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.plan import TrainingPlan
from fl_dpbayes.scenario import training_plan
from server.check_reply import CheckedReply
from server.strategy import PosteriorStrategy


class MixtureStrategy(PosteriorStrategy):
    """Each chain continues from its own last state, with the whole prior; the server state never changes."""

    def site_plan(self, sites: int) -> TrainingPlan:
        """Return the scenario's plan with the whole prior at each site."""
        return training_plan(self.federation.scenario, prior_share=1.0, chain_start="own_last")

    def start_arrays(self, site: str, arrays: Arrays) -> Arrays:
        """Return the site's own last released state, or the common start before its first reply."""
        return self.bank.last(site) or arrays

    def next_state(self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]) -> Arrays:
        """Return the common start unchanged."""
        return arrays

    def posterior(self) -> PosteriorSamples | None:
        """Return the mixture of all sites' samples."""
        samples = {site: self.bank.samples(site) for site in self._sites()}
        present = {site: value for site, value in samples.items() if value is not None}
        return combine(present, self.site_weights) if present else None

    def last(self) -> PosteriorSamples | None:
        """Return the mixture of the sites' last states: one point estimate per site."""
        present = {}
        for site in self._sites():
            state = self.bank.last(site)
            if state is not None:
                stacked = {name: array[np.newaxis] for name, array in state.items()}
                present[site] = PosteriorSamples(arrays=stacked, weights=np.ones(1), temperatures=np.zeros(1))
        return combine(present, self.site_weights) if present else None

    def _sites(self) -> list[str]:
        return [member.card.name for member in self.federation.roster.training]
