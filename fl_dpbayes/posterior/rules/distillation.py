"""Server distillation: one network that predicts like the mixture of the sites' samples.

No convention: the teacher is any rule's averaged prediction. It consumes inputs that are public or
synthetic, without labels, and no site's records, so it costs no privacy. The student answers like
the posterior where it was distilled; off those inputs (shifted sites) its uncertainty is not that
of the posterior.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Distillation, DistillingRule, RunWarning, SyntheticInputs, warning
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.rules.combine import Aggregate, Released
from fl_dpbayes.posterior.samples import point_of
from fl_dpbayes.posterior.student import Student, distil, logits_at
from fl_dpbayes.protocol import prefixed

# By Pinsker's inequality the mean total variation between student and teacher is then below 0.1.
LARGE_DIVERGENCE = 0.02


def combine(rule: Distillation, released: Released) -> Aggregate:
    """Distil the mixture's predictions, sum_k w_k p_k(y|x) / sum_k w_k at the server's inputs."""
    total_weight = sum(released.weights[site] for site in released.samples)
    mixture = np.zeros(())
    for site in released.samples:
        share = released.weights[site] / total_weight
        mixture = mixture + share * site_predictions(released, site)
    return imitated(rule=rule, released=released, teacher=mixture)


def site_predictions(released: Released, site: str) -> npt.NDArray[np.float64]:
    """Return p_k(y|x) at the server's inputs, shape (N, classes)."""
    student = student_of(released)
    samples = released.samples[site].in_memory()
    prediction = predict(student.module, samples.arrays, samples.weights, student.features)
    return prediction.probabilities


def imitated(
    rule: DistillingRule,
    released: Released,
    teacher: npt.NDArray[np.float64],
    facts: Mapping[str, Any] | None = None,
    warnings: tuple[RunWarning, ...] = (),
) -> Aggregate:
    """Fit the server's network to a teacher's probabilities.

    It starts from the weights that all first chains started from: so it depends on the sites'
    predictions alone.

    Args:
        rule: The scenario's section.
        released: What the sites released, and the server's network and inputs.
        teacher: p(y|x) at the server's inputs, shape (N, classes).
        facts: For the record of the run.
        warnings: What is to be said of the teacher.

    Returns:
        One sample at temperature 0.
    """
    student = student_of(released)
    distilled = distil(
        logits_at(student.module, student.features),
        released.starts[0],
        teacher,
        max_iterations=rule.iterations,
    )
    divergence = distilled.divergence
    all_warnings = list(warnings)
    if divergence > LARGE_DIVERGENCE and distilled.converged:
        all_warnings.append(warning("distillation-differs", divergence=divergence))
    elif divergence > LARGE_DIVERGENCE:
        all_warnings.append(
            warning("distillation-stopped", iterations=rule.iterations, divergence=divergence)
        )
    if isinstance(rule.public, SyntheticInputs):
        all_warnings.append(warning("distillation-synthetic"))
    return Aggregate(
        samples=point_of(prefixed("parameters", distilled.parameters)),
        warnings=tuple(all_warnings),
        facts={**student.description, **(facts or {}), "divergence": divergence},
    )


def student_of(released: Released) -> Student:
    """Return the server's network, which a run of these rules has."""
    assert released.student is not None
    return released.student
