"""Tests of the noise that a site added: its variance, and that no two draws have anything in common."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc
from scipy.stats import chi2

from fl_dpbayes.privacy.audit_check import Check

Array = npt.NDArray[np.float64]
Relation = Literal["steps", "rounds", "sites", "restarts"]
RELATIONS: tuple[Relation, ...] = ("steps", "rounds", "sites", "restarts")
WHOLE_VECTOR = "all parameters"


@dataclass(frozen=True)
class NoiseOfRound:
    """The noise of one round over its claimed standard deviation.

    Attributes:
        site: where it was drawn.
        run: in which run.
        round: in which round of the run.
        noise: tensor name -> z_t ~ N(0, 1) if the claim holds, shape (steps, size of the tensor).
    """

    site: str
    run: str
    round: int
    noise: Mapping[str, Array]

    def __str__(self) -> str:
        return f"{self.site}, run {self.run}, round {self.round}"


@dataclass(frozen=True)
class _Finding:
    probability: float
    where: str


def noise_checks(rounds: Sequence[NoiseOfRound], *, false_alarm: float) -> list[Check]:
    """Test that noise has the claimed variance, and that any two draws of it are uncorrelated.

    Variance, per tensor and round: sum z^2 ~ chi^2, two-sided. Correlation, per tensor and for the whole vector, of
    each pair of steps: r^2 = <z, z'>^2 / (|z|^2 |z'|^2) ~ Beta(1/2, (d - 1)/2). All tests share `false_alarm` equally
    (Bonferroni), so that sound noise fails any of them with at most that probability.

    Args:
        rounds: noise of at least one round; every one has the same tensors.
        false_alarm: in (0, 1).

    Returns:
        One check for the variance and one for each relation between draws that occurs (steps of one round, rounds of
        one run, sites, restarts of a site); its value is the smallest probability found.
    """
    variances = list(_variances(rounds))
    correlations = {relation: list(_correlations(rounds, relation)) for relation in RELATIONS}
    tests = len(variances) + sum(len(findings) for findings in correlations.values())
    level = false_alarm / tests
    checks = [_check("noise has the claimed variance", variances, level)]
    for relation, findings in correlations.items():
        if findings:
            checks.append(_check(f"noise is uncorrelated across {relation}", findings, level))
    return checks


def _check(what: str, findings: list[_Finding], level: float) -> Check:
    worst = min(findings, key=lambda finding: finding.probability)
    return Check("noise", what, worst.probability, level, "at least", f"worst of {len(findings)}: {worst.where}")


def _variances(rounds: Sequence[NoiseOfRound]) -> Iterator[_Finding]:
    for each in rounds:
        for name, noise in _with_whole_vector(each.noise).items():
            total = float(np.square(noise).sum())
            one_sided = min(chi2.cdf(total, noise.size), chi2.sf(total, noise.size))
            yield _Finding(2 * float(one_sided), f"{name}, {each}, {total / noise.size:.3g} times the claim")


def _correlations(rounds: Sequence[NoiseOfRound], relation: Relation) -> Iterator[_Finding]:
    whole = [_with_whole_vector(each.noise) for each in rounds]
    for i, first in enumerate(rounds):
        for j, second in enumerate(rounds[i:], start=i):
            if _relation(first, second) != relation:
                continue
            for name, noise in whole[i].items():
                size = noise.shape[1]
                if size < 2:
                    continue
                cosines = _unit_rows(noise) @ _unit_rows(whole[j][name]).T
                if i == j:
                    cosines = cosines[np.triu_indices(len(cosines), k=1)]
                squares = np.minimum(1.0, np.square(cosines))
                for probability in betainc((size - 1) / 2, 0.5, 1 - squares).ravel():
                    yield _Finding(
                        float(probability), f"{name}, {first} and {second}" if i != j else f"{name}, {first}"
                    )


def _relation(first: NoiseOfRound, second: NoiseOfRound) -> Relation:
    if first.site != second.site:
        return "sites"
    if first.run != second.run:
        return "restarts"
    return "steps" if first.round == second.round else "rounds"


def _with_whole_vector(noise: Mapping[str, Array]) -> dict[str, Array]:
    return {**noise, WHOLE_VECTOR: np.concatenate(list(noise.values()), axis=1)}


def _unit_rows(noise: Array) -> Array:
    lengths = np.linalg.norm(noise, axis=1, keepdims=True)
    # No noise at all has no direction; the test of the variance finds it.
    return np.divide(noise, lengths, out=np.zeros_like(noise), where=lengths > 0)
