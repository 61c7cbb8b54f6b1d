"""The posterior of a finished run: its samples, and its chains as ArviZ takes them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_dpbayes.config import Rule, import_apps
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import RunStore, replaced_atomically
from fl_dpbayes.posterior import (
    POSTERIOR_FILE,
    PosteriorBank,
    PosteriorSamples,
    StoredPosterior,
    chains_to_arviz,
)


@dataclass(frozen=True, repr=False)
class RunPosterior:
    """The posterior of a run.

    Attributes:
        stored: The samples with their model.
        folder: The run's folder.
        rule: The aggregation rule that made the posterior of the sites' samples.
        sites: Names of the training sites.
    """

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

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return self.samples[number]

    def __repr__(self) -> str:
        return f"{self.samples!r} by rule {self.rule.rule!r}"

    def save(self, path: Path | str) -> None:
        """Write a copy of the run's posterior file, which holds samples, model and no code.

        Args:
            path: Of the copy, `posterior.safetensors`; one that is there is replaced.

        Raises:
            UserError: If it cannot be written.
        """
        with replaced_atomically(Path(path)) as partial:
            shutil.copyfile(self.folder / POSTERIOR_FILE, partial)

    def to_arviz(self) -> Any:
        """Return the chains as ArviZ takes them.

        Chains are the sites', by name (`north`, or `north 1`, `north 2` where each ran several),
        where the rule keeps them; of a rule that averages the sites in every round they are the
        averaged ones. Chains of unequal length lose their first draws. ArviZ counts draws alike:
        `sample_stats.weights` says where the run does not. With coupling "constant" their spread
        follows the privacy noise and is not the posterior's uncertainty.

        Returns:
            `arviz.InferenceData`: variables (chain, draw, *shape), weights and temperatures; from
            ArviZ 1.0 on an `xarray.DataTree` of the same groups.

        Raises:
            UserError: If ArviZ is not installed, or a file of a chain is damaged.
        """
        try:
            return chains_to_arviz(self._chains() or {"posterior": self.samples})
        except (ValueError, KeyError) as error:
            raise UserError(
                f"the chains in {self.folder} are damaged ({error}): put back a copy of them"
            ) from None

    def _chains(self) -> dict[str, PosteriorSamples]:
        import_apps()
        from server.strategies.fald import AVERAGED

        sources = (AVERAGED,) if self.rule.own_rounds else self.sites
        with RunStore.open(self.folder, to_read=True) as store:
            return _chains_of(PosteriorBank(store), sources)


def _chains_of(bank: PosteriorBank, sources: Sequence[str]) -> dict[str, PosteriorSamples]:
    """Return the chains of sources in a bank, by name."""
    chains = {}
    for source in sources:
        stored = bank.stored(source)
        if stored is None:
            continue
        samples = stored.in_memory().pieces[0]
        chain_of_sample = bank.sample_chains(source)
        numbers = np.unique(chain_of_sample)
        for number in numbers:
            rows = np.flatnonzero(chain_of_sample == number)
            name = f"{source} {number + 1}" if len(numbers) > 1 else source
            chains[name] = PosteriorSamples(
                samples.rows(rows), samples.weights[rows], samples.temperatures[rows]
            )
    return chains
