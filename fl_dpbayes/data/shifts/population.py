"""Population shift: other class frequencies, another clientele, or examinations that are not made."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.errors import UserError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

LOGIT_OFFSETS = (0.5, 1.0, 1.5, 2.0, 2.5)
TILT_RATES = (0.25, 0.5, 1.0, 1.5, 2.0)
MISSING_SHARES = (0.1, 0.2, 0.4, 0.6, 0.8)
# Beyond two standard deviations all weigh alike: else one extreme record would leave a site with a handful of others.
HIGHEST_STANDARD_SCORE = 2.0


def prevalence_shares(classes: int, severity: int) -> Floats:
    """Return the share of each class that a prevalence shift keeps, (classes,), before rounding to whole records."""
    return np.exp(-LOGIT_OFFSETS[severity - 1] * np.arange(classes) / (classes - 1))


def prevalence_indices(labels: Indices, classes: int, severity: int, generator: np.random.Generator) -> Indices:
    """Choose records without replacement so that high classes become rarer, as in screening after a referral clinic.

        p'(c) proportional to p(c) exp(-offset c / (classes - 1))

    With two classes this is logit p'(1) = logit p(1) - offset, up to rounding to whole records. Records kept at one
    severity include those kept at every higher one. Indices are in increasing order.

    Source: prevalence shift of Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020.
    """
    order = np.argsort(generator.random(len(labels)))
    shares = prevalence_shares(classes, severity)
    kept = []
    for label in range(classes):
        members = order[labels[order] == label]
        kept.append(members[: round(len(members) * shares[label])])
    return np.sort(np.concatenate(kept)).astype(np.int64)


def subsampled_truth(truth: Floats, shares: Floats) -> Floats:
    """Return the probabilities of labels, (N, C), among the records kept, where `shares` k, (C,), of a class are kept.

        t'(c) = t(c) k(c) / sum_j t(j) k(j)

    Source: Saerens, Latinne and Decaestecker, Neural Computation 14, 2002, equation 2.4.
    """
    weighted = truth * shares
    return weighted / weighted.sum(axis=1, keepdims=True)


def tilt_indices(values: npt.NDArray[np.float32], severity: int, generator: np.random.Generator) -> Indices:
    """Choose records without replacement so that high values, (N,), of a feature become commoner.

        P(keep i) = exp(rate (min(z_i, c) - c)),  c = min(2, max z):  p'(x) proportional to p(x) exp(rate min(z, c))

    z is the value less the site's mean, over the site's standard deviation: a shift belongs to a simulation, and
    neither number leaves the site. Records kept at one severity include those kept at every higher one, and those of
    the highest value are always kept. Indices are in increasing order.

    Source: exponential tilting; population shift of Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020.

    Raises UserError if all values are equal.
    """
    draws = generator.random(len(values))
    exact = values.astype(np.float64)
    spread = exact.std()
    if not spread > 0:
        raise UserError(
            f"shift.feature: the site's {len(values)} records all have the same value, so no tilt can be made: choose "
            "another feature"
        )
    score = (exact - exact.mean()) / spread
    highest = min(HIGHEST_STANDARD_SCORE, score.max())
    return np.flatnonzero(draws < np.exp(TILT_RATES[severity - 1] * (np.minimum(score, highest) - highest)))


def lose_features(
    features: npt.NDArray[np.float32], severity: int, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Replace values, (N, F), by 0, each with the same probability and independent of all others.

    0 is the declared centre of a feature that is centred by public constants, so this is imputation by a public value;
    an indicator that is lost reads "no". Values lost at one severity are lost at every higher one.
    """
    return np.where(generator.random(features.shape) < MISSING_SHARES[severity - 1], np.float32(0), features)
