import math

import numpy as np
import pytest
from scipy.special import ndtr

from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.pld.grid import LossMass, discretise, losses_at, outputs_at

KINDS = [(1.0, 0.01), (0.3, 0.2), (5.0, 0.9), (2.0, 1.0), (0.05, 0.001)]
STEPS = [GaussianEvent(sigma, rate, 1) for sigma, rate in KINDS]
SPACING = 0.01


def of_grid(loss: LossMass, epsilons: np.ndarray) -> np.ndarray:
    grid = (loss.first + np.arange(loss.mass.size)) * SPACING
    gain = -np.expm1(np.minimum(epsilons[:, None] - grid[None, :], 0.0))
    return gain @ loss.mass + loss.infinite


def exact(level: GaussianEvent, epsilons: np.ndarray, direction: str) -> np.ndarray:
    """Hockey-stick divergences of the two mixtures, by the densities' crossing point."""
    s = level.noise_multiplier
    q = level.sampling_rate

    def mixed(x: np.ndarray, shift: float) -> np.ndarray:
        return (1 - q) * ndtr(x / s) + q * ndtr((x + shift) / s)

    if direction == "add":
        x = outputs_at(-epsilons, level, "add_or_remove_one")
        return ndtr(x / s) - np.exp(epsilons) * mixed(x, -1)
    x = outputs_at(epsilons, level, "add_or_remove_one" if direction == "remove" else "replace_one")
    return mixed(-x, 1) - np.exp(epsilons) * mixed(-x, 0 if direction == "remove" else -1)


def discretised(level: GaussianEvent, reach: float = 9.0) -> dict[str, LossMass]:
    remove, add = discretise(level, "add_or_remove_one", SPACING, reach)
    (replace,) = discretise(level, "replace_one", SPACING, reach)
    return {"remove": remove, "add": add, "replace": replace}


@pytest.mark.parametrize("level", STEPS, ids=str)
def test_divergences_are_exact_on_the_grid_and_above_between(level: GaussianEvent) -> None:
    for direction, loss in discretised(level).items():
        grid = SPACING * np.arange(-100, 500, 7)
        assert of_grid(loss, grid) == pytest.approx(
            exact(level, grid, direction), rel=1e-7, abs=1e-13
        )
        between = grid + SPACING / 3
        excess = of_grid(loss, between) - exact(level, between, direction)
        assert excess.min() >= -1e-13
        # A chord in exp(epsilon) over one bin lies above by at most h/4 of the slope, which is at
        # most 1.
        assert excess.max() <= SPACING / 4 * math.exp(SPACING)


@pytest.mark.parametrize("level", STEPS, ids=str)
@pytest.mark.parametrize("reach", [9.0, 1.0])
def test_mass_of_both_distributions_is_kept(level: GaussianEvent, reach: float) -> None:
    for loss in discretised(level, reach).values():
        grid = (loss.first + np.arange(loss.mass.size)) * SPACING
        assert loss.mass.min() >= 0
        assert loss.mass.sum() + loss.infinite == pytest.approx(1.0, abs=1e-12)
        assert loss.mass @ np.exp(-grid) <= 1 + 1e-9


@pytest.mark.parametrize("level", STEPS, ids=str)
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_one"])
def test_outputs_invert_losses(level: GaussianEvent, adjacency: str) -> None:
    x = np.linspace(-3, 6, 50) * level.noise_multiplier
    loss = losses_at(x, level, adjacency)  # type: ignore[arg-type]
    again = losses_at(outputs_at(loss, level, adjacency), level, adjacency)  # type: ignore[arg-type]
    assert again == pytest.approx(loss, rel=1e-9, abs=1e-9)
    assert np.all(np.diff(loss) >= 0)
    assert (
        outputs_at(np.array([-0.3]), GaussianEvent(1.0, 0.25, 1), "add_or_remove_one")[0]
        == -math.inf
    )


@pytest.mark.parametrize("level", STEPS, ids=str)
def test_what_is_cut_still_counts(level: GaussianEvent) -> None:
    epsilons = SPACING * np.arange(0, 300, 7)
    for direction, loss in discretised(level, 1.0).items():
        assert np.all(of_grid(loss, epsilons) >= exact(level, epsilons, direction) - 1e-13)


def test_losses_beyond_float_range_go_up_not_down() -> None:
    level = GaussianEvent(0.02, 0.5, 1)
    remove, _ = discretise(level, "add_or_remove_one", 1.0, 9.0)
    grid = remove.first + np.arange(remove.mass.size)
    x = 1 + 0.02 * np.linspace(-8, 8, 20_001)
    density = 0.5 * np.exp(-np.square((x - 1) / 0.02) / 2) / math.sqrt(2 * math.pi) * (16 / 20_000)
    loss = losses_at(x, level, "add_or_remove_one")
    for epsilon in (800.5, 1250.5, 1400.5):
        truth = density @ -np.expm1(np.minimum(epsilon - loss, 0.0))
        ours = remove.mass @ -np.expm1(np.minimum(epsilon - grid, 0.0)) + remove.infinite
        assert truth <= ours <= 1.05 * truth
