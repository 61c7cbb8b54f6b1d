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
    total = sum(released.weights[site] for site in released.samples)
    parts = (
        released.weights[site] / total * site_predictions(released, site)
        for site in released.samples
    )
    return imitated(rule, released, sum(parts, start=np.zeros(())))


def site_predictions(released: Released, site: str) -> npt.NDArray[np.float64]:
    """Return p_k(y|x) at the server's inputs, shape (N, classes)."""
    student, samples = student_of(released), released.samples[site].in_memory()
    return predict(student.module, samples.arrays, samples.weights, student.features).probabilities


def imitated(
    rule: DistillingRule,
    released: Released,
    teacher: npt.NDArray[np.float64],
    facts: Mapping[str, Any] | None = None,
    warnings: tuple[RunWarning, ...] = (),
) -> Aggregate:
    """Fit the server's network to a teacher's probabilities (N, classes).

    It becomes one sample at temperature 0.

    It starts from the weights that all first chains started from: so it depends on the sites'
    predictions alone.
    """
    student, said = student_of(released), list(warnings)
    function = logits_at(student.module, student.features)
    found = distil(function, released.starts[0], teacher, max_iterations=rule.iterations)
    if found.divergence > LARGE_DIVERGENCE and not found.converged:
        said.append(
            warning("distillation-stopped", iterations=rule.iterations, divergence=found.divergence)
        )
    elif found.divergence > LARGE_DIVERGENCE:
        said.append(warning("distillation-differs", divergence=found.divergence))
    if isinstance(rule.public, SyntheticInputs):
        said.append(warning("distillation-synthetic"))
    samples = point_of(prefixed("parameters", found.parameters))
    return Aggregate(
        samples,
        tuple(said),
        student.description | {**(facts or {}), "divergence": found.divergence},
    )


def student_of(released: Released) -> Student:
    """Return the server's network, which a run of these rules has."""
    assert released.student is not None
    return released.student
