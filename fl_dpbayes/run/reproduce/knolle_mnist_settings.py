"""The chains of the MNIST table: all constants that were chosen."""

from typing import Any

from fl_dpbayes.run.reproduce.knolle_rows import DP_SGD, DP_SGLD, SGD

Values = dict[str, Any]

EPSILON, DELTA = 0.5, 1e-5
# A twelfth is kept from training, some 5,000 of 60,000 records.
TRAINED, HELD_BACK = 55_000, 1 / 12
MODEL = {"kind": "cnn", "channels": [8, 16, 32], "hidden": 64}
CONFIGURATIONS_TRIED = 14
_COMMON = {"rounds": 1, "chain_start": "broadcast"}
_PRIOR = {"kind": "gaussian", "scale": 1.0}


def _private(sampler: Values, coupling: str) -> Values:
    return {
        "steps_per_round": 300, "burn_in": 150, "thinning": 10,
        "sampler": {**sampler, "prior": _PRIOR},
        "privacy": {"epsilon": EPSILON, "delta": DELTA, "sampling_rate": 600 / TRAINED, "clip_norm": 1.0,
                    "coupling": coupling},
        **_COMMON,
    }  # fmt: skip


# Chosen for the federation of `federated-mnist`, on splits of the training records.
ON_FEATURES = "DP-SGLD, linear head on public features"
FEATURE_MODEL = {
    "kind": "logistic",
    "features": {"kind": "scattering", "projection": {"kind": "strokes", "dimensions": 300}},
}
FEATURE_PLAN: Values = {
    "steps_per_round": 60, "burn_in": 30, "thinning": 3,
    "sampler": {"kind": "dp-sgld", "step_size": {"kind": "constant", "initial": 10.0}, "prior": {"kind": "flat"}},
    "privacy": {"epsilon": EPSILON, "delta": DELTA, "sampling_rate": 1.0, "clip_norm": 0.5},
    **_COMMON,
}  # fmt: skip

PLANS: dict[str, Values] = {
    SGD: {
        "steps_per_round": 1500, "burn_in": 1000, "thinning": 50,
        "sampler": {"kind": "sgd", "momentum": 0.9, "step_size": {"kind": "constant", "initial": 0.05},
                    "prior": _PRIOR},
        "privacy": {"kind": "none", "sampling_rate": 200 / TRAINED},
        **_COMMON,
    },
    # Of the step sizes tried, 4 gave the last iterate the least loss and 8 the chain's average.
    DP_SGD: _private({"kind": "dp-sgd", "step_size": {"kind": "constant", "initial": 4.0}}, "constant"),
    f"{DP_SGD}, step size 8": _private(
        {"kind": "dp-sgd", "step_size": {"kind": "constant", "initial": 8.0}}, "constant"
    ),
    DP_SGLD: _private(
        {"kind": "dp-sgld", "step_size": {"kind": "exponential", "initial": 6.0, "decay": 0.997}}, "temperature"
    ),
}  # fmt: skip
