"""The settings of `aggregation`: the cells, and what was chosen for each method on training sites' test records."""

from collections.abc import Mapping
from typing import Any

from fl_dpbayes.run.reproduce.aggregation_chains import ChainSettings
from fl_dpbayes.run.reproduce.aggregation_predictors import METHODS
from fl_dpbayes.scenario import Scenario, load_scenario

MNIST, PNEUMONIA = "MNIST", "PneumoniaMNIST"
IID, DIRICHLET = "IID", "Dirichlet 0.3"
PARTITIONS = (IID, DIRICHLET)
EPSILONS = (0.5, 2.0, 8.0)
SCENARIOS: Mapping[str, str] = {MNIST: "mnist", PNEUMONIA: "pneumonia"}
DELTAS: Mapping[str, float] = {MNIST: 1e-5, PNEUMONIA: 1e-4}
FEATURES: Mapping[str, dict[str, Any]] = {
    MNIST: {"kind": "scattering", "projection": {"kind": "strokes", "dimensions": 300}},
    PNEUMONIA: {"kind": "scattering", "scales": 3, "angles": 4},
}
# Below this many records a site is dealt again; shipped scenarios ask for more, which a Dirichlet of 0.3 rarely gives.
_LEAST = {MNIST: 500, PNEUMONIA: 100}


def scenario_of(dataset: str, partition: str, seed: int) -> Scenario:
    """Name the sites of a setting: those of the shipped scenario, with another partition and a linear head.

    Args:
        dataset: `MNIST` or `PneumoniaMNIST`.
        partition: `IID` or `Dirichlet 0.3`.
        seed: of the deal.

    Returns:
        The scenario.
    """
    dealt = "{kind='iid'}" if partition == IID else f"{{kind='dirichlet', alpha=0.3, min_records={_LEAST[dataset]}}}"
    scenario = load_scenario(SCENARIOS[dataset], [f"seed={seed}", f"partition={dealt}"])
    model = {"kind": "logistic", "features": FEATURES[dataset]}
    return Scenario.model_validate(scenario.model_dump(mode="json") | {"model": model})


# Step size, clip norm, temperature (None: the noise of the budget).
_CANDIDATES: Mapping[str, tuple[ChainSettings, ...]] = {
    MNIST: (ChainSettings(10.0, 0.5), ChainSettings(3.0, 0.5), ChainSettings(10.0, 0.5, 1.0)),
    PNEUMONIA: (ChainSettings(1.0, 1.0),),
}
CONFIGURATIONS_TRIED = 6
# The candidate of each of METHODS, in their order: the least negative log-likelihood, mean of both partitions.
_CHOSEN: Mapping[tuple[str, float], str] = {
    (dataset, epsilon): "0" * len(METHODS) for dataset in SCENARIOS for epsilon in EPSILONS
}
NOTES: tuple[str, ...] = ()


def chosen_settings(dataset: str, epsilon: float) -> dict[str, ChainSettings]:
    """Return what was chosen for each method, the same for both partitions.

    Args:
        dataset: `MNIST` or `PneumoniaMNIST`.
        epsilon: one of `EPSILONS`.

    Returns:
        Method -> settings of its chains.
    """
    numbers = map(int, _CHOSEN[dataset, epsilon])
    return {method: _CANDIDATES[dataset][number] for method, number in zip(METHODS, numbers, strict=True)}
