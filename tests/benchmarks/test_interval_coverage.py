"""The interval of the calibration error holds the truth on simulated models, and seldom more often than it should.

FL_DPBAYES_COVERAGE=1 checks all settings that are not between others; without it every fifth of
them.
"""

import math
import os

import numpy as np
import pytest

from benchmarks.interval_coverage import (
    DISTORTIONS,
    NOISED_CONFIDENCES,
    SETTINGS,
    binned,
    draw_test_sets,
    measure,
)
from fl_dpbayes.calibration import rms_interval as interval

REPLICATES = 150
LEAST_SPREAD = 2.5  # sd of right answers below which a few outcomes carry all probability


def faults(law: str, n: int, noise: float, replicates: int) -> list[str]:
    """Name the rows that cover less than 93 %, and the setting if it covers more than 99 %, by three standard errors.

    The upper bound is asked of all rows together: on a few hundred test sets no single row could
    exceed it.
    """
    found, errs = [], []
    for distortion in DISTORTIONS:
        values = measure(law, distortion, n, noise, replicates)
        shown = {"coverage": values["intervals"]}
        if noise == 0:
            shown |= {"brier": replicates, "nll": replicates * values["nll shown"]}
        for name, count in shown.items():
            if count and values[name] < 0.93 - 3 * math.sqrt(0.93 * 0.07 / count):
                found.append(f"{distortion}: {name} {values[name]:.3f}")
        # With a release's noise the interval is on the safe side.
        if noise == 0 and values["truth"] > 1e-6 and values["spread"] >= LEAST_SPREAD:
            errs.append((values["coverage"], values["intervals"]))
    coverages, counts = zip(*errs, strict=True) if errs else ([0.0], [1])
    if np.mean(coverages) > 0.99 + 3 * math.sqrt(0.99 * 0.01 / sum(counts)):
        found.append(f"all: {np.mean(coverages):.4f}")
    return found


# Without sizes and noise between others, and half of the costliest; the published table has them
# all.
QUICKEST = [
    (law, n, noise)
    for law, n, noise in SETTINGS
    if n not in (200, 2000) and noise != 5 and (n < 5000 or law in NOISED_CONFIDENCES)
]
# Every fifth, from the second on, and three more have every law, size and noise.
CHOSEN = QUICKEST if os.environ.get("FL_DPBAYES_COVERAGE") == "1" else QUICKEST[1::5]
MORE = [("top of 2, uniform", 200, 0.0), ("80 % at 1", 50, 0.0), ("Beta(8, 1)", 624, 5.0)]
CHOSEN = list(dict.fromkeys([*CHOSEN, *MORE]))


@pytest.mark.slow
@pytest.mark.parametrize(("law", "n", "noise"), CHOSEN)
def test_it_covers_on_all_models(law: str, n: int, noise: float) -> None:
    assert faults(law, n, noise, REPLICATES) == []


@pytest.mark.slow
def test_it_sees_an_interval_with_too_small_or_too_large_tails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for tail in (0.08, 0.0005):
        monkeypatch.setattr(interval, "TAIL", tail)
        assert faults("top of 2, uniform", 624, 0.0, REPLICATES) != []


def test_sums_of_bins_by_hand() -> None:
    drawn = draw_test_sets("top of 2, uniform", "all .05 too high", 40, 3, np.random.default_rng(0))
    table = binned(drawn, 15)
    assert table.shape == (3, 15, 4)
    inside = np.floor(drawn.confidence * 15) == 9
    weights = (inside, drawn.confidence, drawn.right, drawn.frequency)
    np.testing.assert_allclose(
        table[:, 9], np.transpose([(weight * inside).sum(axis=1) for weight in weights])
    )
    np.testing.assert_allclose(table[..., 1].sum(axis=1) - table[..., 3].sum(axis=1), 40 * 0.05)


@pytest.mark.parametrize("distortion", DISTORTIONS)
def test_answers_are_right_as_often_as_stated(distortion: str) -> None:
    drawn = draw_test_sets("Beta(.6, .6)", distortion, 40_000, 1, np.random.default_rng(1))
    away = drawn.right.mean() - drawn.frequency.mean()
    assert abs(away) < 4 * math.sqrt(
        float((drawn.frequency * (1 - drawn.frequency)).mean()) / 40_000
    )
    assert (np.abs(drawn.frequency - drawn.confidence).max() < 1e-9) == (distortion == "calibrated")


def test_noise_that_hides_the_records_leaves_no_interval() -> None:
    assert measure("Beta(8, 1)", "calibrated", 60, 20.0, 3)["intervals"] == 0
