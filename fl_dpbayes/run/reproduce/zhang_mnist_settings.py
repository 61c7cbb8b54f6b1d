"""The constants of `zhang-mnist`.

"Authors' constants" are those of their public notebooks, in this project's convention

    w <- w - a [(sum of clipped gradients + sigma C noise) / B - grad log p(w) / n].

DP-SGLD has eta = 1e-5, so a = eta n = 0.6, and noise N(0, eta), which is the coupling `langevin` at tau = 1/2: sigma =
B / (n sqrt(eta) C) = 0.90. DP-MC dropout sums its loss over B = 256 records and lets Opacus multiply by B once more, so
its rate 2e-4 and clip norm 200 are a = 0.0512 and C = 0.78. All other constants were chosen by the negative
log-likelihood of 5,000 training records that were held back from those runs.
"""

import math
from collections.abc import Mapping
from typing import Any

RECORDS, BATCH, DELTA = 60_000, 256, 1e-5
MLP, CNN = "MLP", "CNN"
SGLD, BBP, MC_DROPOUT, SGD = "SGLD", "BBP", "MC dropout", "SGD"
GAUSSIAN, LAPLACE, FLAT = "Gaussian prior", "Laplace prior", "flat prior"
PLAIN, AUTHORS, EQUAL = "non-private", "DP, authors' constants", "DP, equal epsilon"
# What the authors' noise multiplier of 1.3 costs in 15 epochs, by the privacy-loss distribution.
EPSILON, NOISE_MULTIPLIER, CLIP_NORM = 0.87, 1.3, 1.5
# Draws that are kept, one from each of the last iterates, and how many of them the average is over.
DRAWS, AVERAGED_DRAWS = 100, 25
# The class of the image that the paper shows; here the first such image of the test set.
SHOWN_CLASS = 3

PRIORS: Mapping[str, dict[str, Any]] = {
    GAUSSIAN: {"kind": "gaussian", "scale": 0.1},
    LAPLACE: {"kind": "laplace", "scale": 0.1},
    FLAT: {"kind": "flat"},
}
KINDS: Mapping[str, dict[str, Any]] = {
    SGLD: {"kind": "sgld"},
    BBP: {"kind": "bbp", "draws": 3, "initial_scale": 0.08},
    MC_DROPOUT: {"kind": "mc-dropout", "rate": 0.5, "momentum": 0.5},
    SGD: {"kind": "sgd"},
}
MODELS: Mapping[tuple[str, bool], dict[str, Any]] = {
    (MLP, True): {"kind": "mlp", "hidden": [1200, 1200]},
    (MLP, False): {"kind": "mlp", "hidden": [200, 200]},
    (CNN, True): {"kind": "cnn", "channels": [16, 32], "hidden": 32},
    (CNN, False): {"kind": "cnn", "channels": [8, 16], "hidden": 32},
}
EPOCHS, REDUCED_EPOCHS = 15, 3

# Step size a and clip norm C.
_AUTHORS = {SGLD: (0.6, 1.5), BBP: (0.25, 1.5), MC_DROPOUT: (0.0512, 200 / 256), SGD: (0.25, 1.5)}
_EQUAL = {SGLD: (0.6, 1.5), BBP: (0.5, 3.0), MC_DROPOUT: (0.2, 1.5), SGD: (0.25, 1.5)}
_PLAIN = {SGLD: 0.1, BBP: 0.25, MC_DROPOUT: 0.05, SGD: 0.25}
_LANGEVIN: dict[str, Any] = {"coupling": "langevin", "temperature": 0.5}
# On the MLP; the CNN has the same constants.
_TRIED: Mapping[str, Mapping[str, int]] = {
    PLAIN: {SGLD: 2, BBP: 1, MC_DROPOUT: 1, SGD: 2},
    AUTHORS: dict.fromkeys(_AUTHORS, 1),
    EQUAL: {SGLD: 5, BBP: 3, MC_DROPOUT: 3, SGD: 5},
}


def constants(network: str, method: str, prior: str, setting: str, *, full: bool) -> dict[str, Any]:
    """Return every constant of a cell.

    Args:
        network: `MLP` or `CNN`.
        method: `SGLD`, `BBP`, `MC_DROPOUT` or `SGD`.
        prior: `GAUSSIAN`, `LAPLACE` or `FLAT`.
        setting: `PLAIN`, `AUTHORS` or `EQUAL`.
        full: the paper's widths and epochs.

    Returns:
        JSON values.
    """
    epochs = EPOCHS if full else REDUCED_EPOCHS
    steps = epochs * math.ceil(RECORDS / BATCH)
    private = setting != PLAIN
    step_size = _PLAIN[method] if setting == PLAIN else (_AUTHORS if setting == AUTHORS else _EQUAL)[method][0]
    sampler = {
        **KINDS[method],
        "kind": f"dp-{KINDS[method]['kind']}" if private else KINDS[method]["kind"],
        "step_size": {"kind": "constant", "initial": step_size},
        "prior": PRIORS[prior],
    }
    return {
        "network": network, "method": method, "prior": prior, "setting": setting, "model": MODELS[network, full],
        "steps": steps, "draws": DRAWS,
        "averaged_draws": AVERAGED_DRAWS, "sampler": sampler, "privacy": _privacy(method, setting),
        "configurations_tried": _TRIED[setting][method],
    }  # fmt: skip


def _privacy(method: str, setting: str) -> dict[str, Any]:
    rate = BATCH / RECORDS
    if setting == PLAIN:
        noise = {"temperature": 0.5} if method == SGLD else {}
        return {"kind": "none", "sampling_rate": rate, **noise}
    common = {"kind": "dp", "epsilon": EPSILON, "delta": DELTA, "sampling_rate": rate}
    if setting == EQUAL:
        return {**common, "clip_norm": _EQUAL[method][1]}
    # The noise is given, so the budget decides nothing.
    noise = _LANGEVIN if method == SGLD else {"noise_multiplier": NOISE_MULTIPLIER}
    return {**common, "clip_norm": _AUTHORS[method][1], **noise}
