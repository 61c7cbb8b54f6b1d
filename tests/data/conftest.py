from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.config.data import DataSpec, DirichletPartition
from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.config.site_file import SiteFile, read_site_file
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.simulation import plan_sites, prepare_simulation
from fl_dpbayes.data.site import Site, load_site
from fl_dpbayes.data.virtual_sites import SitePlan


@dataclass(frozen=True)
class Dealt:
    """A scenario and the plan of its sites."""

    scenario: Scenario
    plan: SitePlan

    def files(self, folder: Path, cache_folder: Path | None = None) -> list[SiteFile]:
        paths = prepare_simulation(self.scenario, self.plan, folder, cache_folder=cache_folder)
        return [read_site_file(path) for path in paths]

    def load(self, folder: Path) -> list[Site]:
        return [load_site(file) for file in self.files(folder)]


DIRICHLET = DirichletPartition(alpha=1.0)


@pytest.fixture(scope="session")
def deal() -> Callable[..., Dealt]:
    """Deal records to the sites of a scenario that is `digits` but for them."""
    base = load_scenario("digits", ["privacy.delta=1e-6"])

    digits = DataSpec(source="digits")

    def dealt(sites, partition=DIRICHLET, data=digits, data_dir=None, **changes):
        scenario = base.model_copy(
            update={"sites": sites, "partition": partition, "data": data, **changes}
        )
        return Dealt(scenario, plan_sites(scenario, data_dir))

    return dealt


@pytest.fixture(scope="session")
def check_truth() -> Callable[[Records], None]:
    """In each bin of the truth and as a whole, labels agree with it within 4 standard errors, for every class."""

    def check(records: Records, bins: int = 10) -> None:
        truth = records.truth
        assert (truth.shape, truth.dtype) == (
            (len(records), records.task.outcome.classes),
            np.float64,
        )
        assert (truth >= 0).all()
        np.testing.assert_allclose(truth.sum(axis=1), 1, rtol=0, atol=1e-12)
        for label in range(records.task.outcome.classes):
            stated, drawn = truth[:, label], records.labels == label
            of_bin = np.minimum((stated * bins).astype(int), bins - 1)
            for chosen in [
                np.ones(len(records), bool),
                *(of_bin == number for number in range(bins)),
            ]:
                variance = (stated * (1 - stated))[chosen].sum()
                assert abs((drawn - stated)[chosen].sum()) <= 4 * np.sqrt(variance) + 1e-9

    return check
