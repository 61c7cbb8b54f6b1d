"""The settings of `closer-recalibration`, chosen on validation records, and what the paper prints."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fl_dpbayes.config.recalibration import DescentMethod
from fl_dpbayes.run.reproduce.closer_recalibration_sites import MNIST, PNEUMONIA

DP, DP_PART = "DP", "DP on 90 %"
DP_TS, DP_PS, NON_PRIVATE_TS = "DP-TS", "DP-PS", "DP + non-private TS"
KNOLLE, GLOBAL, BY_LIKELIHOOD = "DP-SGLD", "global clipping", "DP chosen by NLL"
LANGEVIN, LANGEVIN_TS = "DP-SGLD average", "DP-SGLD average + DP-TS"
NON_PRIVATE = "non-private"
PRIVATE_MAPS: Mapping[str, DescentMethod] = {DP_TS: "temperature", DP_PS: "vector"}

PROBE, NETWORK = "probe", "MLP"
MODELS: Mapping[str, dict[str, Any]] = {
    PROBE: {"kind": "logistic", "features": {"kind": "scattering", "scales": 3, "angles": 4}},
    NETWORK: {"kind": "mlp", "hidden": [64], "features": {"kind": "scattering", "scales": 3, "angles": 4}},
}
EPSILONS, DELTA = (8.0, 3.0), 1e-5
RECALIBRATION_SHARE = 0.1
# The same for both tasks and both maps. A clip norm of 10 and 100 steps of .1, the paper's, leave half of MNIST's
# temperature unfitted: in log T the gradient of a classifier that is mostly right is small.
RECALIBRATION = {"clip_norm": 5.0, "steps": 40, "step_size": 5.0}
# At most, for one row: step sizes and clip norms of the chain, and settings of the recalibration.
CONFIGURATIONS_TRIED = 24


class _Length(NamedTuple):
    steps: int
    batch: int
    decay: float


class _Chosen(NamedTuple):
    clip_norm: float
    step: float


class _ChosenGlobal(NamedTuple):
    bound: float
    step: float


_LENGTHS = {
    (PROBE, MNIST): _Length(200, 4_000, 0.99),
    (PROBE, PNEUMONIA): _Length(100, 1_000, 0.98),
    (NETWORK, MNIST): _Length(150, 4_000, 0.99),
    (NETWORK, PNEUMONIA): _Length(100, 1_000, 0.98),
}
# Chosen by validation accuracy, as learning rates usually are; at epsilon 8 and 3.
_DP = {
    (PROBE, MNIST): (_Chosen(0.1, 200), _Chosen(0.1, 200)),
    (PROBE, PNEUMONIA): (_Chosen(0.1, 100), _Chosen(0.1, 100)),
    (NETWORK, MNIST): (_Chosen(1, 5), _Chosen(1, 5)),
    (NETWORK, PNEUMONIA): (_Chosen(0.1, 30), _Chosen(0.1, 30)),
}
_GLOBAL = {
    (PROBE, MNIST): (_ChosenGlobal(20, 100), _ChosenGlobal(20, 100)),
    (PROBE, PNEUMONIA): (_ChosenGlobal(20, 60), _ChosenGlobal(20, 20)),
    (NETWORK, MNIST): (_ChosenGlobal(20, 10), _ChosenGlobal(20, 10)),
    (NETWORK, PNEUMONIA): (_ChosenGlobal(20, 5), _ChosenGlobal(20, 5)),
}
# Chosen by validation negative log-likelihood, which favours calibration.
_BY_LIKELIHOOD = {
    (PROBE, MNIST): (_Chosen(1, 10), _Chosen(1, 10)),
    (PROBE, PNEUMONIA): (_Chosen(1, 10), _Chosen(1, 3)),
    (NETWORK, MNIST): (_Chosen(1, 5), _Chosen(1, 5)),
    (NETWORK, PNEUMONIA): (_Chosen(1, 1), _Chosen(1, 1)),
}
_LANGEVIN = {
    (PROBE, MNIST): (_Chosen(1, 10), _Chosen(1, 10)),
    (PROBE, PNEUMONIA): (_Chosen(1, 10), _Chosen(1, 10)),
    (NETWORK, MNIST): (_Chosen(1, 5), _Chosen(1, 5)),
    (NETWORK, PNEUMONIA): (_Chosen(1, 3), _Chosen(1, 3)),
}
# Noise of its own for each record, weight and step is too slow for the network, and makes short chains of the probe.
_KNOLLE_LENGTH = _Length(100, 1_000, 0.98)
_KNOLLE = {PROBE: _Chosen(1, 10)}
# Appendix B.2.
PRE_NOISE = 0.046
_NON_PRIVATE_LENGTH = _Length(400, 1_000, 1.0)
_NON_PRIVATE_STEPS = {PROBE: 0.3, NETWORK: 0.1}


MEAN = "mean of tasks"


def task_setting(name: str, task: str, epsilon: float | None) -> str:
    """Name the setting of a row of one task."""
    return f"{task}, {name}" + ("" if epsilon is None else f", eps {epsilon:g}")


def chains(name: str, epsilon: float | None) -> dict[str, dict[str, dict[str, Any]]]:
    """List the chains of a model at a budget.

    Args:
        name: of the model.
        epsilon: the budget; None: without privacy.

    Returns:
        Task -> method -> settings: `records` is `all`, or `part` without the recalibration part; `averaged` says
        whether the posterior average predicts or the last iterate; `recalibrated` names what is fitted to it.
    """
    return {task: _chains(name, task, epsilon) for task in (MNIST, PNEUMONIA)}


def _chains(name: str, task: str, epsilon: float | None) -> dict[str, dict[str, Any]]:
    if epsilon is None:
        step = _sampler("sgd", _NON_PRIVATE_STEPS[name], momentum=0.9)
        return {NON_PRIVATE: {**_common(_NON_PRIVATE_LENGTH), "sampler": step, "privacy": {"kind": "none"}}}
    key, which = (name, task), EPSILONS.index(epsilon)
    length, budget = _LENGTHS[key], {"epsilon": epsilon, "delta": DELTA}
    found = {DP: _descent(length, _DP[key][which], budget)}
    maps = {kind: kind for kind in (DP_TS, DP_PS, NON_PRIVATE_TS)}
    found[DP_PART] = {**found[DP], "records": "part", "recalibrated": maps}
    found[BY_LIKELIHOOD] = _descent(length, _BY_LIKELIHOOD[key][which], budget)
    bound, step_size = _GLOBAL[key][which]
    clipping = {"kind": "global", "bound": bound}
    found[GLOBAL] = _descent(length, _Chosen(1.0, step_size), {**budget, "clipping": clipping})
    if name in _KNOLLE:
        found[KNOLLE] = _langevin(_KNOLLE_LENGTH, _KNOLLE[name], {**budget, "pre_noise": PRE_NOISE})
    langevin = _langevin(length, _LANGEVIN[key][which], budget)
    found[LANGEVIN] = {**langevin, "records": "part", "recalibrated": {DP_TS: LANGEVIN_TS}}
    return found


def _descent(length: _Length, chosen: _Chosen, budget: dict[str, Any]) -> dict[str, Any]:
    privacy = {**budget, "clip_norm": chosen.clip_norm}
    return {**_common(length), "sampler": _sampler("dp-sgd", chosen.step), "privacy": privacy}


def _langevin(length: _Length, chosen: _Chosen, budget: dict[str, Any]) -> dict[str, Any]:
    privacy = {**budget, "clip_norm": chosen.clip_norm, "coupling": "temperature"}
    sampler = _sampler("dp-sgld", chosen.step, length.decay)
    return {**_common(length), "averaged": True, "sampler": sampler, "privacy": privacy}


def _common(length: _Length) -> dict[str, Any]:
    return {"steps": length.steps, "batch": length.batch, "records": "all", "averaged": False, "recalibrated": {}}


def _sampler(kind: str, step: float, decay: float | None = None, **more: float) -> dict[str, Any]:
    size = {"kind": "constant", "initial": step}
    if decay is not None:
        size = {"kind": "exponential", "initial": step, "decay": decay}
    return {"kind": kind, "step_size": size, "prior": {"kind": "flat"}, **more}
