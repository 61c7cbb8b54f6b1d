"""How far off a site is: what one of four can do to the figure, and what honest sites look like."""

import numpy as np
import pytest

from fl_dpbayes.posterior.far_off import (
    LARGEST_RATIO,
    SKETCH_SIZE,
    _medians_of_others,
    far_off_warnings,
    relative_distances,
    sketched_move,
)

ALIKE = dict.fromkeys("abcdefgh", 1.0)


def sites(count: int, parameters: int, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=parameters) for name in "abcdefgh"[:count]}


def named(ratios: dict[str, float]) -> set[str]:
    return {found.site for found in far_off_warnings(ratios)}


@pytest.mark.parametrize("count", [4, 5, 8])
def test_one_site_far_away_is_named_and_no_other(count: int) -> None:
    moves = sites(count, 50)
    assert not named(relative_distances(moves, ALIKE))
    moves["a"] = moves["a"] + 10.0
    assert named(relative_distances(moves, ALIKE)) == {"a"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_three_sites_or_fewer_none_is_named(count: int) -> None:
    moves = sites(count, 3)
    moves["a"] = np.full(3, 1e6)
    assert relative_distances(moves, ALIKE) == {}


@pytest.mark.parametrize("count", [4, 5, 7, 8])
def test_medians_are_those_of_the_others(count: int) -> None:
    moves = sites(count, 6)
    moves["b"] = moves["a"].copy()
    positions = np.stack(list(moves.values()))
    expected = [np.median(np.delete(positions, number, 0), axis=0) for number in range(count)]
    np.testing.assert_allclose(_medians_of_others(positions), expected)


def test_site_with_much_noise_does_not_hide_another() -> None:
    moves = sites(8, 200)
    moves["h"] = 20 * moves["h"]
    moves["a"] = moves["a"] + 3.0
    assert named(relative_distances(moves, ALIKE | {"h": 20.0})) == {"a"}


def test_noise_of_a_small_site_is_not_held_against_it_and_that_of_a_large_one_excuses_nobody() -> (
    None
):
    moves = sites(8, 200)
    moves["a"] = 20 * moves["a"]
    assert named(relative_distances(moves, ALIKE | {"a": 20.0})) == set()
    assert named(relative_distances(moves, ALIKE | {"b": 20.0})) == {"a"}
    assert named(relative_distances(moves, dict.fromkeys(moves, 0.0))) == {"a"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "parameters", "share"),
    [
        (4, 2, 0.145),
        (4, 3, 0.068),
        (4, 5, 0.018),
        (4, 100, 0.0),
        (8, 2, 0.024),
        (8, 5, 0.001),
        (8, 100, 0.0),
    ],
)
def test_sites_that_differ_alike_are_named_about_as_seldom_as_the_module_says(
    count, parameters, share
) -> None:
    runs = 1000
    alarms = sum(
        bool(named(relative_distances(sites(count, parameters, seed), ALIKE)))
        for seed in range(runs)
    )
    assert abs(alarms - share * runs) <= 4 * np.sqrt(share * runs)


def test_site_that_copies_another_is_as_far_off_as_that_one() -> None:
    moves = sites(4, 50)
    moves["a"] = moves["b"].copy()
    ratios = relative_distances(moves, ALIKE)
    assert ratios["a"] == pytest.approx(ratios["b"])
    assert not named(ratios)


def test_sites_at_one_place_are_not_far_off_and_one_beside_them_is() -> None:
    same = {name: np.ones(4) for name in "abcd"}
    assert relative_distances(same, ALIKE) == dict.fromkeys("abcd", 0.0)
    assert named(relative_distances(same | {"a": np.zeros(4)}, ALIKE)) == {"a"}


@pytest.mark.parametrize("shape", [(7, 3), (40, 6), (1000, 9)])
def test_sketches_keep_distances(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    start = {
        "weight": generator.normal(size=shape).astype(np.float32),
        "bias": np.zeros(shape[0], np.float32),
    }
    state = {
        name: (array + generator.normal(size=array.shape)).astype(np.float32)
        for name, array in start.items()
    }
    moved = np.concatenate(
        [(state[name].astype(np.float64) - start[name]).ravel() for name in start]
    )
    sketch = sketched_move(start, state, 5)
    exact = np.linalg.norm(moved)
    # The square of the norm of a sketch has a standard deviation of sqrt(2 / 256) of it at most.
    tolerance = 0.0 if moved.size <= SKETCH_SIZE else 4 * np.sqrt(2 / SKETCH_SIZE) / 2
    assert abs(np.linalg.norm(sketch) / exact - 1) <= tolerance + 1e-12
    assert sketch.shape == (SKETCH_SIZE,)


def test_sketch_is_linear_in_the_move() -> None:
    start = {"weight": np.zeros((30, 30), np.float32)}
    first, second = (np.random.default_rng(seed).normal(size=(30, 30)) for seed in (1, 2))
    together, *apart = (
        sketched_move(start, {"weight": move}, 9) for move in (first + second, first, second)
    )
    np.testing.assert_allclose(together, apart[0] + apart[1], atol=1e-9)


def test_threshold_is_what_it_was_when_the_false_alarms_were_measured() -> None:
    assert LARGEST_RATIO == 2.0
