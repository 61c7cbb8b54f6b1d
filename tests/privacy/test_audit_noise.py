from collections.abc import Callable

import numpy as np
import pytest

from fl_dpbayes.privacy.audit_noise import NoiseOfRound, noise_checks

FALSE_ALARM = 1e-3
SIZES = {"weight": 200, "bias": 10, "scale": 1}
DRAWS = [("a", "1", 1), ("a", "1", 2), ("b", "1", 1), ("a", "2", 1)]
Noise = dict[str, np.ndarray]


def sound(seed: int) -> list[NoiseOfRound]:
    generator = np.random.default_rng(seed)
    return [
        NoiseOfRound(*draw, {name: generator.normal(size=(3, size)) for name, size in SIZES.items()}) for draw in DRAWS
    ]


def failed(rounds: list[NoiseOfRound]) -> list[str]:
    return [check.what.split(" (")[0] for check in noise_checks(rounds, false_alarm=FALSE_ALARM) if not check.passed]


def with_copy(source: int, target: int, change: Callable[[Noise], Noise]) -> list[NoiseOfRound]:
    rounds = sound(0)
    rounds[target] = NoiseOfRound(*DRAWS[target], {**rounds[target].noise, **change(dict(rounds[source].noise))})
    return rounds


def test_sound_noise_raises_alarms_as_seldom_as_promised() -> None:
    assert sum(bool(failed(sound(seed))) for seed in range(200)) <= 1


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8, 1.25])
def test_wrong_variance_of_one_tensor_is_found(factor: float) -> None:
    rounds = with_copy(1, 1, lambda noise: {"weight": factor * noise["weight"]})
    assert "noise has the claimed variance" in failed(rounds)


@pytest.mark.parametrize(
    ("source", "target", "relation"), [(0, 1, "rounds"), (0, 2, "sites"), (0, 3, "restarts"), (2, 3, "sites")]
)
def test_repeated_noise_is_found_with_its_relation(source: int, target: int, relation: str) -> None:
    rounds = with_copy(source, target, lambda noise: {"bias": noise["bias"]})
    assert failed(rounds) == [f"noise is uncorrelated across {relation}"]


def test_noise_repeated_with_another_sign_or_at_another_step_is_found() -> None:
    rounds = with_copy(0, 1, lambda noise: {"weight": -np.roll(noise["weight"], 1, axis=0)})
    assert "noise is uncorrelated across rounds" in failed(rounds)


def test_correlation_of_steps_is_found() -> None:
    rounds = with_copy(0, 0, lambda noise: {"weight": np.repeat(noise["weight"][:1], 3, axis=0)})
    assert "noise is uncorrelated across steps" in failed(rounds)


def test_only_relations_that_occur_are_tested() -> None:
    checks = noise_checks(sound(0)[:2], false_alarm=FALSE_ALARM)
    assert [check.what for check in checks] == [
        "noise has the claimed variance",
        "noise is uncorrelated across steps",
        "noise is uncorrelated across rounds",
    ]


def test_tests_share_the_false_alarm_probability() -> None:
    checks = noise_checks(sound(0), false_alarm=FALSE_ALARM)
    tests = sum(int(check.where.split("worst of ")[1].split(":")[0]) for check in checks)
    assert all(check.limit == pytest.approx(FALSE_ALARM / tests) for check in checks)
