"""The posterior of a finished run: its samples, and its chains as ArviZ takes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl_dpbayes.config import Rule, counted, import_apps
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import DAMAGED
from fl_dpbayes.posterior import PosteriorBank, PosteriorSamples, StoredPosterior


@dataclass(frozen=True, repr=False)
class RunPosterior:
    """The posterior of a run: `stored` with its model, and the `rule` that made it of the sites' samples."""

    stored: StoredPosterior
    folder: Path
    rule: Rule
    sites: tuple[str, ...]

    @property
    def samples(self) -> PosteriorSamples:
        """Parameter name -> samples (`.arrays`), their `.weights` and `.temperatures`."""
        return self.stored.samples

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        count = sum(int(np.prod(array.shape[1:])) for array in self.samples.arrays.values())
        return (
            f"{counted(len(self), 'posterior sample')} of {count} parameters by rule "
            f"{self.rule.rule!r}"
        )

    def to_arviz(self) -> Any:
        """Return the chains as `arviz.InferenceData`: variables (chain, draw, *shape), weights and temperatures.

        Chains are the sites', by name (`north`, or `north 1`, `north 2` where each ran several),
        where the rule keeps them; of a rule that averages the sites in every round they are the
        averaged ones. Chains of unequal length lose their first draws. ArviZ counts draws alike:
        `sample_stats.weights` says where the run does not. Raises UserError if ArviZ is not
        installed, or a file of a chain is damaged.
        """
        try:
            import arviz
        except ImportError:
            raise UserError("to_arviz needs ArviZ: pip install 'fl-dpbayes[arviz]'") from None
        try:
            chains, names = self._chains() or {"posterior": self.samples}, self.samples.arrays
            least = min(map(len, chains.values()))
            posterior = {
                name: np.stack([chain.arrays[name][-least:] for chain in chains.values()])
                for name in names
            }
        except (*DAMAGED, KeyError) as error:
            raise UserError(
                f"the chains in {self.folder} are damaged ({error}): put back a copy of them"
            ) from None
        weights = np.stack([chain.weights[-least:] for chain in chains.values()])
        stats = {
            "weights": weights,
            "temperatures": np.stack([one.temperatures[-least:] for one in chains.values()]),
        }
        return arviz.from_dict(
            posterior=posterior, sample_stats=stats, coords={"chain": list(chains)}
        )

    def _chains(self) -> dict[str, PosteriorSamples]:
        import_apps()
        from server.checkpoint import BANK_FOLDER
        from server.strategies.fald import AVERAGED

        bank, found = PosteriorBank(self.folder / BANK_FOLDER), {}
        for name in (AVERAGED,) if self.rule.own_rounds else self.sites:
            if (stored := bank.stored(name)) is not None:
                samples, numbers = stored.in_memory().pieces[0], bank.sample_chains(name)
                several = len(np.unique(numbers)) > 1
                for number in np.unique(numbers):
                    rows = np.flatnonzero(numbers == number)
                    chain = PosteriorSamples(
                        samples.rows(rows), samples.weights[rows], samples.temperatures[rows]
                    )
                    found[f"{name} {number + 1}" if several else name] = chain
        return found
